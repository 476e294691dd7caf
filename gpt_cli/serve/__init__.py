"""Serves runs with OpenAI's API over HTTP, and a page to look at them.

Read first: `app.py` (the routes), then `scheduler.py` (continuous batching).
Never: is imported by another package, or grows without a bound from `limits.py`.
"""
