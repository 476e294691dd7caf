"""The network: layers, attention and its definition, KV caches, the loss in chunks, sizes before allocation.

Read first: `gpt.py`, then `layers.py` and `attention.py`.
Never: reads a file, a config of training, or the clock.
"""
