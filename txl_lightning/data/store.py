"""Tokens on disk, memory-mapped, with a manifest that says what they are."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..errors import StorageError
from .fingerprint import short, text_digest
from .spans import SPLITS, Document, DocumentUnit, Span, documents
from .tokens import Text
from .vocab import BUILT_IN, SubwordOptions, Vocabulary, WordOptions, fingerprint, load, named
from .watch import Watch, watching

VERSION = 4
STARTS_KEPT = 1 << 16
LARGE = 10_000_000
"""Bytes of text that take long enough for a line to be said about it."""


@dataclass(frozen=True)
class Recipe:
    """All that the tokens of a text depend on."""

    splits: Mapping[str, Sequence[Span]]
    vocab: str = "bytes"
    documents: DocumentUnit | None = None
    """What begins a new document; left out, a split is one."""
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()

    def vocabulary(self) -> Vocabulary:
        """Built from the splits that this kind is built from, or read from a file."""
        spans = [span for name in BUILT_IN.get(self.vocab, ()) for span in self.splits[name]]
        with watching("vocabulary", None) as watch:
            return named(self.vocab, lambda: watch(spans), self.words, self.subwords)

    def units(self, split: str) -> Iterator[Document]:
        """What is encoded on its own."""
        return documents(self.splits[split], self.documents or "files")

    def describe(self, root: Path) -> dict[str, Any]:
        """The recipe in plain values; the text by its digest."""
        options: dict[str, Any] = {"version": VERSION, "text": text_digest(self.splits, root)}
        options |= {"vocab": self.vocab, "documents": self.documents}
        sizes = {name: [span.stop - span.start for span in self.splits[name]] for name in SPLITS}
        options["bytes"] = {name: sum(sizes[name]) for name in SPLITS}
        # A line or a document also ends where a file does.
        options["cuts"] = short(sizes)
        match self.vocab:
            case "words":
                options["words"] = asdict(self.words)
            case "bpe" | "unigram":
                options["subwords"] = asdict(self.subwords)
            case name if name not in BUILT_IN:
                options |= {"vocab": file_digest(name), "words": asdict(self.words)}
        return options


@dataclass(frozen=True)
class Store:
    """A prepared text: for each split its ids, and where its documents begin."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The recipe, and what came out."""
        return json.loads((self.folder / "manifest.json").read_text())

    @cached_property
    def vocab(self) -> Vocabulary:
        """What turns the text into ids and back."""
        return load((self.folder / "vocab.json").read_text())

    def ids(self, split: str) -> np.ndarray:
        """The tokens of a split, read from disk when they are looked at."""
        return mapped(self.folder / f"{split}.ids", self.manifest["dtype"])

    def text(self, split: str) -> Text:
        """The tokens of a split, with the place where each of its documents begins."""
        return Text(self.ids(split), mapped(self.folder / f"{split}.starts", "int64"))

    def bytes_per_token(self, split: str) -> float:
        """Bytes of text that a token stands for, on average.

        A symbol that begins every document is not among them: it is not scored.
        """
        of_split = {name: self.manifest[name][split] for name in ("bytes", "tokens", "n_document")}
        tokens = of_split["tokens"] - self.vocab.n_start * of_split["n_document"]
        return of_split["bytes"] / max(tokens, 1)

    @cached_property
    def fingerprint(self) -> str:
        """A name that two texts share only if a model is fed the same tokens by both."""
        said = {name: self.manifest[name] for name in ("text", "cuts", "documents", "tokens")}
        return short(said | {"vocab": fingerprint(self.vocab)})


def prepare(recipe: Recipe, root: Path) -> Store:
    """The store of a text under `root`, built when it is not there yet.

    It is built aside and renamed, so that it is either whole or absent; of several processes one
    builds and the others wait. Where it is whole, nothing needs to be written.

    Raises:
        DataError: the text cannot be encoded.
        StorageError: nothing can be written under `root`.
    """
    options = recipe.describe(root)
    folder = root / "prepared" / short(options)
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    build(folder, recipe, options)
        except OSError as error:
            raise StorageError(f"data.root: {root} cannot be written ({error.strerror})") from error
    return Store(folder)


def build(folder: Path, recipe: Recipe, options: dict[str, Any]) -> None:
    """Encode every split into `folder`; whoever died while building it left something behind."""
    for left in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(left)
    total = sum(options["bytes"].values())
    if total > LARGE and not sys.stderr.isatty():
        print(f"encoding {total:,} bytes as {recipe.vocab}", file=sys.stderr)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.building-"))
    try:
        vocab = recipe.vocabulary()
        dtype = np.min_scalar_type(max(vocab.n_token - 1, 0))
        with watching("encoding", total) as watch:
            counts = {name: write(aside, name, vocab, recipe, dtype, watch) for name in SPLITS}
        (aside / "vocab.json").write_text(vocab.to_json())
        manifest = options | {"dtype": dtype.name, "n_token": vocab.n_token}
        for place, what in enumerate(("tokens", "unknown", "n_document")):
            manifest[what] = {name: counts[name][place] for name in SPLITS}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1))
        aside.chmod(0o755)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write(
    folder: Path, split: str, vocab: Vocabulary, recipe: Recipe, dtype: np.dtype, watch: Watch
) -> tuple[int, int, int]:
    """The ids of a split and where its documents begin, streamed through.

    Returns how many ids there are, how many of them stand for what the vocabulary lacks, and how
    many documents.
    """
    count, unknown, starts = 0, 0, array("q", [] if recipe.documents else [0])
    with (
        (folder / f"{split}.ids").open("wb") as ids_file,
        (folder / f"{split}.starts").open("wb") as starts_file,
    ):
        for document in watch(recipe.units(split)):
            if recipe.documents:
                starts.append(count)
            for ids in vocab.encode(document):
                ids_file.write(ids.astype(dtype, copy=False))
                count += len(ids)
                unknown += int(np.count_nonzero(ids == vocab.unknown))
            if len(starts) > STARTS_KEPT:
                starts.tofile(starts_file)
                starts = array("q")
        starts.tofile(starts_file)
        n_document = starts_file.tell() // starts.itemsize
    return count, unknown, n_document


def mapped(path: Path, dtype: str) -> np.ndarray:
    """An array on disk; an empty file cannot be mapped."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def file_digest(name: str) -> str:
    """What a vocabulary's file holds."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return name
