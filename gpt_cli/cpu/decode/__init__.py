"""Decoding on a CPU without torch: the network in C, compiled once for this machine, or in NumPy.

Read first: `numpy_gpt.py` (the reference), then `decode.c` and `decoder.py`.
Never: gives a text other bits beside other texts, or loads a library that this user did not build.
"""
