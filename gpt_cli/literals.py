"""Choices and bounds of a config and of the command line alike; so light that `gpt --help` has them."""

from typing import Literal

INT32_MAX = 2**31 - 1
"""The largest whole number that is taken: products of two such numbers fit in 64 bits."""
Device = Literal["auto", "cpu", "cuda", "mps"]
"""Device to compute on. auto: cuda, then mps, then cpu."""
TokenizerKind = Literal["char", "byte", "bpe", "hf"]
"""Unit of a token: a character, a byte, a learned run of bytes, or what the tokenizer of an imported model makes."""
SUBWORD_KINDS: tuple[TokenizerKind, ...] = ("bpe", "hf")
"""The kinds whose tokens stand for any number of characters."""
Pattern = Literal["gpt2", "gpt4", "o200k"]
"""The rule that splits text before BPE merges: see `gpt_cli.tokenizer.pretokenizer`."""
DataFormat = Literal["text", "pairs", "chat", "labelled"]
"""Kind of what a source holds: text, prompts with their completions, conversations, or texts with a label each."""
DocumentUnit = Literal["file", "lines", "paragraphs"]
"""Unit of plain text that is a document."""
SplitBy = Literal["characters", "documents", "files"]
"""Unit that is never divided between training, validation and test."""
Recipe = Literal["classic", "modern", "speed"]
"""A named set of values for model, optim and schedule: see `gpt_cli.config.recipes`."""
