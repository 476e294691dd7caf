"""Statistics of a text before training: duplicates, contamination, n-gram baselines, compression.

Read first: `inspection.py` (one pass in bounded memory), then `text_report.py`.
Never: changes a text, or imports torch.
"""
