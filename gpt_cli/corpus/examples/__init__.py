"""Pairs and chats as tokens: each example by itself, and which of its tokens are completions.

Read first: `tokens.py`, then `prepare_examples.py`.
Never: joins two examples, or leaves one out.
"""
