"""Text into segments. Knows nothing of the network. In reading order:

config.py       which text, cut and encoded how; start here
corpora.py      the table of corpora; download.py and archives.py get their files
user_files.py   a user's own files, folders and tars
vocab/          bytes, characters, words, subwords
store.py        tokens on disk, from the file slices of documents.py
stream.py       tokens.py in rows, as orders.py says -> segments
tasks.py        corpora made on the spot
eval_text.py    a text that is to be scored
datamodule.py   all of it for Lightning, the one file here that imports it
"""
