"""Text into segments, independent of the network. In reading order:

settings.py    settings of a text; start here
corpora.py     the table of corpora; download.py gets their files
user_files.py  a user's own files and folders; archives.py unpacks them
documents.py   slices of files, documents, splits
id_files.py    token ids of other programs
vocab/         bytes, characters, words, subwords
recipe.py      what tokens depend on, and when a text is encoded
store.py       encoding a text once, and reading its ids; workers.py: who encodes; remote.py: URLs
tokens.py      tokens by position, in several orders and lengths
stream.py      rows of tokens -> segments
datamodule.py  the data module for Lightning, the only file here that imports it
tasks.py       generated corpora
eval_text.py   texts to score
"""
