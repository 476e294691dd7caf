"""The loss as a law of size and tokens, fitted to a ladder of small runs, and the run that it advises.

Read first: `loss_law.py`, then `ladder.py` and `run_scale.py`.
Never: keeps a result anywhere but in the directories of its runs.
"""
