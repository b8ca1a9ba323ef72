"""Text into segments, independent of the network. In reading order:

recipe.py       settings of a text, and how it is prepared; start here
corpora.py      the table of corpora; download.py gets their files
user_files.py   a user's own files, folders and archives
documents.py    files: slices, documents, checksums, archives
vocab/          bytes, characters, words, subwords
store.py        a prepared text, and texts to score
tokens.py       tokens by position, checked when read, in several orders and lengths
stream.py       rows of tokens -> segments
tasks.py        generated corpora
datamodule.py   the data module for Lightning, the only file here that imports it
"""
