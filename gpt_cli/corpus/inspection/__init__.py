"""Statistics of a text before training: characters, lines, duplicates, contamination, n-gram baselines.

Read first: `scanner.py` (one pass in bounded memory), then `results.py`.
Never: changes a text, or imports torch.
"""
