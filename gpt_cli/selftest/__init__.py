"""`gpt doctor` and `gpt selftest`: the promises, tried on this machine, its disk and one run.

Read first: `machine.py`, then `doctor.py`.
Never: changes a run.
"""
