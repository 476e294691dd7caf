"""Training on a CPU in C: forward and backward pass, the loss, Newton-Schulz.

Read first: `native_engine.py` (its Python), then `forward_backward.h` and `network.c`.
Never: trains a model with an option that `capabilities.py` does not list for it.
"""
