"""Runs in the formats of others, and the models of others as runs.

names        our tensors under the names that others have for them
rewrites     the same function in other words: zeros for absent biases, a table for sinusoids
layouts      which architecture of Transformers is this very model, and its config.json
vocabulary   our tokenizers as a tokenizer.json
huggingface  the directory that `AutoModelForCausalLM` and `AutoTokenizer` load; `card` is its README
"""
