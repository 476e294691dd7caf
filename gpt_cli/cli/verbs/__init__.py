"""The verbs of `gpt`, a file each: it parses, calls the package that works, and prints.

Read first: `train.py`.
Never: imports torch, matplotlib or a server at its head, nor has logic that Python users of the package would miss.
"""
