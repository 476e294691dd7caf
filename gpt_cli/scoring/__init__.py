"""Log-probabilities of a given text: surprisal, zero-shot classification, copied spans.

Read first: `logprob_scorer.py`, then `scored_text.py` and `classifier.py`.
Never: generates text; importing the room imports no torch.
"""
