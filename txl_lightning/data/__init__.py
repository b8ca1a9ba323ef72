"""Text into segments. Knows nothing of the network. In reading order:

text.py         which text, cut and encoded how; start here
corpora.py      the table of corpora, whose files are in sources.py
own.py          one's own files, folders and tars
download.py     the only code that touches the network; archives.py, checksums.py
vocab/          bytes, characters, words, subwords
store.py        tokens on disk, from the documents of spans.py; identity.py, watch.py
stream.py       tokens.py in rows, as orders.py and lengths.py say -> segments
tasks.py        corpora made on the spot
datamodule.py   all of it for Lightning, the one file here that imports it
"""
