"""Decoding on a CPU without torch: a model's weights and a small compiled kernel, or NumPy where none can be compiled.

weights     the arrays of a checkpoint, by what the network does with them
rounding    weights in fewer bits
reference   the network in NumPy: what the kernel is checked against, and what stands in for it
decode.c    the network and the choice of tokens in C: what Python calls; its subjects are in
              simd.h vectors, gemm.h and gemm_amx.h matrices, threads.h, network.h what a pass works on,
              attention.h and kv_int8.h what texts keep, layers.h a pass, sampling.h the choice,
              session.h many texts at once, ngram_draft.h and speculative.h guesses, of which one pass looks at several
kernel      compiles decode.c once for this machine, and loads it
library     its functions for Python
decoder     texts by the kernel; numpy_decoder texts by NumPy
"""
