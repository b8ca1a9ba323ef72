"""Preparing a text: encoded once, in parts, by one or many workers, into a store."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from .. import files
from ..errors import DataError, StorageError, print_notice, require
from ..progress import show_progress
from .documents import SPLITS, DocumentUnit, FileSlice, cache_result
from .id_files import IDS, IdOptions
from .store import Store
from .store_parts import Part, hash_bytes
from .units import RECORD, Unit, plan_split
from .vocab import BUILT_IN, SubwordOptions, WordOptions, build_vocabulary, load_vocabulary
from .vocab.base import Ids
from .workers import Workers, build_here, find_missing

VERSION = 6  # version of the files of a store
LARGE = 10_000_000  # bytes of text from which a message is printed, because encoding takes long


@dataclass(frozen=True)
class Recipe:
    """All that tokens depend on; without a document unit each split is one document."""

    splits: Mapping[str, Sequence[FileSlice]]
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    id_options: IdOptions | None = None  # of files of ids; None for a text

    @property
    def slices(self) -> list[FileSlice]:
        return [part for name in SPLITS for part in self.splits[name]]

    def plan_units(self) -> list[Unit]:
        """Return the units of train, val and test, in order, which workers encode."""
        kind, has_text = self.document_unit, not self.id_options
        in_lines = has_text and (self.vocab != "bytes" or kind == "lines")
        units = (plan_split(name, self.splits[name], kind, in_lines) for name in SPLITS)
        return [*chain(*units)]


def prepare_text(
    recipe: Recipe, data_dir: Path, whole: bool = False, workers: Workers = build_here
) -> Store:
    """Return the store of a text under `data_dir`, built if absent or damaged; `whole` compares all
    files with their checksums."""
    # Everything that the tokens depend on names the folder.
    description = describe_recipe(recipe, hash_text(recipe, data_dir))
    folder = data_dir / "prepared" / files.short_hash(description)
    build = partial(build_store, recipe=recipe, description=description, workers=workers)
    files.create_folder(folder, build)
    if problem := Store(folder).find_damage(data_dir, whole):
        try:
            files.create_folder(
                folder, build, lambda: not Store(folder).find_damage(data_dir, whole)
            )
        except StorageError as error:
            raise DataError(f"{problem}; {error}") from error
        print_notice(f"warning: {problem}; the text was encoded again")
    return Store(folder)


def hash_text(recipe: Recipe, data_dir: Path) -> str:
    """Return the sha256 of train, val and test together; DataError if they cannot be read."""
    paths = dict.fromkeys(part.path for part in recipe.slices)
    cuts = [(str(part.path), part.start, part.stop) for part in recipe.slices]
    chunks = (chunk for part in recipe.slices for chunk in part.chunks())
    try:
        return cache_result(["sha256", cuts], paths, data_dir, partial(hash_chunks, chunks))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def hash_chunks(chunks: Iterable[bytes | np.ndarray]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
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
        "cuts": files.short_hash(sizes),
    }
    if recipe.id_options:
        starts = hash_chunks(np.ascontiguousarray(part.starts, "<i8") for part in recipe.slices)
        description["ids"] = asdict(recipe.id_options) | {"starts": starts}
    match recipe.vocab:
        case "words":
            description["words"] = asdict(recipe.words)
        case "bpe" | "unigram":
            description["subwords"] = asdict(recipe.subwords)
        case name if name not in (*BUILT_IN, IDS):
            vocab = files.sha256_file(Path(name)) if Path(name).is_file() else name
            description |= {"vocab": vocab, "words": asdict(recipe.words)}
    # As a manifest has it: tuples become lists.
    return json.loads(json.dumps(description))


def prepare_apart(recipe: Recipe, folder: Path, workers: Workers = build_here) -> Store:
    """Return a store that stands alone: its identity is that of its parts, not of the text. Parts
    that an earlier, killed call has built are not built again."""
    if not folder.is_dir():
        build_share(recipe, folder, workers)
    return join_shares(recipe, folder)


def build_share(
    recipe: Recipe, folder: Path, workers: Workers, nth: int = 1, n_share: int = 1
) -> None:
    """Build every n_share-th part from the nth, unless it is there, in FOLDER.parts."""
    work, description = folder.with_name(f"{folder.name}.parts"), describe_recipe(recipe, None)
    with files.explain_write_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{work}.lock"):
            if not (saved := work / "recipe.json").exists():
                save_vocabulary(work, recipe)
                files.write_json(description, saved)
        expected = "parts of the same text and settings; remove it"
        require(files.read_json(saved) == description, "out", work, expected)
        build_parts(work, recipe.plan_units()[nth - 1 :: n_share], workers)


def join_shares(recipe: Recipe, folder: Path) -> Store:
    """Return the store of parts that `build_share` has built; a missing one is a DataError."""
    work, description = folder.with_name(f"{folder.name}.parts"), describe_recipe(recipe, None)
    if not folder.is_dir():
        with files.explain_write_errors(folder), FileLock(f"{work}.lock"):
            # Another process may have joined them.
            if not folder.is_dir():
                require(work.is_dir(), "join", work, "the parts that prepare --part has built")
                join_parts(work, recipe.plan_units(), files.read_json(work / "recipe.json"))
                os.replace(work, folder)
                remove_records(folder)
    store = Store(folder)
    same = {name: store.manifest.get(name) for name in description}
    # The manifest of ids counts the bytes of their text.
    is_same = same | {"bytes": description["bytes"]} == description
    require(is_same, "out", folder, "a new folder, or a store of the same text")
    return store


def build_store(
    folder: Path, recipe: Recipe, description: dict[str, Any], workers: Workers
) -> None:
    save_vocabulary(folder, recipe)
    build_parts(folder, units := recipe.plan_units(), workers)
    join_parts(folder, units, description)
    remove_records(folder)


def build_parts(folder: Path, units: Sequence[Unit], workers: Workers) -> None:
    missing = find_missing(folder, units)
    total = sum(unit.n_byte for unit in missing)
    if total > LARGE and not sys.stderr.isatty():
        print_notice(f"encoding {total:,} bytes")
    with show_progress("encoding", total) as advance:
        workers(folder, missing, advance)


def save_vocabulary(folder: Path, recipe: Recipe) -> None:
    with show_progress("vocabulary", None) as advance:
        names = BUILT_IN.get(recipe.vocab, ("train",))
        slices = [part for name in names for part in recipe.splits[name]]
        watched = [replace(part, on_read=advance) for part in slices]
        if recipe.vocab == IDS:
            ids = (part.find_highest_id() for part in recipe.slices)
            vocab = Ids(recipe.id_options.n_token or 1 + max(ids, default=0))
        else:
            vocab = build_vocabulary(recipe.vocab, watched, recipe.words, recipe.subwords)
    files.write_text(vocab.to_json(), folder / "vocab.json")


def join_parts(folder: Path, units: Sequence[Unit], description: dict[str, Any]) -> None:
    """Write the manifest of parts; DataError if one is missing or not whole."""
    if missing := find_missing(folder, units):
        names = ", ".join(unit.name for unit in missing[:5]) + ", ..." * (len(missing) > 5)
        raise DataError(f"{folder}: {len(missing)} of {len(units)} parts are missing: {names}")
    content = (folder / "vocab.json").read_bytes()
    vocab = load_vocabulary(content.decode())
    manifest = description | {"dtype": vocab.dtype.name, "n_token": vocab.n_token}
    manifest |= {"vocab_checksum": hash_bytes(content), "parts": {split: [] for split in SPLITS}}
    counts = ("bytes", "tokens", "unknown", "n_document")
    manifest |= {name: dict.fromkeys(SPLITS, 0) for name in counts}
    for unit in units:
        path = folder / f"{unit.name}{RECORD}"
        record = files.read_json(path, {"part": list, "bytes": int, "unknown": int})
        part = Part(*record["part"])
        manifest["parts"][unit.split].append(part)
        manifest["tokens"][unit.split] += part.n_token
        manifest["n_document"][unit.split] += part.n_document
        for name in ("bytes", "unknown"):
            manifest[name][unit.split] += record[name]
    files.write_json(manifest | {"checksum": files.short_hash(manifest)}, folder / "manifest.json")
    if problem := Store(folder).find_damage(None):
        raise DataError(f"{problem}; remove it, and prepare again")


def remove_records(folder: Path) -> None:
    """Remove all that only the building of a store needs, also what killed workers leave."""
    for path in (*folder.glob(f"*/*{RECORD}"), *folder.glob("*/.*"), folder / "recipe.json"):
        path.unlink(missing_ok=True)
    for path in folder.glob(".part-*"):
        shutil.rmtree(path, ignore_errors=True)
