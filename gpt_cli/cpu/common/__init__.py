"""C sources compiled once for this machine, kept in the cache with their sums, and loaded.

Read first: `kernel.py`, then `compiler.py` and `build_store.py`.
Never: loads bytes that another user could have written, or imports torch or NumPy.
"""
