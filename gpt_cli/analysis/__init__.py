"""Statistics of a text and of tokenizers before training: duplicates, contamination, n-gram baselines, compression.

Read first: `scanner.py` (one pass in bounded memory), then `text_report.py` and `compare_tokenizers.py`.
Never: changes a text, or imports torch.
"""
