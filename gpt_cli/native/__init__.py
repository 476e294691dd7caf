"""Decoding on a CPU without torch: a model's weights and a small compiled kernel, or NumPy where none can be compiled.

weights     the arrays of a checkpoint, by what the network does with them
reference   the network in NumPy: what the kernel is checked against, and what stands in for it
decode.c    the network and the choice of tokens in C
draft.h     guesses, of which several are looked at in one pass
kernel      compiles decode.c once for this machine, and loads it
decoder     texts from either
"""
