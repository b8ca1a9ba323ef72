"""Tokens on disk, memory-mapped, with a manifest that says what they are."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..files import create_folder, sha256_file
from .documents import (
    SPLITS,
    Advance,
    DocumentUnit,
    FileSlice,
    sha256_text,
    short_hash,
    show_progress,
    split_documents,
)
from .tasks import TaskStore
from .tokens import Text, Tokens
from .vocab import (
    BUILT_IN,
    SubwordOptions,
    Vocabulary,
    WordOptions,
    build_vocabulary,
    load_vocabulary,
)

VERSION = 4
LARGE = 10_000_000  # bytes of text that take long enough to be told of


@dataclass(frozen=True)
class Recipe:
    """Everything that tokens depend on; without a document unit each split is a document."""

    splits: Mapping[str, Sequence[FileSlice]]
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()

    def build_vocabulary(self) -> Vocabulary:
        slices = [part for name in BUILT_IN.get(self.vocab, ()) for part in self.splits[name]]
        with show_progress("vocabulary", None) as advance:
            watched = [replace(part, on_read=advance) for part in slices]
            return build_vocabulary(self.vocab, watched, self.words, self.subwords)

    def documents(self, split: str, advance: Advance) -> Iterator[FileSlice]:
        """Yield the pieces that are encoded alone; `advance` gets the bytes as they are read."""
        watched = (replace(part, on_read=advance) for part in self.splits[split])
        return split_documents(watched, self.document_unit or "files")

    def describe(self, data_dir: Path) -> dict[str, Any]:
        """Return the recipe in plain values, the text by its checksum."""
        sizes = {name: [part.n_byte for part in self.splits[name]] for name in SPLITS}
        described: dict[str, Any] = {
            "version": VERSION,
            "text": sha256_text(self.splits, data_dir),
            "vocab": self.vocab,
            "documents": self.document_unit,
            "bytes": {name: sum(sizes[name]) for name in SPLITS},
            # A line or a document also ends where a file does.
            "cuts": short_hash(sizes),
        }
        match self.vocab:
            case "words":
                described["words"] = asdict(self.words)
            case "bpe" | "unigram":
                described["subwords"] = asdict(self.subwords)
            case name if name not in BUILT_IN:
                vocab = sha256_file(Path(name)) if Path(name).is_file() else name
                described |= {"vocab": vocab, "words": asdict(self.words)}
        return described


@dataclass(frozen=True)
class Store:
    """A prepared text: for each split its ids, and where its documents begin."""

    folder: Path
    example_len = None  # a text's answers are not right or wrong, as a task's are

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text())

    @cached_property
    def vocab(self) -> Vocabulary:
        return load_vocabulary((self.folder / "vocab.json").read_text())

    @cached_property
    def fingerprint(self) -> str:
        """A hash that two texts share only if both give a model the same tokens."""
        text = {name: self.manifest[name] for name in ("text", "cuts", "documents", "tokens")}
        return short_hash(text | {"vocab": self.vocab.fingerprint})

    def ids(self, split: str) -> np.ndarray:
        """Return the tokens of a split, memory-mapped."""
        return self.text(split).ids

    def text(self, split: str) -> Text:
        """Return the tokens of a split, with the positions where its documents begin."""
        ids = map_array(self.folder / f"{split}.ids", self.manifest["dtype"])
        return Text(ids, map_array(self.folder / f"{split}.starts", "int64"))

    def bytes_per_token(self, split: str) -> float:
        """Return the mean bytes of a scored token: not the symbol that begins each document."""
        n_start = self.vocab.n_start * self.manifest["n_document"][split]
        n_scored = max(self.manifest["tokens"][split] - n_start, 1)
        return self.manifest["bytes"][split] / n_scored


@dataclass(frozen=True)
class EvalText:
    """A text that is to be scored, with the bytes that its tokens stand for."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None
    """On average in the whole text; None where tokens stand for no bytes."""

    @staticmethod
    def from_store(name: str, store: Store | TaskStore, split: str) -> "EvalText":
        size = store.bytes_per_token(split)
        return EvalText(name, split, store.fingerprint, store.text(split), store.vocab, size)

    def count_bytes(self, position_K: np.ndarray) -> float | None:
        """Return the bytes of some tokens: of average ones, where each one's are not known."""
        if self.bytes_per_token is None:
            return None
        if self.token_bytes is None:
            return len(position_K) * self.bytes_per_token
        return float(self.token_bytes[self.tokens.ids_at(position_K)].sum())

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        return self.vocab.token_bytes()


def map_array(path: Path, dtype: str) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def prepare_store(recipe: Recipe, data_dir: Path) -> Store:
    """Return the store of a text under `data_dir`, built if absent, by one process of several."""
    described = recipe.describe(data_dir)
    folder = data_dir / "prepared" / short_hash(described)
    create_folder(folder, lambda part: build_store(part, recipe, described))
    return Store(folder)


def build_store(folder: Path, recipe: Recipe, described: dict[str, Any]) -> None:
    """Write the ids of every split, the vocabulary and the manifest into a folder."""
    total = sum(described["bytes"].values())
    if total > LARGE and not sys.stderr.isatty():
        print(f"encoding {total:,} bytes as {recipe.vocab}", file=sys.stderr)
    vocab = recipe.build_vocabulary()
    with show_progress("encoding", total) as advance:
        counts = {name: encode_split(folder, name, vocab, recipe, advance) for name in SPLITS}
    (folder / "vocab.json").write_text(vocab.to_json())
    manifest = described | {"dtype": vocab.dtype.name, "n_token": vocab.n_token}
    for field in ("tokens", "unknown", "n_document"):
        manifest[field] = {name: counts[name][field] for name in SPLITS}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def encode_split(
    folder: Path, split: str, vocab: Vocabulary, recipe: Recipe, advance: Advance
) -> dict[str, int]:
    """Write the ids of a split and where its documents begin; count all and unknown tokens."""
    n_token = n_unknown = 0
    with (
        (folder / f"{split}.ids").open("wb") as ids_file,
        (folder / f"{split}.starts").open("wb") as starts_file,
    ):
        if recipe.document_unit is None:
            starts_file.write(bytes(8))
        for document in recipe.documents(split, advance):
            if recipe.document_unit is not None:
                starts_file.write(n_token.to_bytes(8, sys.byteorder))
            for ids in vocab.encode(document):
                ids_file.write(ids.astype(vocab.dtype, copy=False))
                n_token += len(ids)
                if vocab.unknown is not None:
                    n_unknown += int(np.count_nonzero(ids == vocab.unknown))
        n_document = starts_file.tell() // 8
    return {"tokens": n_token, "unknown": n_unknown, "n_document": n_document}
