"""Runs, plans, scores and texts for people: tables, figures, HTML pages.

Read first: `run_record.py` (a run read back), then the page or table in question.
Never: changes a run.
"""
