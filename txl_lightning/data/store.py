"""A prepared text on disk, memory-mapped, with a manifest; and texts to score."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import read_json, short_hash
from .documents import SPLITS, cached_by_mtime
from .tasks import TaskStore
from .tokens import CheckedIds, Text, Tokens, map_array, verify_blocks
from .vocab import Vocabulary, load_vocabulary

FILES = ("vocab.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("ids", "starts")))
COUNTS = dict.fromkeys(SPLITS, int)
MANIFEST = {
    **dict.fromkeys(("text", "cuts", "checksum"), str),
    **dict.fromkeys(("bytes", "tokens", "unknown", "n_document"), COUNTS),
    "files": {name: {"bytes": int, "blocks": list} for name in FILES},
}


@dataclass(frozen=True)
class Store:
    """A prepared text: for each split its ids, and the positions where documents begin."""

    folder: Path
    example_len = None  # only tasks have examples, whose answers are right or wrong

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Metadata of the text and its files; DataError if damaged."""
        path = self.folder / "manifest.json"
        manifest = read_json(path, MANIFEST)
        if manifest.pop("checksum") != short_hash(manifest):
            raise DataError(f"{path}: damaged: its checksum differs")
        return manifest

    @cached_property
    def vocab(self) -> Vocabulary:
        path = self.verify("vocab.json")
        try:
            return load_vocabulary(path.read_text(encoding="utf-8"))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def verify(self, name: str) -> Path:
        """Return the path of a file; DataError if any of it has changed."""
        verify_blocks(path := self.folder / name, self.manifest["files"][name]["blocks"])
        return path

    def verify_all(self) -> None:
        for name in FILES:
            self.verify(name)

    def find_damage(self, data_dir: Path, whole: bool = False) -> str | None:
        """Return a description of the first damage, or None.

        The manifest and sizes are always compared; contents with `whole`, or if any file has been
        changed or copied since the last comparison.
        """
        paths = [self.folder / name for name in ("manifest.json", *FILES)]
        try:
            for path in paths[1:]:
                n_byte = self.manifest["files"][path.name]["bytes"]
                if (size := path.stat().st_size) != n_byte:
                    raise DataError(f"{path}: damaged: {size:,} bytes of {n_byte:,}")
            if whole:
                self.verify_all()
            else:
                cached_by_mtime("whole", paths, data_dir, self.verify_all)
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for two texts only if a model gets the same tokens from them."""
        text = {name: self.manifest[name] for name in ("text", "cuts", "documents", "tokens")}
        return short_hash(text | {"vocab": self.vocab.fingerprint})

    def ids(self, split: str) -> np.ndarray:
        """Return the tokens of a split, memory-mapped, after verifying all of them."""
        self.verify(f"{split}.ids")
        return self.text(split).ids.whole

    def text(self, split: str) -> Text:
        """Return the tokens of a split, with the positions where its documents begin."""
        name, vocab = f"{split}.ids", self.vocab
        checksums = self.manifest["files"][name]["blocks"]
        ids = CheckedIds(self.folder / name, vocab.dtype, checksums, vocab.n_token)
        return Text(ids, map_array(self.verify(f"{split}.starts"), "int64"))

    def describe(self) -> str:
        """Return the sizes of text and vocabulary in one line."""
        names = {"n_document": "documents"} if self.manifest["documents"] else {}
        names |= {"bytes": "bytes", "tokens": "tokens"}
        counts = [f"{sum(self.manifest[key].values()):,} {names[key]}" for key in names]
        splits = ", ".join(f"{self.manifest['tokens'][split]:,} {split}" for split in SPLITS)
        vocab = f"vocabulary of {self.vocab.n_token:,} {self.vocab.unit}s"
        return f"{', '.join(counts)} ({splits}), {vocab}"

    def bytes_per_token(self, split: str) -> float:
        """Return the mean bytes per scored token, without the first symbol of each document."""
        n_start = self.vocab.n_start * self.manifest["n_document"][split]
        n_scored = max(self.manifest["tokens"][split] - n_start, 1)
        return self.manifest["bytes"][split] / n_scored


@dataclass(frozen=True)
class EvalText:
    """A text to score, with the number of bytes of its tokens."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None
    """Mean over the whole text; None if tokens have no bytes."""

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

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        return self.vocab.token_bytes()
