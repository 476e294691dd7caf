"""Text that must match a pattern, whatever the vocabulary.

regex       the syntax tree of a regular expression
syntax      the same as an automaton over sets of characters (NFA)
automaton   the same, deterministic, over classes of characters (DFA)
utf8        bytes to classes of characters, one byte at a time
tokens      which tokens of a vocabulary may follow which state
matcher     where one text stands in the pattern
rule        all of it as a rule of sampling; it alone needs torch
"""

from gpt_cli.sampling.constraint.matcher import CompiledPattern as CompiledPattern
from gpt_cli.sampling.constraint.matcher import Matcher as Matcher
