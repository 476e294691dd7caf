"""Training: the loop, a step, batches, optimizers, schedules, state, and evaluation.

Read first: `loop.py`, then `step.py` and `state.py`.
Never: draws from a generator with a state of its own: batches and noise are functions of (seed, step).
"""
