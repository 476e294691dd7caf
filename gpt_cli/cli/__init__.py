"""The command line: `verbs/`, the `options/` that several share, and the process, output and errors around them.

Read first: `main.py`, then the verb.
Never: computes: a verb parses, calls the package that works, and prints.
"""
