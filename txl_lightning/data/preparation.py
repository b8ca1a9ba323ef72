"""Preparing a text: encoded once, in parts, into a store.

A text is cut into parts of about 64 MiB by its bytes alone, so that they are the same for any
number of workers.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, StorageError, print_notice, require
from ..files import (
    create_folder,
    flush_to_disk,
    read_json,
    sha256_file,
    short_hash,
    write_json,
    write_text,
)
from ..progress import Advance, show_progress
from .documents import SPLITS, DocumentUnit, FileSlice, cached_by_mtime, split_documents
from .id_files import IDS, IdOptions
from .store import Store
from .store_parts import BLOCK, Part, Piece, hash_bytes, part_name, write_part
from .vocab import BUILT_IN, SubwordOptions, Vocabulary, WordOptions, build_vocabulary
from .vocab.base import Ids

VERSION = 6
"""Version of the files of a store."""
LARGE = 10_000_000
"""Bytes of text from which a message is printed, because encoding takes long."""
PART = 64 << 20
"""Bytes of text after which a part ends."""
LINE = re.compile(rb"\S\n(?=\S)")
RECORD = ".json"
"""Ending of the file that says that a part is whole, until all are."""


@dataclass(frozen=True)
class Recipe:
    """All that tokens depend on; without a document unit each split is one document."""

    splits: Mapping[str, Sequence[FileSlice]]
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    id_options: IdOptions | None = None
    """Options of files of ids; None for a text."""


def prepare_text(recipe: Recipe, data_dir: Path, whole: bool = False) -> Store:
    """Return the store of a text under `data_dir`, built by one process if absent or damaged.

    With `whole`, all files are compared with their checksums.
    """
    # Everything that the tokens depend on names the folder.
    description = describe_recipe(recipe, hash_text(recipe.splits, data_dir))
    folder = data_dir / "prepared" / short_hash(description)
    build = partial(build_store, recipe=recipe, description=description)
    create_folder(folder, build)
    if problem := Store(folder).find_damage(data_dir, whole):
        try:
            is_usable = lambda: not Store(folder).find_damage(data_dir, whole)  # noqa: E731
            create_folder(folder, build, is_usable)
        except StorageError as error:
            raise DataError(f"{problem}; {error}") from error
        print_notice(f"warning: {problem}; the text was encoded again")
    return Store(folder)


def hash_text(splits: Mapping[str, Sequence[FileSlice]], data_dir: Path) -> str:
    """Return the sha256 of train, val and test together; DataError if they cannot be read."""
    slices = [part for name in SPLITS for part in splits[name]]
    paths = dict.fromkeys(part.path for part in slices)
    cuts = [(str(part.path), part.start, part.stop) for part in slices]

    def hash_slices() -> str:
        sha256 = hashlib.sha256()
        for part in slices:
            for chunk in part.chunks():
                sha256.update(chunk)
        return sha256.hexdigest()

    try:
        return cached_by_mtime(["sha256", cuts], paths, data_dir, hash_slices)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def hash_starts(recipe: Recipe) -> str:
    """Return a checksum of the positions where documents begin in files of ids."""
    sha256 = hashlib.sha256()
    for split in SPLITS:
        for part in recipe.splits[split]:
            sha256.update(np.ascontiguousarray(part.starts, "<i8"))
    return sha256.hexdigest()


def describe_recipe(recipe: Recipe, sha256: str | None) -> dict[str, Any]:
    """Return a recipe as plain values, with the hash of its text, unless that is unknown."""
    sizes = {name: [part.n_byte for part in recipe.splits[name]] for name in SPLITS}
    description: dict[str, Any] = {
        "version": VERSION,
        **({"text": sha256} if sha256 else {}),
        "vocab": recipe.vocab,
        "documents": recipe.document_unit,
        "bytes": {name: sum(sizes[name]) for name in SPLITS},
        # A line or a document also ends with its file.
        "cuts": short_hash(sizes),
    }
    if recipe.id_options:
        description["ids"] = asdict(recipe.id_options) | {"starts": hash_starts(recipe)}
    match recipe.vocab:
        case "words":
            description["words"] = asdict(recipe.words)
        case "bpe" | "unigram":
            description["subwords"] = asdict(recipe.subwords)
        case name if name not in (*BUILT_IN, IDS):
            vocab = sha256_file(Path(name)) if Path(name).is_file() else name
            description |= {"vocab": vocab, "words": asdict(recipe.words)}
    return description


class Unit(NamedTuple):
    """The text of one part."""

    split: str
    nth: int
    slices: list[FileSlice]
    continues: bool
    """Its text continues the last document of the part before."""


def plan_units(recipe: Recipe) -> list[Unit]:
    """Return the parts of train, val and test, in order."""
    return [unit for split in SPLITS for unit in plan_split(recipe, split)]


def plan_split(recipe: Recipe, split: str) -> Iterator[Unit]:
    """Yield the parts of a split: whole slices, and pieces of large ones."""
    pieces = [
        (piece, nth > 0) for part in recipe.splits[split] for nth, piece in cut_slice(part, recipe)
    ]
    total = nth = first = 0
    for end, (piece, _) in enumerate(pieces, 1):
        total += piece.n_byte
        if end == len(pieces) or total + pieces[end][0].n_byte > PART:
            is_inner = nth > 0 if recipe.document_unit is None else pieces[first][1]
            continues = is_inner and recipe.document_unit != "lines"
            yield Unit(split, nth, [piece for piece, _ in pieces[first:end]], continues)
            total, nth, first = 0, nth + 1, end


def cut_slice(part: FileSlice, recipe: Recipe) -> Iterator[tuple[int, FileSlice]]:
    """Yield the pieces, with their numbers, of a slice that can be encoded one by one."""
    start, nth = part.start, 0
    # Other vocabularies join bytes to characters or words; none joins two lines.
    is_text = recipe.id_options is None
    is_lines = is_text and (recipe.vocab != "bytes" or recipe.document_unit == "lines")
    while part.stop - start > PART:
        stop = find_line(part, start + PART) if is_lines else start + PART
        yield nth, replace(part, start=start, stop=stop)
        start, nth = stop, nth + 1
    if start < part.stop:
        yield nth, replace(part, start=start)


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


def prepare_apart(recipe: Recipe, folder: Path) -> Store:
    """Return a store that stands alone: its identity is that of its parts, not of the text."""
    description = describe_recipe(recipe, None)
    create_folder(folder, partial(build_store, recipe=recipe, description=description))
    store = Store(folder)
    same = {name: store.manifest.get(name) for name in description} | {
        "bytes": description["bytes"]
    }
    require(same == description, "out", folder, "a new folder, or a store of the same text")
    return store


def build_store(folder: Path, recipe: Recipe, description: dict[str, Any]) -> None:
    """Write the vocabulary, all parts and the manifest into a folder."""
    total = sum(description["bytes"].values())
    if total > LARGE and not sys.stderr.isatty():
        print_notice(f"encoding {total:,} bytes as {recipe.vocab}")
    vocab, units = save_vocabulary(folder, recipe), plan_units(recipe)
    with show_progress("encoding", total) as advance:
        for unit in units:
            build_part(folder, unit, recipe, vocab, advance)
    join_parts(folder, units, vocab, description)


def save_vocabulary(folder: Path, recipe: Recipe) -> Vocabulary:
    """Build or load the vocabulary, and save it."""
    with show_progress("vocabulary", None) as advance:
        slices = [part for name in BUILT_IN.get(recipe.vocab, ()) for part in recipe.splits[name]]
        watched = [replace(part, on_read=advance) for part in slices]
        if recipe.vocab == IDS:
            ids = (part.highest_id() for name in SPLITS for part in recipe.splits[name])
            vocab = Ids(recipe.id_options.n_token or 1 + max(ids, default=0))
        else:
            vocab = build_vocabulary(recipe.vocab, watched, recipe.words, recipe.subwords)
    write_text(vocab.to_json(), folder / "vocab.json")
    return vocab


def build_part(
    folder: Path, unit: Unit, recipe: Recipe, vocab: Vocabulary, advance: Advance
) -> None:
    """Encode the text of a part; write its files, then the record that says that it is whole."""
    target = folder / part_name(unit.split, unit.nth)
    is_text, n_unknown = recipe.id_options is None, 0
    n_byte = sum(part.n_byte for part in unit.slices) if is_text else 0
    token_bytes = None if is_text else vocab.token_bytes()

    def count_tokens(pieces: Iterator[Piece]) -> Iterator[Piece]:
        nonlocal n_byte, n_unknown
        for ids, starts in pieces:
            if vocab.unknown is not None:
                n_unknown += int(np.count_nonzero(ids == vocab.unknown))
            if token_bytes is not None:
                n_byte += int(token_bytes[ids].sum())
            yield ids, starts

    watched = unit._replace(slices=[replace(part, on_read=advance) for part in unit.slices])
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".part-") as temporary:
        stem = Path(temporary, target.name)
        pieces = count_tokens(encode_unit(watched, recipe.document_unit, vocab))
        part = write_part(stem, pieces, vocab.dtype)
        for path in stem.parent.iterdir():
            flush_to_disk(path)
            os.replace(path, target.with_suffix(path.suffix))
    record = {"part": part, "bytes": n_byte, "unknown": n_unknown}
    write_json(record, target.with_suffix(RECORD))


def encode_unit(unit: Unit, kind: DocumentUnit | None, vocab: Vocabulary) -> Iterator[Piece]:
    """Yield the ids of a part's text, and where documents begin among them."""
    for nth, document in enumerate(split_documents(unit.slices, kind or "files")):
        begins = not unit.continues if nth == 0 else kind is not None
        for ids, starts in document.pieces(vocab):
            first = [0] if begins and len(ids) and 0 not in starts[:1] else []
            yield ids, [*first, *starts]
            begins = begins and not len(ids)


def join_parts(
    folder: Path, units: Sequence[Unit], vocab: Vocabulary, description: dict[str, Any]
) -> None:
    """Write the manifest of parts that are all there, and remove their records."""
    records = [folder / f"{part_name(unit.split, unit.nth)}{RECORD}" for unit in units]
    manifest = description | {"dtype": vocab.dtype.name, "n_token": vocab.n_token}
    manifest["vocab_checksum"] = hash_bytes((folder / "vocab.json").read_bytes())
    counts = ("bytes", "tokens", "unknown", "n_document")
    manifest |= {name: dict.fromkeys(SPLITS, 0) for name in counts}
    manifest["parts"] = {split: [] for split in SPLITS}
    for unit, path in zip(units, records, strict=True):
        record = read_json(path, {"part": list, "bytes": int, "unknown": int})
        part = Part(*record["part"])
        manifest["parts"][unit.split].append(part)
        manifest["tokens"][unit.split] += part.n_token
        manifest["n_document"][unit.split] += part.n_document
        for name in ("bytes", "unknown"):
            manifest[name][unit.split] += record[name]
    write_json(manifest | {"checksum": short_hash(manifest)}, folder / "manifest.json")
    for path in records:
        path.unlink()
