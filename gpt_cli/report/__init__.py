"""Runs, plans, scores and texts for people: tables, figures, HTML pages.

Read first: `run_record.py` (a run read back), then the page or table in question.
Never: changes a run.
"""

import logging

# A font that is missing has a substitute, and so has a cache that cannot be written. It says so when it is imported.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
