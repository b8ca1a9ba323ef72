"""The bytes of the texts as they are read: whole, by block, and before the documentation's index.

Blocks of a record have equal tokens, and their mean is the bits per byte of the whole text. That of
a part follows from the bytes of its blocks (figures.cut_scores).
"""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.stop_gradient.run import N_BLOCK
from experiments.stop_gradient.texts import SUBWORDS
from experiments.test_time.figures import DOCUMENTATION
from experiments.test_time.texts import find_index, find_text
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.store import Store
from txl_lightning.data.vocab.subwords import SubwordOptions

CORPUS = "python_source"


def open_store(args: Namespace) -> Store:
    """Return the prepared text of the networks, which has their vocabulary."""
    if args.fast:
        return DataConfig(corpus=CORPUS, vocab="bytes").open_text()
    subwords = SubwordOptions(n_token=SUBWORDS["data.subwords.n_token"])
    return DataConfig(corpus=CORPUS, vocab=SUBWORDS["data.vocab"], subwords=subwords).open_text()


def read_ids(store: Store, name: str, n_token: int, split: str = "test") -> np.ndarray:
    """Return the tokens that evaluate reads with max_tokens: it scores all but the first."""
    if name == CORPUS:
        return store.ids(split)[: n_token + 1]
    config = DataConfig(path=str(find_text(name))).put_all_in_test()
    with TemporaryDirectory() as folder:
        text = config.source.encode("test", store.vocab, Path(folder))
        return np.array(text.tokens.ids[: n_token + 1])


def read_bytes(store: Store, name: str, n_token: int, split: str = "test") -> bytes:
    return store.vocab.decode(read_ids(store, name, n_token, split)).encode()


def list_blocks(n_token: int, rows: int = 1) -> list[np.ndarray]:
    """Return the places of the scored tokens of each block of a text that is read in rows.

    The first token of a row is not scored.
    """
    row_len = -(-n_token // rows)
    place_N = np.arange(n_token)
    return np.array_split(place_N[place_N % row_len > 0], N_BLOCK)


def measure(args: Namespace, texts: Iterable[str], n_token: int, rows: int = 1) -> dict[str, Any]:
    """Return a record: the bytes of each text and of its blocks, and the blocks before the index.

    A block with the beginning of the index is not counted.
    """
    store = open_store(args)
    sizes = {name: store.vocab.token_bytes()[read_ids(store, name, n_token)] for name in texts}
    fields = {"kind": "sizes", "text": store.manifest["text"]}
    fields["bytes"] = {name: int(size_N.sum()) for name, size_N in sizes.items()}
    fields["block_bytes"] = {
        name: [int(size_N[block].sum()) for block in list_blocks(len(size_N), rows)]
        for name, size_N in sizes.items()
    }
    if DOCUMENTATION in sizes:
        start = find_index(find_text(DOCUMENTATION).read_bytes())
        end_N = sizes[DOCUMENTATION].cumsum()
        ends = [end_N[block[-1]] for block in list_blocks(len(end_N), rows)]
        fields["blocks_before_index"] = sum(bool(end <= start) for end in ends)
    return fields
