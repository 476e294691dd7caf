"""A run on disk: its directory, checkpoints, logs, and loading them back.

Read first: `checkpoint.py`, then `directory.py`, which holds the lock while a run is trained.
Never: says that something is saved before it would survive a power cut.
"""
