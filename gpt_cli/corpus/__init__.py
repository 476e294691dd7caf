"""Text, wherever it is kept, made into tokens.

sources      what a `data.source` names, read document by document
compression  .gz, .xz and .zst, with a bound on what they may expand to
registry     the corpora that are known by name, and where they are kept
download     one file over https: resumed, bounded, verified
split        which text trains and which validates
store        tokens on the disk: verified, with their tokenizer
build        from a config's `data` and `tokenizer` to arrays of tokens
blocks       the documents as one text, in blocks, and a sample of a large one
peek         what a model is asked: contexts and the tokens that follow
compare      tokenizers side by side on one text
inspection   what a text is like before a model learns from it
fit          a config that suits a text and a machine
"""
