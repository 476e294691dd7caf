"""Decoding on a CPU without torch: the network in C, compiled once for this machine, or in NumPy.

Read first: `numpy_gpt.py` (the reference), then `decoder.py`, `decode.c` and `gemm.h` (packed weights, products).
Never: gives a text other bits beside other texts, or loads a library that this user did not build.
"""
