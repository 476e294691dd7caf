"""Training: the loop, a step, batches, optimizers, schedules, state, and evaluation.

Read first: `loop.py`, then `step.py`, `state.py` and `muon.py`.
Never: draws from a stateful generator; batches and noise are functions of (seed, step).
"""
