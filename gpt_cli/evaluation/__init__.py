"""Measures of a trained model on a text that is there: exact loss, surprisal, classes, copied spans, attention maps.

Read first: `logprob_scorer.py`, then `scored_text.py`, `evaluate_run.py` and `attention_capture.py`.
Never: generates text, changes a model, or imports torch for what the native engine computes.
"""
