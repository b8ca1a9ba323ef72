"""Tokens on disk, memory-mapped, with a manifest."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, StorageError, print_notice
from ..files import create_folder, read_json, sha256_file, write_json
from .blocks import CheckedIds, hash_blocks, map_array, verify_blocks
from .documents import (
    SPLITS,
    Advance,
    DocumentUnit,
    FileSlice,
    cached_by_mtime,
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

VERSION = 5
FILES = ("vocab.json", *(f"{split}.{kind}" for split in SPLITS for kind in ("ids", "starts")))
COUNTS = dict.fromkeys(SPLITS, int)
MANIFEST = {
    **dict.fromkeys(("text", "cuts", "checksum"), str),
    **dict.fromkeys(("bytes", "tokens", "unknown", "n_document"), COUNTS),
    "files": {name: {"bytes": int, "blocks": list} for name in FILES},
}
LARGE = 10_000_000  # bytes of text from which a message is printed, because encoding takes long


@dataclass(frozen=True)
class Recipe:
    """All settings that tokens depend on; without a document unit each split is one document."""

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
        """Yield the documents, which are encoded separately; `advance` gets the bytes read."""
        watched = (replace(part, on_read=advance) for part in self.splits[split])
        return split_documents(watched, self.document_unit or "files")

    def describe(self, data_dir: Path) -> dict[str, Any]:
        """Return the recipe as plain values, with the text's checksum."""
        sizes = {name: [part.n_byte for part in self.splits[name]] for name in SPLITS}
        description: dict[str, Any] = {
            "version": VERSION,
            "text": sha256_text(self.splits, data_dir),
            "vocab": self.vocab,
            "documents": self.document_unit,
            "bytes": {name: sum(sizes[name]) for name in SPLITS},
            # A line or a document also ends with its file.
            "cuts": short_hash(sizes),
        }
        match self.vocab:
            case "words":
                description["words"] = asdict(self.words)
            case "bpe" | "unigram":
                description["subwords"] = asdict(self.subwords)
            case name if name not in BUILT_IN:
                vocab = sha256_file(Path(name)) if Path(name).is_file() else name
                description |= {"vocab": vocab, "words": asdict(self.words)}
        return description


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

    def find_damage(self, data_dir: Path, whole: bool = False) -> str | None:
        """Return a description of the first damage, or None.

        The manifest and sizes are always compared; contents with `whole`, or if any file has been
        changed or copied since the last comparison.
        """
        try:
            for name in FILES:
                path, n_byte = self.folder / name, self.manifest["files"][name]["bytes"]
                if (size := path.stat().st_size) != n_byte:
                    raise DataError(f"{path}: damaged: {size:,} bytes of {n_byte:,}")

            def verify_all() -> None:
                for name in FILES:
                    self.verify(name)

            paths = [self.folder / name for name in ("manifest.json", *FILES)]
            verify_all() if whole else cached_by_mtime("whole", paths, data_dir, verify_all)
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
        kind = f"vocabulary of {self.vocab.n_token:,} {self.vocab.unit}s"
        return f"{', '.join(counts)} ({splits}), {kind}"

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


def prepare_store(recipe: Recipe, data_dir: Path, whole: bool = False) -> Store:
    """Return the store of a text under `data_dir`, built by one process if absent or damaged.

    With `whole`, all files are compared with their checksums.
    """
    description = recipe.describe(data_dir)
    folder = data_dir / "prepared" / short_hash(description)

    def build(part: Path) -> None:
        build_store(part, recipe, description)

    create_folder(folder, build)
    if problem := Store(folder).find_damage(data_dir, whole):
        try:
            create_folder(folder, build, lambda: not Store(folder).find_damage(data_dir, whole))
        except StorageError as error:
            raise DataError(f"{problem}; {error}") from error
        print_notice(f"warning: {problem}; the text was encoded again")
    return Store(folder)


def build_store(folder: Path, recipe: Recipe, description: dict[str, Any]) -> None:
    """Write the ids of every split, the vocabulary and the manifest into a folder."""
    total = sum(description["bytes"].values())
    if total > LARGE and not sys.stderr.isatty():
        print_notice(f"encoding {total:,} bytes as {recipe.vocab}")
    vocab = recipe.build_vocabulary()
    with show_progress("encoding", total) as advance:
        counts = {name: encode_split(folder, name, vocab, recipe, advance) for name in SPLITS}
    (folder / "vocab.json").write_text(vocab.to_json(), encoding="utf-8")
    manifest = description | {"dtype": vocab.dtype.name, "n_token": vocab.n_token}
    manifest["files"] = {
        name: {"bytes": (folder / name).stat().st_size, "blocks": hash_blocks(folder / name)}
        for name in FILES
    }
    for field in ("tokens", "unknown", "n_document"):
        manifest[field] = {name: counts[name][field] for name in SPLITS}
    write_json(manifest | {"checksum": short_hash(manifest)}, folder / "manifest.json")


def encode_split(
    folder: Path, split: str, vocab: Vocabulary, recipe: Recipe, advance: Advance
) -> dict[str, int]:
    """Write the ids of a split and its document positions; count all and unknown tokens."""
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
