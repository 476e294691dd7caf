"""Runs behind OpenAI's API over HTTP, and a page to look at them.

Read first: `app.py` (the routes), then `scheduler.py` (texts join and leave a batch).
Never: is imported by another room, or grows without a bound from `limits.py`.
"""
