"""The verbs of `gpt`, a file each: it parses, imports the package that works when it runs, calls it, and prints.

Read first: `train.py`.
Never: imports torch or numpy at its head, nor has logic that Python users of the package would miss.
"""
