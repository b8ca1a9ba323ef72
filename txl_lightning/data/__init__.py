"""Text into segments, independent of the network. In reading order:

settings.py     settings of a text, and how it is prepared; start here
corpora.py      the table of corpora; download.py gets their files
user_files.py   a user's own files, folders and archives
documents.py    files: slices, documents, checksums, archives
vocab/          bytes, characters, words, subwords
id_files.py     token ids of other programs
preparation.py  a text is encoded once; units.py: its parts; workers.py: who encodes them
store.py        a prepared text, and texts to score
store_parts.py  files of a part, checked when they are read; remote.py: those at a URL
tokens.py       tokens by position, in several orders and lengths
stream.py       rows of tokens -> segments
tasks.py        generated corpora
datamodule.py   the data module for Lightning, the only file here that imports it
"""
