"""Terminal output: escaped text, display widths, tables, progress.

Read first: `escape.py`; every sample, name and file content passes through it.
Never: imports another package, or writes anywhere but to a terminal.
"""
