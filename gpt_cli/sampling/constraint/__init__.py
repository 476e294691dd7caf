"""Constrained sampling: text that matches a regular expression, for any vocabulary.

Read first: `matcher.py`; a pattern goes through `regex.py`, `nfa.py`, `dfa.py`, `token_table.py`.
Never: masks a token from which a match is still reachable, or imports torch (but for `constraint.py`).
"""

from gpt_cli.sampling.constraint.matcher import CompiledPattern as CompiledPattern
from gpt_cli.sampling.constraint.matcher import Matcher as Matcher
