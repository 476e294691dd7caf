"""What a text is like before a model learns from it: one pass over it, in bounded memory whatever its size.

characters  how often each occurs, which are rare and which cannot be seen
lines       how many, how long
passages    hashes of lines and passages: what is there twice, what of the validation text stands in the training text
ngrams      Kneser-Ney models of characters
baselines   what counting and compressing make of the validation text
facts       what was found, as one value
inspect     all of it together
advice      what it means, in sentences
"""
