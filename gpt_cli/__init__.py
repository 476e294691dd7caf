"""Train, sample and study GPT language models from the command line."""

__version__ = "0.1.0"
