"""Training by several processes: their world, the sums of gradients, the launcher.

Read first: `world.py`, then `reduce.py`.
Never: knows the model, the optimizer or the run; one process alone exchanges nothing.
"""
