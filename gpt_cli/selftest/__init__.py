"""Checks that a user runs, with the figures they give: of this machine and its disk, and of one run.

check     what a check found, and the table of several
model     properties that every trained model must have
machine   the promises of `gpt`, tried out here
kills     the hardest of them: training that is killed loses nothing
doctor    one run, examined
"""
