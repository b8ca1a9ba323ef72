"""A prepared text in a folder or at a URL, with its manifest; and texts to score."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import URL, parse_json, short_hash
from .documents import SPLITS, cache_result
from .remote import DiskCache, RemoteFiles
from .store_parts import LocalFiles, Part, PartedText, hash_bytes
from .tasks import TaskStore
from .tokens import Tokens
from .vocab import Vocabulary, load_vocabulary

COUNTED = 1 << 20  # tokens that are read at once
COUNTS = dict.fromkeys(SPLITS, int)
MANIFEST = {
    **dict.fromkeys(("cuts", "checksum", "dtype", "vocab_checksum"), str),
    **dict.fromkeys(("bytes", "tokens", "unknown", "n_document"), COUNTS),
    "parts": dict.fromkeys(SPLITS, list),
}


@dataclass(frozen=True)
class Store:
    """A prepared text that stands alone: ids and document starts of each split, vocabulary."""

    folder: Path | str  # or a URL
    cache: DiskCache | None = None  # copies of a URL's blocks
    example_len = None  # only tasks have examples, whose answers are right or wrong

    @cached_property
    def files(self) -> LocalFiles | RemoteFiles:
        if isinstance(self.folder, Path):
            return LocalFiles(self.folder)
        return RemoteFiles(self.folder, self.cache)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        name = f"{self.files}/manifest.json"

        def check(content: bytes) -> dict[str, Any]:
            manifest = parse_json(name, content, MANIFEST)
            if manifest.pop("checksum") != short_hash(manifest):
                raise DataError(f"{name}: damaged: its checksum differs")
            return manifest

        return self.files.load("manifest.json", check)

    @cached_property
    def vocab(self) -> Vocabulary:
        name = f"{self.files}/vocab.json"

        def check(content: bytes) -> Vocabulary:
            if hash_bytes(content) != self.manifest["vocab_checksum"]:
                raise DataError(f"{name}: damaged: its checksum is not the manifest's")
            try:
                return load_vocabulary(content.decode())
            except DataError as error:
                raise DataError(f"{name}: {error}") from error

        return self.files.load("vocab.json", check)

    def verify_all(self) -> None:
        """Compare all files with their checksums; DataError for the first that differs."""
        _ = self.vocab
        for split in SPLITS:
            self.ids(split)

    def find_damage(self, data_dir: Path | None, whole: bool = False) -> str | None:
        """Return a description of the first damage of a store on disk, or None.

        The manifest and sizes are always compared; contents with `whole`, or if any file has been
        changed or copied since the last comparison, which `data_dir` remembers.
        """
        try:
            paths = [self.folder / name for name in ("manifest.json", "vocab.json")]
            for split in SPLITS:
                for name, n_byte in self.text(split).list_files():
                    paths.append(path := self.folder / name)
                    if (size := path.stat().st_size) != n_byte:
                        raise DataError(f"{path}: damaged: {size:,} bytes of {n_byte:,}")
            if whole:
                self.verify_all()
            elif data_dir:
                cache_result("whole", paths, data_dir, self.verify_all)
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for two texts only if a model gets the same tokens from them."""
        names = ("text", "cuts") if "text" in self.manifest else ("parts",)
        text = {name: self.manifest[name] for name in (*names, "documents", "tokens")}
        return short_hash(text | {"vocab": self.vocab.fingerprint})

    def ids(self, split: str) -> np.ndarray:
        """Return the tokens of a split, of one part memory-mapped, after verifying all of them."""
        return self.text(split).whole

    def text(self, split: str) -> PartedText:
        """Return the tokens of a split, with the positions where its documents begin."""
        parts = [Part(*fields) for fields in self.manifest["parts"][split]]
        dtype = np.dtype(self.manifest["dtype"])
        return PartedText(self.files, split, parts, dtype, self.manifest["n_token"])

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


def open_store(path: str, whole: bool = False, cache: DiskCache | None = None) -> Store:
    """Open a store that prepare wrote, in a folder or at a URL; DataError if it is damaged."""
    if URL.match(path):
        return Store(path.rstrip("/"), cache)
    store = Store(Path(path).expanduser())
    if problem := store.find_damage(None, whole):
        raise DataError(f"data.store: {problem}; copy it again, or write it with prepare --out")
    return store


@dataclass(frozen=True)
class EvalText:
    """A text to score, with the number of bytes of its tokens."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None  # mean over the whole text; None if tokens have no bytes

    @staticmethod
    def from_store(name: str, store: Store | TaskStore, split: str) -> "EvalText":
        size = store.bytes_per_token(split)
        return EvalText(name, split, store.fingerprint, store.text(split), store.vocab, size)

    def count_bytes(self, position_K: np.ndarray) -> float | None:
        """Return the number of bytes of some tokens: from the mean if sizes are not known."""
        if self.bytes_per_token is None:
            return None
        if self.token_bytes is None:
            return len(position_K) * self.bytes_per_token
        return float(self.token_bytes[self.tokens.ids_at(position_K)].sum())

    def unknown_share(self, n_token: int) -> float:
        """Return the share of the first tokens that stand for text the vocabulary does not know."""
        if self.vocab.unknown is None:
            return 0.0
        starts = range(0, n_token, COUNTED)
        places = (np.arange(start, min(start + COUNTED, n_token)) for start in starts)
        counts = (self.tokens.ids_at(place) == self.vocab.unknown for place in places)
        return sum(int(each.sum()) for each in counts) / n_token

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        return self.vocab.token_bytes()
