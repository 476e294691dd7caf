"""A run on disk: its directory, checkpoints, logs, and loading them back.

Read first: `checkpoint.py`, then `directory.py`, which holds the lock while one is trained, and `find_run.py`.
Never: reports something as saved before it would survive a power cut.
"""
