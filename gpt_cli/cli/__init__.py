"""The command line: one small module a verb, and what several verbs share (options, prompts, output).

Read first: `main.py`, then the verb.
Never: computes: a verb parses, imports its room when it runs, calls it and prints.
"""
