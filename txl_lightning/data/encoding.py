"""The encoding of a text: all that its tokens depend on, and how they get into a store, once."""

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import files
from ..errors import DataError, StorageError, print_notice, require
from ..files import cache_result, expand_home
from ..imports import ALLOWED, allow_imports, hash_code
from ..terminal import Advance, announce_minutes, show_progress
from .json_lines import DEFAULT_FORMAT, Identifier, LineFormat, describe_records, write_identifiers
from .store import IDENTIFIERS, EvalText, Store, build_store, open_prepared
from .text_files import CHUNK, SPLITS, DocumentUnit, FileSlice
from .vocab.base import EncodedPiece, Vocabulary
from .vocab.kinds import BUILT_IN, build_vocabulary, find_own_class, load_vocabulary
from .vocab.subwords import SubwordOptions
from .vocab.words import WordOptions

# Part of the name of a prepared folder: increment it when the same text gives other ids or files.
# Opened stores ignore it. Fingerprints in checkpoints have `text`, `cuts` and `documents`, too.
VERSION = 10
LARGE_BYTES = 10_000_000  # of a text whose encoding takes long, so that a message is printed
PIECE_BYTES = 8 << 20  # bytes of text that are encoded at once, by one process
SHORT_BYTES = 100_000  # bytes of documents that are encoded in batches
SUBWORDS = ("bpe", "unigram")  # vocabularies that are trained on a text
SMALLEST = 50_000  # bytes of the shortest text with subwords; shorter ones were not measured

# White space as bytes of UTF-8, the longest of which decides how much is read beside a line end.
SPACES = tuple(chr(code).encode() for code in range(0x3001) if chr(code).isspace())
LONGEST_SPACE = max(map(len, SPACES))

# Ids, the places where documents begin, and the identifier of each of these documents, or None.
NamedPiece = tuple[np.ndarray, Sequence[int], Sequence[Identifier | None]]


class OwnLength(NamedTuple):
    """Length of a text of the user's own; None: unknown."""

    n_byte: int | None
    n_token: int | None = None
    n_vocab: int | None = None


@dataclass(frozen=True)
class Encoding:
    """All that tokens depend on; without a document unit each split is one document."""

    splits: Mapping[str, Sequence[Any]]  # slices of files
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    lines: LineFormat = DEFAULT_FORMAT  # of JSON lines

    @property
    def slices(self) -> list[Any]:
        return [part for name in SPLITS for part in self.splits[name]]

    @property
    def filled_subwords(self) -> SubwordOptions:
        return self.subwords.fill(sum(part.n_byte for part in self.slices))

    def describe(self, data_dir: Path) -> dict[str, Any]:
        """Return it as plain values, with the sha256 of train, val and test together."""
        sizes = {name: [part.n_byte for part in self.splits[name]] for name in SPLITS}
        description: dict[str, Any] = {
            "version": VERSION,
            "text": self.hash_text(data_dir),
            "vocab": self.vocab,
            "documents": self.document_unit,
            "bytes": {name: sum(sizes[name]) for name in SPLITS},
            # A line or a document also ends with its file.
            "cuts": files.hash_values(sizes),
        }
        lines = self.lines
        if lines.text_key is not None or lines.id_key is not None or lines.skip_bad_lines:
            description |= describe_records(self.slices, lines)
        # As a manifest has it: tuples become lists.
        return json.loads(json.dumps(description | self.describe_vocabulary()))

    def describe_vocabulary(self) -> dict[str, Any]:
        """Return the options of the vocabulary, and the sha256 of its file."""
        if self.vocab == "words":
            return {"words": asdict(self.words.fill())}
        if self.vocab in SUBWORDS:
            return {"subwords": asdict(self.filled_subwords)}
        if self.vocab in BUILT_IN:
            return {}
        path = Path(expand_home(self.vocab))
        vocab = files.hash_file(path) if path.is_file() else self.vocab
        own = find_own_class(self.vocab)
        code = {"code": hash_code(own)} if own else {}
        return {"vocab": vocab, "words": asdict(self.words.fill())} | code

    def hash_text(self, data_dir: Path) -> str:
        parts = join_neighbors(self.slices)
        paths = dict.fromkeys(part.path for part in parts)
        places = [(str(part.path), *part.bounds) for part in parts]
        chunks = (chunk for part in parts for chunk in part.chunks())
        try:
            return cache_result(["sha256", places], paths, data_dir, partial(hash_chunks, chunks))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error

    def make_vocabulary(self) -> Vocabulary:
        names = BUILT_IN.get(self.vocab, ("train",))
        slices = [part for name in names for part in self.splits[name]]
        subwords = self.filled_subwords if self.vocab in SUBWORDS else self.subwords
        return build_vocabulary(self.vocab, slices, self.words, subwords)

    def encode(
        self, split: str, vocab_path: Path, workers: int, advance: Advance
    ) -> Iterator[EncodedPiece]:
        """Yield the ids of a split, with the vocabulary in a file, and where documents begin; write
        what identifies these into a file beside it, if there is a key of it."""
        unit = self.document_unit
        pieces = encode_slices(self.splits[split], vocab_path, unit, workers, advance)
        if self.lines.id_key is None:
            return ((ids, starts) for ids, starts, _ in pieces)
        return write_identifiers(pieces, vocab_path.with_name(IDENTIFIERS[split]))

    def build(self, folder: Path, description: dict[str, Any], workers: int) -> None:
        """Build the store in an empty folder."""
        with show_progress("vocabulary", None):
            vocab = self.make_vocabulary()
        vocab_path = folder / "vocab.json"
        files.write_text(vocab.to_json(), vocab_path)
        total = sum(part.n_byte for part in self.slices)
        if total > LARGE_BYTES and not sys.stderr.isatty():
            print_notice(f"encoding {total:,} bytes")
        with show_progress("encoding", total) as advance:
            if total > LARGE_BYTES and not sys.stderr.isatty():
                advance = announce_minutes(advance, total, workers * PIECE_BYTES)
            pieces = {name: self.encode(name, vocab_path, workers, advance) for name in SPLITS}
            build_store(folder, pieces, vocab, description)


def join_neighbors(slices: Sequence[Any]) -> list[Any]:
    """Return the same bytes in fewer slices: those one after another in a file are one."""
    pairs = enumerate(pairwise(slices), 1)
    # Slices of one file share its path, which takes long to compare with an equal one.
    cuts = [n for n, (a, b) in pairs if a.path is not b.path or a.bounds[1] != b.bounds[0]]
    bounds = pairwise([0, *cuts, len(slices)] if slices else [])
    return [slices[first].extend(slices[end - 1].bounds[1]) for first, end in bounds]


def hash_chunks(chunks: Iterable[bytes | np.ndarray]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
    return sha256.hexdigest()


def prepare_text(
    encoding: Encoding, data_dir: Path, whole: bool = False, workers: int = 1
) -> Store:
    """Return the store of a text under `data_dir`, built if absent or damaged; `whole` compares all
    files with their checksums."""
    # Everything that the tokens depend on names the folder.
    description = encoding.describe(data_dir)
    folder = data_dir / "prepared" / files.hash_values(description)
    build = partial(encoding.build, description=description, workers=workers)
    return open_prepared(folder, data_dir, build, whole)


def prepare_folder(
    encoding: Encoding, folder: Path, data_dir: Path, workers: int = 1, whole: bool = False
) -> Store:
    """Return the store of a text in this folder, built if absent; DataError if it is damaged."""
    description = encoding.describe(data_dir)
    build = partial(encoding.build, description=description, workers=workers)
    refusal = "out: {}; remove the folder, and prepare the text again"
    # It may have other files of the user, so that it is not replaced.
    store = open_prepared(folder, data_dir, None if folder.is_dir() else build, whole, refusal)
    # The manifest of ids counts the bytes of their text.
    names = description.keys() - {"bytes"}
    # Earlier stores of ids do not say their types.
    names -= {"types"} - store.manifest.keys()
    same = {name: store.manifest.get(name) for name in names}
    expected = "a new folder, or a store of the same text"
    require(same.items() <= description.items(), "out", folder, expected)
    return store


def encode_split(
    encoding: Encoding, name: str, split: str, vocab: Vocabulary, folder: Path
) -> EvalText:
    """Return a split in the ids of another vocabulary, which are written to a permanent folder.
    DataError if it is empty; the only split of a text is the whole text."""
    nonempty = [each for each in SPLITS if any(part.n_byte for part in encoding.splits[each])]
    if split not in nonempty:
        raise DataError(f"{name}: its {split} text is empty; give another split")
    saved = folder / "vocab.json"
    saved.write_text(vocab.to_json())
    splits = {each: encoding.splits[each] if each == split else [] for each in SPLITS}
    store = prepare_text(replace(encoding, splits=splits, vocab=str(saved)), folder)
    # The hash of the text alone: it shows that vocabularies are compared on the same text.
    fingerprint = store.manifest["text"][:16]
    text = replace(EvalText.from_store(name, store, split), fingerprint=fingerprint)
    return text if len(nonempty) > 1 else replace(text, split="whole text")


def encode_slices(
    slices: Sequence[FileSlice],
    vocab_path: Path,
    unit: DocumentUnit | None,
    workers: int,
    advance: Advance,
) -> Iterator[NamedPiece]:
    """Yield the ids of a text, with the vocabulary in a file, and the documents that begin."""
    vocab = load_vocabulary_once(vocab_path, vocab_path.stat().st_mtime_ns)
    pieces = [*plan_pieces(slices, vocab)]
    encode = partial(encode_piece, vocab_path, unit)
    results: Iterator[Iterable[NamedPiece]] = map(encode, pieces)
    if workers > 1:
        results = map_in_processes(encode, pieces, workers)
    for piece, encoded in zip(pieces, results, strict=True):
        yield from encoded
        advance(sum(part.n_byte for part in piece))


def map_in_processes(
    encode: Callable[[list[FileSlice]], Iterator[NamedPiece]], pieces: Sequence, n_worker: int
) -> Iterator[list[NamedPiece]]:
    """Yield what `encode` yields of each piece; processes may import what this one may."""
    # A fork would copy the locks of threads that it does not copy.
    spawn = multiprocessing.get_context("spawn")
    allowed = [*ALLOWED]
    try:
        with ProcessPoolExecutor(n_worker, spawn, allow_imports, [allowed]) as pool:
            yield from pool.map(partial(list_results, encode), pieces)
    except BrokenProcessPool as error:
        raise StorageError("workers: one was killed; give more memory, or fewer workers") from error


def list_results(function: Callable[[Any], Iterable], argument: Any) -> list:
    return [*function(argument)]


def plan_pieces(slices: Iterable[FileSlice], vocab: Vocabulary) -> Iterator[list[FileSlice]]:
    """Yield lists of slices of about PIECE_BYTES; large ones are cut at lines, if the ids of a
    vocabulary allow it."""
    piece = []
    total = 0
    for part in slices:
        start = part.start
        while start < part.stop:
            is_cut = part.stop - start > PIECE_BYTES and vocab.is_cut_at_lines
            stop = find_line(part, start + PIECE_BYTES) if is_cut else part.stop
            if piece and total + stop - start > PIECE_BYTES:
                yield piece
                piece = []
                total = 0
            piece.append(replace(part, start=start, stop=stop, continues=start > part.start))
            total += stop - start
            start = stop
    if piece:
        yield piece


def find_line(part: FileSlice, offset: int) -> int:
    """Return the first beginning of a line after `offset`, not beside other white space.

    Vocabularies join bytes to characters or words, but none joins two such lines.
    """
    n_beside = LONGEST_SPACE
    with part.path.open("rb") as file:
        while offset < part.stop:
            start = max(offset - 1 - n_beside, part.start)
            file.seek(start)
            window = file.read(min(CHUNK, part.stop - start))
            place = window.find(b"\n", n_beside)
            while n_beside <= place < len(window) - n_beside:
                is_beside = window[place - n_beside : place].endswith(SPACES)
                if not (is_beside or window.startswith(SPACES, place + 1)):
                    return start + place + 1
                place = window.find(b"\n", place + 1)
            if len(window) <= 2 * n_beside:
                # The end of the text, or of a file that has become shorter.
                break
            offset = start + len(window) - n_beside + 1
    return part.stop


def encode_piece(
    path: Path, kind: DocumentUnit | None, slices: Sequence[FileSlice]
) -> Iterator[NamedPiece]:
    """Yield the ids of slices, and the documents that begin among them."""
    vocab = load_vocabulary_once(path, path.stat().st_mtime_ns)
    for batch in batch_documents(slices, kind):
        if len(batch) > 1:
            ids, starts = vocab.encode_batch(batch)
            identifiers = [document.identifier for document in batch]
            # A document without tokens is none: which one it is, only its own ids say.
            if len(starts) == len(batch) or {*identifiers} == {None}:
                yield ids, starts, identifiers[: len(starts)]
                continue
        for document in batch:
            begins = kind is not None and not document.continues
            for ids in vocab.encode(document):
                starts = [0] if begins and len(ids) else []
                yield ids, starts, [document.identifier] * len(starts)
                begins = begins and not len(ids)


@lru_cache(1)
def load_vocabulary_once(path: Path, changed: int) -> Vocabulary:
    return load_vocabulary(path.read_text(encoding="utf-8"))


def batch_documents(
    slices: Iterable[FileSlice], kind: DocumentUnit | None
) -> Iterator[list[FileSlice]]:
    """Yield long documents one by one, and short ones in batches of about 1 MiB."""
    batch = []
    total = 0
    documents = chain.from_iterable(p.split_lines() for p in slices) if kind == "lines" else slices
    for document in documents:
        is_alone = document.n_byte > SHORT_BYTES or document.continues or kind is None
        n_byte = CHUNK if is_alone else document.n_byte
        if batch and total + n_byte > CHUNK:
            yield batch
            batch = []
            total = 0
        batch.append(document)
        total += n_byte
    if batch:
        yield batch
