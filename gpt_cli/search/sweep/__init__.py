"""Runs of one config under other values, side by side, and the differences that seeds alone would not make.

Read first: `sweep.py`, then `axes.py`, `executor.py` and `differences.py`.
Never: keeps a result anywhere but in the directories of its runs.
"""
