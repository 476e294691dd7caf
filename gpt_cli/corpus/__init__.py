"""Text, wherever it is kept, made into tokens.

sources       what a `data.source` names: files, folders, globs, standard input
formats       what a file holds: a text, or documents in JSON lines, CSV or Parquet
decoding      bytes to characters, strictly
compression   .gz, .xz and .zst, with a bound on what they may expand to
hub           data sets on Hugging Face's hub, where a source says `hf:`
registry      the corpora that are known by name, and where they are kept
download      one file over https: resumed, bounded, verified
text          all files of a corpus, read in blocks as often as needed
survey        the first pass: sizes and hashes
split         which text trains, which validates, and which is kept for the test
segments      a divided text, cut where the ids do not depend on what stands around
threads       work beside the thread that reads
pool worker   threads and processes that encode segments
tokenization  the passes: survey, learn, encode
store         tokens on the disk: verified, with their tokenizer
build         from a config's `data` and `tokenizer` to arrays of tokens
blocks        the documents as one text, in blocks, and a sample of a large one
peek          what a model is asked: contexts and the tokens that follow
compare       tokenizers side by side on one text
inspection    what a text is like before a model learns from it
fit           a config that suits a text and a machine
"""
