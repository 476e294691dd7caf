"""From what a command line names to values: the text, the run, the config, the prompts, the sampling parameters.

Read first: `train_request.py`.
Never: does the work itself.
"""
