"""A prepared text, written, verified, opened or copied from a URL; and a text to be scored.

A store has manifest.json, vocab.json and, of each split, SPLIT.ids, which are memory-mapped,
SPLIT.starts, where documents begin, and with data.id_key SPLIT.identifiers, in lines of JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .. import files
from ..errors import DataError, StorageError, print_notice, require_path
from ..files import STORE_FILE, cache_result, expand_home
from .text_files import SPLITS
from .tokens import TextTokens, Tokens
from .vocab.base import EncodedPiece, Vocabulary, choose_dtype
from .vocab.kinds import load_vocabulary

if TYPE_CHECKING:
    from .tasks import TaskStore

TOKENS_AT_ONCE = 1 << 20  # tokens of a text to be scored that are read at once
START = np.dtype("<i8")  # of the positions where documents begin
FILES = ("vocab.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("ids", "starts")))
IDENTIFIERS = {split: f"{split}.identifiers" for split in SPLITS}
COUNTED = ("bytes", "tokens", "unknown", "n_document")
MANIFEST = {"text": str, "cuts": str, "checksum": str, "files": dict.fromkeys(FILES, str)}
MANIFEST |= dict.fromkeys(COUNTED, dict.fromkeys(SPLITS, int))


def build_store(
    folder: Path,
    splits: Mapping[str, Iterable[EncodedPiece]],
    vocab: Vocabulary,
    description: Mapping[str, Any],
) -> None:
    """Write the pieces of each split, and a manifest; the other files are in the folder."""
    # The bytes of ids are summed over their tokens, where these have a size.
    sizes = size_tokens(vocab, description["ids"]) if "ids" in description else None
    counts = {split: write_split(folder, split, splits[split], vocab, sizes) for split in SPLITS}
    manifest = {**description}
    for name in COUNTED if "ids" in description else COUNTED[1:]:
        manifest[name] = {split: counts[split][name] for split in SPLITS}
    names = [*FILES, *(name for name in IDENTIFIERS.values() if (folder / name).is_file())]
    manifest["files"] = {name: files.hash_file(folder / name) for name in names}
    files.write_json(manifest | {"checksum": files.hash_values(manifest)}, folder / STORE_FILE)


def size_tokens(vocab: Vocabulary, id_options: Mapping[str, Any] | None) -> ndarray | None:
    """Return the bytes of text per token; None if they depend on neighboring tokens."""
    sizes = vocab.token_bytes()
    if sizes is not None and id_options is not None:
        # Other programs write marks between the texts of their ids; a text has a mark's letters.
        sizes = np.array(sizes)
        sizes[vocab.list_marks(id_options["separator"])] = 0
    return sizes


def write_split(
    folder: Path,
    split: str,
    pieces: Iterable[EncodedPiece],
    vocab: Vocabulary,
    sizes: ndarray | None,
) -> dict[str, int]:
    """Write a split, and return its counts; an id beyond the vocabulary is a DataError."""
    counts = dict.fromkeys(COUNTED, 0)
    paths = [folder / f"{split}.{kind}" for kind in ("ids", "starts")]
    with paths[0].open("wb") as ids_file, paths[1].open("wb") as starts_file:
        for ids, starts in pieces:
            if not counts["tokens"] and len(ids) and 0 not in starts[:1]:
                starts = [0, *starts]
            if (highest := int(ids.max(initial=0))) >= vocab.n_token:
                raise DataError(f"data.vocab: id {highest} is beyond the {vocab.n_token} tokens")
            starts_file.write((np.asarray(starts, START) + counts["tokens"]).tobytes())
            ids_file.write(ids.astype(vocab.dtype, copy=False).tobytes())
            counts["tokens"] += len(ids)
            counts["n_document"] += len(starts)
            counts["unknown"] += vocab.count_unknown(ids)
            if sizes is not None:
                counts["bytes"] += int(sizes[ids].sum())
    for path in paths:
        files.flush_to_disk(path)
    return counts


@dataclass(frozen=True)
class Store:
    """A prepared text that stands alone: ids and document starts of each split, vocabulary."""

    folder: Path
    data_dir: Path  # which remembers the files that have been compared with their checksums
    example_len = None  # only tasks have examples, whose answers are right or wrong
    verified: set[str] = field(default_factory=set, repr=False, compare=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        path = self.folder / STORE_FILE
        manifest = files.read_json(path, MANIFEST)
        if manifest.pop("checksum") != files.hash_values(manifest):
            raise DataError(f"{path}: damaged: its checksum differs")
        return manifest

    @property
    def file_names(self) -> list[str]:
        return [name for name in (*FILES, *IDENTIFIERS.values()) if name in self.manifest["files"]]

    @cached_property
    def vocab(self) -> Vocabulary:
        path = self.verify("vocab.json")
        try:
            return load_vocabulary(path.read_text(encoding="utf-8"))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def verify(self, name: str, whole: bool = False) -> Path:
        """Return the path of a file; DataError if it is damaged.

        It is read once, and again if it is changed or copied, or with `whole`.
        """
        path = self.folder / name
        if name in self.verified and not whole:
            return path
        facts = self._list_facts(name)
        find = partial(find_problem, path, *facts)
        problem = find() if whole else cache_result(facts, [path], self.data_dir, find)
        if problem:
            raise DataError(f"{path}: {problem}")
        self.verified.add(name)
        return path

    def trust(self) -> None:
        """Note that all files are as they were just written, also for later processes."""
        for name in self.file_names:
            cache_result(self._list_facts(name), [self.folder / name], self.data_dir, lambda: "")
            self.verified.add(name)

    def _list_facts(self, name: str) -> list[Any]:
        """Return the sha256 of a file, and for ids the size of the vocabulary."""
        n_token = self.vocab.n_token if name.endswith(".ids") else None
        return [self.manifest["files"][name], n_token]

    def find_damage(self, whole: bool = False) -> str | None:
        """Return a description of the first damage of a store on disk, or None."""
        try:
            for name in self.file_names:
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
        # Documents of ids begin where options say; and code of the user may have changed.
        if self.id_options is not None or self.vocab.saved_as is None:
            text["files"] = [self.manifest["files"][name] for name in FILES[1:]]
        return files.hash_values(text | {"vocab": self.vocab.fingerprint})

    @property
    def id_options(self) -> dict[str, Any] | None:
        """Options by which ids of another program were read; None for a text."""
        return self.manifest.get("ids")

    @cached_property
    def n_byte(self) -> dict[str, int]:
        """The bytes of text of each split; 0 for ids whose text is unknown."""
        # Until version 8, manifests of ids counted marks as text.
        if self.id_options is None or self.manifest["version"] > 8:
            return self.manifest["bytes"]
        sizes = size_tokens(self.vocab, self.id_options)
        return {split: sum_sizes(sizes, self.ids(split)) for split in SPLITS}

    def ids(self, split: str) -> ndarray:
        """Return the tokens of a split, memory-mapped."""
        return map_array(self.verify(f"{split}.ids"), self.vocab.dtype)

    def text(self, split: str) -> TextTokens:
        """Return the tokens of a split, with the positions where its documents begin."""
        return TextTokens(self.ids(split), map_array(self.verify(f"{split}.starts"), START))

    def identifiers(self, split: str) -> Path | None:
        """Return the file with a line of JSON for each document of a split; None without one."""
        name = IDENTIFIERS[split]
        return self.verify(name) if name in self.file_names else None

    def describe(self) -> str:
        """Return the sizes of text and vocabulary in one line."""
        names = {"n_document": "documents"} if self.manifest["documents"] else {}
        names |= {"bytes": "bytes"} if any(self.n_byte.values()) else {}
        names |= {"tokens": "tokens"}
        values = self.manifest | {"bytes": self.n_byte}
        counts = [f"{sum(values[key].values()):,} {names[key]}" for key in names]
        splits = ", ".join(f"{self.manifest['tokens'][split]:,} {split}" for split in SPLITS)
        vocab = f"vocabulary of {self.vocab.n_token:,} {self.vocab.unit}s"
        n_token, n_unknown = (sum(self.manifest[key].values()) for key in ("tokens", "unknown"))
        unknown = f", {n_unknown / n_token:.2%} of the tokens unknown" if n_unknown else ""
        return f"{', '.join(counts)} ({splits}), {vocab}{unknown}"

    def unknown_share(self, split: str) -> float:
        """Return the share of tokens that stand for text the vocabulary does not know."""
        return self.manifest["unknown"][split] / max(self.manifest["tokens"][split], 1)

    def bytes_per_token(self, split: str) -> float | None:
        """Return the mean bytes per scored token; None for ids whose text is unknown."""
        if not any(self.n_byte.values()):
            return None
        n_start = self.vocab.n_start * self.manifest["n_document"][split]
        n_scored = max(self.manifest["tokens"][split] - n_start, 1)
        return self.n_byte[split] / n_scored


def sum_sizes(sizes: ndarray | None, ids: ndarray) -> int:
    if sizes is None:
        return 0
    starts = range(0, len(ids), TOKENS_AT_ONCE)
    return sum(int(sizes[ids[at : at + TOKENS_AT_ONCE]].sum()) for at in starts)


def find_problem(path: Path, sha256: str, n_token: int | None) -> str:
    """Return what is wrong with a file, or ""; n_token: it has ids, which are below this."""
    if files.hash_file(path) != sha256:
        return "damaged: its checksum is not the manifest's"
    if n_token is not None:
        highest = int(map_array(path, choose_dtype(n_token)).max(initial=0))
        if highest >= n_token:
            return f"id {highest} is beyond the {n_token} tokens"
    return ""


def map_array(path: Path, dtype: np.dtype) -> ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def open_prepared(
    folder: Path,
    data_dir: Path,
    build: Callable[[Path], object] | None = None,
    whole: bool = False,
    refusal: str = "{}",
) -> Store:
    """Return the store in a folder, which `build` fills if it is absent or damaged.

    A store that was just built is not read again. Any other is verified: once for each change of a
    file, or all of it with `whole`. A damaged one that cannot be built is a DataError, `refusal`.
    """

    def find_damage() -> str | None:
        return Store(folder, data_dir).find_damage(whole)

    is_there = build is None or folder.is_dir()
    problem = find_damage() if is_there else None
    if is_there and not problem:
        return Store(folder, data_dir)
    if build is None:
        raise DataError(refusal.format(problem))
    try:
        is_new = files.create_folder(folder, build, lambda: folder.is_dir() and not find_damage())
    except StorageError as error:
        if not problem:
            raise
        raise DataError(f"{problem}; {error}") from error
    store = Store(folder, data_dir)
    if is_new:
        store.trust()
    if problem:
        print_notice(f"warning: {problem}; the store was made again")
    return store


def open_store(path: str, data_dir: Path, whole: bool = False) -> Store:
    """Open a store that prepare wrote, in a folder or at a URL; DataError if it is damaged."""
    require_path("data.store", path)
    if "://" in path:
        return fetch_store(path, data_dir, whole)
    refusal = "data.store: {}; copy it again, or write it with prepare --out"
    return open_prepared(Path(expand_home(path)), data_dir, None, whole, refusal)


def fetch_store(url: str, data_dir: Path, whole: bool = False) -> Store:
    """Copy a store at a URL, once for each manifest, and again if the copy is damaged; return the
    copy. A damaged store is a DataError, and leaves no copy."""
    # fsspec is slow to import, and needed only here.
    from .remote import copy_remote, read_remote

    url = url.rstrip("/")
    manifest = read_remote(url, STORE_FILE)

    def fetch(part: Path) -> None:
        (part / STORE_FILE).write_bytes(manifest)
        named = [name for name in IDENTIFIERS.values() if name.encode() in manifest]
        copy_remote(url, [*FILES, *named], part)
        if problem := Store(part, data_dir).find_damage(whole=True):
            advice = "start again, or write it with prepare --out"
            raise DataError(f"data.store: {problem.replace(str(part), url)}; {advice}")

    folder = data_dir / "prepared" / "fetched" / hashlib.sha256(manifest).hexdigest()[:16]
    return open_prepared(folder, data_dir, fetch, whole)


@dataclass(frozen=True)
class EvalText:
    """A text to score, with the number of bytes of its tokens."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None  # mean over the whole text; None if tokens have no bytes
    id_options: Mapping[str, Any] | None = None  # how ids of another program were read
    identifiers: Path | None = None  # of its documents: a line of JSON for each
    corpus: str | None = None  # of a text that was chosen by its corpus, whatever files are called

    @staticmethod
    def from_store(name: str, store: Store | TaskStore, split: str) -> EvalText:
        facts = store.fingerprint, store.text(split), store.vocab, store.bytes_per_token(split)
        return EvalText(name, split, *facts, store.id_options, store.identifiers(split))

    def count_bytes(self, position_K: ndarray) -> float | None:
        """Return the number of bytes of some tokens; None if their sizes are not known."""
        if self.bytes_per_token is None or self.token_bytes is None:
            return None
        return float(self.token_bytes[self.tokens.ids_at(position_K)].sum())

    def unknown_share(self, n_token: int) -> float:
        """Return the share of the first tokens that stand for text the vocabulary does not know."""
        if self.vocab.unknown is None:
            return 0.0
        starts = range(0, n_token, TOKENS_AT_ONCE)
        places = (np.arange(start, min(start + TOKENS_AT_ONCE, n_token)) for start in starts)
        counts = (self.vocab.count_unknown(self.tokens.ids_at(place)) for place in places)
        return sum(counts) / n_token

    @cached_property
    def token_bytes(self) -> ndarray | None:
        return size_tokens(self.vocab, self.id_options)
