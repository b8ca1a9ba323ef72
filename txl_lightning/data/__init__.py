"""Text into segments. Knows nothing of the network. In reading order:

config.py       which text, cut and encoded how; start here
corpora.py      the table of corpora; download.py gets their files
user_files.py   a user's own files, folders and tars
vocab/          bytes, characters, words, subwords
store.py        tokens on disk, from the file slices of documents.py; a text that is scored
blocks.py       checksums of what is on disk
tokens.py       tokens by position, in several orders and lengths
stream.py       these in rows -> segments
tasks.py        corpora made on the spot
datamodule.py   all of it for Lightning, the one file here that imports it
"""
