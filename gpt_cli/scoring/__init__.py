"""What a model makes of a text that is there already.

windows      how a text longer than the context is read: each token predicted once
reader       log-probabilities of tokens, by the engine that needs no torch
network      the same by torch
text         a text with what each of its tokens cost: lines, spans of whole characters, sums
labels       which of some labels most likely follows a text
examples     texts with their labels, from a file
novelty      what of a text stands in the training text: `training_text`, read by the `automaton` of the text
tally        how often the right label was chosen, and which wrong ones

Importing this imports no torch: `network` does.
"""
