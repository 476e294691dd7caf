"""Choose a config: fitted to a text and a machine, by a range test, for a time budget, by sweeps.

Read first: `auto_config.py`, then `time_budget.py`, `lr_range_test.py`, `dry_run.py`, `sweep/sweep.py`.
Never: writes a run itself; the training loop does.
"""
