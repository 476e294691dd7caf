"""Training by several processes: their world, the sums of gradients, the launcher.

Read first: `world.py`, then `reduce.py`.
Never: depends on the model, the optimizer or the run; a single process communicates nothing.
"""
