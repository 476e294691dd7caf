"""From sources of text to tokens: documents, splits, the token store, the dataset cache.

Read first: `prepare.py`, `tokenize_pipeline.py` (scan, split, encode, store), `encoder_pool.py`, `sources.py`.
Never: imports torch, or holds more of a long text than a few blocks.
"""
