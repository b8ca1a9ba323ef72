"""Text into segments, independent of the network. In reading order:

sources.py     where a text comes from, and its settings; start here
text_files.py  slices of files, and a user's own files and folders; archives.py unpacks them,
               json_lines.py reads JSON lines, split_names.py knows the splits by their names
corpora.py     the table of published texts; download.py gets their files
id_files.py    token ids of other programs
tasks.py       generated texts
vocab/         bytes, characters, words, subwords
encoding.py    what tokens depend on, and how a text is encoded, once
store.py       a text that is encoded: its ids are memory-mapped; remote.py copies one at a URL
tokens.py      tokens by position, in several orders and lengths
stream.py      rows of tokens -> segments
datamodule.py  the data module for Lightning, the only file here that imports it
"""
