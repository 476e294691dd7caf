"""Runs of one config under other values, side by side, and the differences that seeds alone would not make.

Read first: `sweep.py`, `axes.py` and `search_source.py` (the values), `executor.py`, `sweep_result.py` (the ranking).
Never: keeps a loss anywhere but in the directories of its runs.
"""
