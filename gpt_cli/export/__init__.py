"""Runs as models of Transformers and llama.cpp, and models of these as runs.

Read first: `layout.py` and `architectures.py` (which architecture a model is), then `huggingface.py`.
Never: writes a model that computes anything else: an option that a layout does not know is refused by name.
"""
