"""The choice of a config: fitted to a text and a machine, by a range test, for a time budget; a dry run of it.

Read first: `auto_config.py`, then `time_budget.py`, `lr_range_test.py` and `dry_run.py`.
Never: writes a run.
"""
