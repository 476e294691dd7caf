"""Training by several processes: what they exchange, and in which order gradients are added.

Read `world.py` first (which process is this, and what do all agree on), then `reduce.py` (the sums of gradients).
Nothing here knows the model, the optimizer or the run; one process alone exchanges nothing.
"""
