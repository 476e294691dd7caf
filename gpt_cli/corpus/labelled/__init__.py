"""Texts with a label each, divided label by label, as tokens.

Read first: `prepare_labelled.py`, then `read_labelled.py`.
Never: puts equal texts into two splits, or guesses a label.
"""
