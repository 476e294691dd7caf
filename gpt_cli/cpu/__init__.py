"""The C engines: the network once more for decoding and for training on a CPU, compiled on this machine.

Read first: `common/kernel.py` (compile, keep, load), then `decode/` and `train/`.
Never: computes an option that `capabilities.py` does not list for it, or loads a library that this user did not build.
"""
