"""A text is encoded once, into a store; its ids are then memory-mapped.

A store has manifest.json, vocab.json and, of each split, SPLIT.ids and SPLIT.starts: the ids, and
the positions where documents begin.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from .. import files
from ..errors import DataError
from ..progress import Advance
from .documents import CHUNK, SPLITS, DocumentUnit, FileSlice, cache_result
from .remote import fetch_file, read_remote
from .tokens import Text
from .vocab import load_vocabulary
from .vocab.base import Piece, Vocabulary
from .workers import Workers

PIECE = 8 << 20  # bytes of text that are encoded at once, by one worker
SHORT = 100_000  # bytes of documents that are encoded in batches
LINE = re.compile(rb"\S\n(?=\S)")
START = np.dtype("<i8")
FILES = ("vocab.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("ids", "starts")))
COUNTED = ("bytes", "tokens", "unknown", "n_document")
MANIFEST = {"text": str, "cuts": str, "checksum": str, "files": dict.fromkeys(FILES, str)}
MANIFEST |= dict.fromkeys(COUNTED, dict.fromkeys(SPLITS, int))


def encode_slices(
    folder: Path,
    slices: Sequence[FileSlice],
    kind: DocumentUnit | None,
    workers: Workers,
    advance: Advance,
) -> Iterator[Piece]:
    """Yield the ids of a text, with the vocabulary in a folder, and where documents begin."""
    pieces = [*plan_pieces(slices)]
    results = workers(partial(encode_piece, folder / "vocab.json", kind), pieces)
    for piece, encoded in zip(pieces, results, strict=True):
        yield from encoded
        advance(sum(part.n_byte for part in piece))


def plan_pieces(slices: Iterable[FileSlice]) -> Iterator[list[FileSlice]]:
    """Yield lists of slices, of about PIECE bytes each; large ones are cut."""
    piece, total = [], 0
    for part in slices:
        start = part.start
        while start < part.stop:
            stop = find_line(part, start + PIECE) if part.stop - start > PIECE else part.stop
            if piece and total + stop - start > PIECE:
                yield piece
                piece, total = [], 0
            piece.append(replace(part, start=start, stop=stop, continues=start > part.start))
            total += stop - start
            start = stop
    if piece:
        yield piece


def find_line(part: FileSlice, offset: int) -> int:
    """Return the first beginning of a line after `offset`, not beside other white space.

    Vocabularies join bytes to characters or words, but none joins two such lines.
    """
    with part.path.open("rb") as file:
        while offset < part.stop:
            file.seek(offset - 2)
            window = file.read(min(CHUNK, part.stop - offset + 2))
            if match := LINE.search(window):
                return offset - 2 + match.end()
            # The end may be the beginning of a match.
            offset += max(len(window) - 2, 1)
    return part.stop


def encode_piece(
    path: Path, kind: DocumentUnit | None, slices: Sequence[FileSlice]
) -> Iterator[Piece]:
    """Yield the ids of slices, and where documents begin among them."""
    vocab = load_vocabulary_once(path, path.stat().st_mtime_ns)
    for batch in batch_documents(slices, kind):
        if len(batch) > 1:
            yield vocab.encode_batch(batch)
            continue
        begins = kind is not None and not batch[0].continues
        for ids in vocab.encode(batch[0]):
            yield ids, [0] if begins and len(ids) else []
            begins = begins and not len(ids)


@lru_cache(1)
def load_vocabulary_once(path: Path, changed: int) -> Vocabulary:
    return load_vocabulary(path.read_text(encoding="utf-8"))


def batch_documents(
    slices: Iterable[FileSlice], kind: DocumentUnit | None
) -> Iterator[list[FileSlice]]:
    """Yield long documents one by one, and short ones in batches of about 1 MiB."""
    batch, total = [], 0
    documents = chain.from_iterable(p.split_lines() for p in slices) if kind == "lines" else slices
    for document in documents:
        is_alone = document.n_byte > SHORT or document.continues or kind is None
        n_byte = CHUNK if is_alone else document.n_byte
        if batch and total + n_byte > CHUNK:
            yield batch
            batch, total = [], 0
        batch.append(document)
        total += n_byte
    if batch:
        yield batch


def build_store(
    folder: Path,
    splits: Mapping[str, Iterable[Piece]],
    vocab: Vocabulary,
    description: Mapping[str, Any],
) -> None:
    """Write the pieces of each split, and a manifest with a description, the counts and checksums;
    the vocabulary is in the folder."""
    # The bytes of ids are those of their tokens, where these have a size.
    sizes = vocab.token_bytes() if "ids" in description else None
    counts = {split: write_split(folder, split, splits[split], vocab, sizes) for split in SPLITS}
    manifest = {**description}
    for name in COUNTED if "ids" in description else COUNTED[1:]:
        manifest[name] = {split: counts[split][name] for split in SPLITS}
    manifest["files"] = {name: files.sha256_file(folder / name) for name in FILES}
    files.write_json(manifest | {"checksum": files.short_hash(manifest)}, folder / "manifest.json")


def write_split(
    folder: Path, split: str, pieces: Iterable[Piece], vocab: Vocabulary, sizes: ndarray | None
) -> dict[str, int]:
    """Write the ids of a split, and where its documents begin; return what is counted."""
    counts = dict.fromkeys(COUNTED, 0)
    paths = [folder / f"{split}.{kind}" for kind in ("ids", "starts")]
    with paths[0].open("wb") as ids_file, paths[1].open("wb") as starts_file:
        for ids, starts in pieces:
            if not counts["tokens"] and len(ids) and 0 not in starts[:1]:
                starts = [0, *starts]
            starts_file.write((np.asarray(starts, START) + counts["tokens"]).tobytes())
            ids_file.write(ids.astype(vocab.dtype, copy=False).tobytes())
            counts["tokens"] += len(ids)
            counts["n_document"] += len(starts)
            if vocab.unknown is not None:
                counts["unknown"] += int(np.count_nonzero(ids == vocab.unknown))
            if sizes is not None:
                counts["bytes"] += int(sizes[ids].sum())
    for path in paths:
        files.flush_to_disk(path)
    return counts


@dataclass(frozen=True)
class Store:
    """A prepared text that stands alone: ids and document starts of each split, vocabulary."""

    folder: Path | str  # or a URL
    data_dir: Path  # which remembers the files that have been compared with their checksums
    example_len = None  # only tasks have examples, whose answers are right or wrong
    verified: dict[str, Path] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        name = f"{self.folder}/manifest.json"

        def check(content: bytes) -> dict[str, Any]:
            manifest = files.parse_json(name, content, MANIFEST)
            if manifest.pop("checksum") != files.short_hash(manifest):
                raise DataError(f"{name}: damaged: its checksum differs")
            return manifest

        if isinstance(self.folder, Path):
            return check(Path(name).read_bytes())
        return read_remote(name, lambda fs, path: check(fs.cat_file(path)))

    @cached_property
    def vocab(self) -> Vocabulary:
        path = self.verify("vocab.json")
        try:
            return load_vocabulary(path.read_text(encoding="utf-8"))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def verify(self, name: str, whole: bool = False) -> Path:
        """Return the path of a file, of a URL that of its copy; DataError if it is damaged.

        It is read once, and again if it is changed or copied, or with `whole`.
        """
        if name in self.verified and not whole:
            return self.verified[name]
        sha256 = self.manifest["files"][name]
        if isinstance(self.folder, str):
            copies = self.data_dir / "prepared" / "fetched"
            path = fetch_file(f"{self.folder}/{name}", sha256, copies)
        else:
            path = self.folder / name
        n_token = self.vocab.n_token if name.endswith(".ids") else None
        find = partial(find_problem, path, sha256, n_token)
        problem = find() if whole else cache_result([sha256, n_token], [path], self.data_dir, find)
        if problem:
            raise DataError(f"{path}: {problem}")
        self.verified[name] = path
        return path

    def find_damage(self, whole: bool = False) -> str | None:
        """Return a description of the first damage of a store on disk, or None."""
        try:
            for name in FILES:
                self.verify(name, whole)
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for two texts only if a model gets the same tokens from them."""
        text = {name: self.manifest[name] for name in ("text", "cuts", "documents", "tokens")}
        return files.short_hash(text | {"vocab": self.vocab.fingerprint})

    def ids(self, split: str) -> ndarray:
        """Return the tokens of a split, memory-mapped."""
        return map_array(self.verify(f"{split}.ids"), self.vocab.dtype)

    def text(self, split: str) -> Text:
        """Return the tokens of a split, with the positions where its documents begin."""
        return Text(self.ids(split), map_array(self.verify(f"{split}.starts"), START))

    def describe(self) -> str:
        """Return the sizes of text and vocabulary in one line."""
        names = {"n_document": "documents"} if self.manifest["documents"] else {}
        names |= {"bytes": "bytes"} if any(self.manifest["bytes"].values()) else {}
        names |= {"tokens": "tokens"}
        counts = [f"{sum(self.manifest[key].values()):,} {names[key]}" for key in names]
        splits = ", ".join(f"{self.manifest['tokens'][split]:,} {split}" for split in SPLITS)
        vocab = f"vocabulary of {self.vocab.n_token:,} {self.vocab.unit}s"
        return f"{', '.join(counts)} ({splits}), {vocab}"

    def bytes_per_token(self, split: str) -> float | None:
        """Return the mean bytes per scored token, without the first symbol of each document; None
        for ids whose text is unknown."""
        if not any(self.manifest["bytes"].values()):
            return None
        n_start = self.vocab.n_start * self.manifest["n_document"][split]
        n_scored = max(self.manifest["tokens"][split] - n_start, 1)
        return self.manifest["bytes"][split] / n_scored


def find_problem(path: Path, sha256: str, n_token: int | None) -> str:
    """Return what is wrong with a file, or ""; n_token: it has ids, which are below this."""
    if files.sha256_file(path) != sha256:
        return "damaged: its checksum is not the manifest's"
    if n_token is not None:
        highest = int(map_array(path, np.min_scalar_type(max(n_token - 1, 0))).max(initial=0))
        if highest >= n_token:
            return f"id {highest} is beyond the {n_token} tokens"
    return ""


def map_array(path: Path, dtype: np.dtype) -> ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def open_store(path: str, data_dir: Path, whole: bool = False) -> Store:
    """Open a store that prepare wrote, in a folder or at a URL; DataError if it is damaged."""
    if files.URL.match(path):
        return Store(path.rstrip("/"), data_dir)
    store = Store(Path(path).expanduser(), data_dir)
    if problem := store.find_damage(whole):
        raise DataError(f"data.store: {problem}; copy it again, or write it with prepare --out")
    return store
