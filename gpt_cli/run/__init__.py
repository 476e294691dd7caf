"""A run on disk: its directory, checkpoints, logs, and loading them back.

Read first: `checkpoint.py`, then `directory.py`, which holds the lock while a run is trained;
`find_run.py` finds one by its name.
Never: says that something is saved before it would survive a power cut.
"""
