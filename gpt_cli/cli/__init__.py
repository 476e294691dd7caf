"""The command line: `verbs/`, the `options/` that several share, and the process, output and errors around them.

Read first: `main.py`, then the verb.
Never: computes: a verb parses, imports its package when it runs, calls it and prints.
"""
