"""A text in units, each of which one worker encodes into a part of a store.

A text is cut every 64 MiB by its bytes alone, so that parts are the same for any number of workers.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from ..files import flush_to_disk, write_json
from ..progress import Advance
from .documents import CHUNK, DocumentUnit, FileSlice, split_documents
from .id_files import IdSlice
from .store_parts import BLOCK, name_part, write_part
from .vocab import Vocabulary, load_vocabulary
from .vocab.base import Piece

PART = 64 << 20  # bytes of text after which a part ends
SHORT = 100_000  # bytes of documents that are encoded in batches
LINE = re.compile(rb"\S\n(?=\S)")
RECORD = ".json"  # ending of the file that says that a part is whole, until all are


class Unit(NamedTuple):
    """The text of one part."""

    split: str
    nth: int
    slices: list[FileSlice]
    document_unit: DocumentUnit | None
    continues: bool  # its text continues the last document of the part before

    @property
    def name(self) -> str:
        return name_part(self.split, self.nth)

    @property
    def n_byte(self) -> int:
        return sum(part.n_byte for part in self.slices)


def plan_split(
    split: str, slices: Iterable[FileSlice], document_unit: DocumentUnit | None, in_lines: bool
) -> Iterator[Unit]:
    """Yield the units of a split: whole slices, and pieces of large ones.

    With `in_lines`, a unit ends with a line: a vocabulary may join bytes to characters or words,
    but none joins two lines.
    """
    cuts = (enumerate(cut_slice(part, in_lines)) for part in slices)
    pieces = [(piece, nth > 0) for cut in cuts for nth, piece in cut]
    total = nth = first = 0
    for end, (piece, _) in enumerate(pieces, 1):
        total += piece.n_byte
        if end == len(pieces) or total + pieces[end][0].n_byte > PART:
            is_inner = nth > 0 if document_unit is None else pieces[first][1]
            texts = [piece for piece, _ in pieces[first:end]]
            yield Unit(split, nth, texts, document_unit, is_inner and document_unit != "lines")
            total, nth, first = 0, nth + 1, end


def cut_slice(part: FileSlice, in_lines: bool) -> Iterator[FileSlice]:
    """Yield the pieces of a slice that can be encoded one by one."""
    start = part.start
    while part.stop - start > PART:
        stop = find_line(part, start + PART) if in_lines else start + PART
        yield part.narrow(start, stop)
        start = stop
    if start < part.stop:
        yield part.narrow(start, part.stop)


def find_line(part: FileSlice, offset: int) -> int:
    """Return the first beginning of a line after `offset`, not beside other white space."""
    with part.path.open("rb") as file:
        while offset < part.stop:
            file.seek(offset - 2)
            window = file.read(min(BLOCK, part.stop - offset + 2))
            if match := LINE.search(window):
                return offset - 2 + match.end()
            # The end may be the beginning of a match.
            offset += max(len(window) - 2, 1)
    return part.stop


def build_part(folder: Path, unit: Unit, advance: Advance) -> None:
    """Encode a unit with the vocabulary in `folder`; write its part, then RECORD: it is whole."""
    vocab = load_vocabulary_once(path := folder / "vocab.json", path.stat().st_mtime_ns)
    has_text = not any(isinstance(part, IdSlice) for part in unit.slices)
    token_bytes = None if has_text else vocab.token_bytes()
    n_byte, n_unknown = unit.n_byte if has_text else 0, 0

    def count_tokens(pieces: Iterator[Piece]) -> Iterator[Piece]:
        nonlocal n_byte, n_unknown
        for ids, starts in pieces:
            if vocab.unknown is not None:
                n_unknown += int(np.count_nonzero(ids == vocab.unknown))
            if token_bytes is not None:
                n_byte += int(token_bytes[ids].sum())
            yield ids, starts

    target = folder / unit.name
    watched = unit._replace(slices=[replace(part, on_read=advance) for part in unit.slices])
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".part-") as temporary:
        stem = Path(temporary, target.name)
        part = write_part(stem, count_tokens(encode_unit(watched, vocab)), vocab.dtype)
        for path in stem.parent.iterdir():
            flush_to_disk(path)
            os.replace(path, target.with_suffix(path.suffix))
    write_json({"part": part, "bytes": n_byte, "unknown": n_unknown}, target.with_suffix(RECORD))


@lru_cache(1)
def load_vocabulary_once(path: Path, changed: int) -> Vocabulary:
    return load_vocabulary(path.read_text(encoding="utf-8"))


def encode_unit(unit: Unit, vocab: Vocabulary) -> Iterator[Piece]:
    """Yield the ids of a unit's text, and where documents begin among them."""
    kind, begins = unit.document_unit, not unit.continues
    for batch in batch_documents(split_documents(unit.slices, kind or "files")):
        # Documents of ids have starts of their own, and pieces of one document have none.
        if len(batch) > 1 and begins and kind and not isinstance(batch[0], IdSlice):
            yield vocab.encode_batch(batch)
            continue
        for document in batch:
            for ids, starts in document.encode_pieces(vocab):
                first = [0] if begins and len(ids) and 0 not in starts[:1] else []
                yield ids, [*first, *starts]
                begins = begins and not len(ids)
            begins = kind is not None


def batch_documents(documents: Iterable[FileSlice]) -> Iterator[list[FileSlice]]:
    """Yield long documents one by one, and short ones in batches of about 1 MiB."""
    batch, total, last = [], 0, 0
    for document in documents:
        size = document.n_byte
        if batch and (total + size > CHUNK or max(size, last) > SHORT):
            yield batch
            batch, total = [], 0
        batch.append(document)
        total, last = total + size, size
    if batch:
        yield batch
