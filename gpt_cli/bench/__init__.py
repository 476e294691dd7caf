"""`gpt bench`: training throughput of this machine, its peak, and where the time of a step goes.

Read first: `measure.py`.
Never: runs as part of a test's outcome, or while a run trains.
"""
