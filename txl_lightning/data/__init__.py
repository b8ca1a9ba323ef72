"""Text into segments, independent of the network. In reading order:

config.py       settings of a text: source, split, vocabulary; start here
corpora.py      the table of corpora; download.py gets their files
user_files.py   a user's own files, folders and tars
vocab/          bytes, characters, words, subwords
store.py        tokens on disk, from the file slices of documents.py; texts to score
blocks.py       checksums of files on disk
tokens.py       tokens by position, in several orders and lengths
stream.py       rows of tokens -> segments
tasks.py        generated corpora
datamodule.py   the data module for Lightning, the only file here that imports it
"""
