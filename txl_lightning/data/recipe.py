"""The settings of a text, and how it is prepared: encoded once, into a folder of ids."""

import hashlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import DataError, StorageError, convert_fields, print_notice, require
from ..files import create_folder, sha256_file, short_hash, write_json
from ..progress import Advance, show_progress
from .corpora import CORPORA
from .documents import SPLITS, DocumentUnit, FileSlice, cached_by_mtime, split_documents
from .store import FILES, EvalText, Store
from .tasks import TASKS, TaskConfig, TaskStore
from .tokens import hash_blocks
from .user_files import has_documents, split_user_files
from .vocab import BUILT_IN, SubwordOptions, Vocabulary, WordOptions, build_vocabulary

CorpusName = Literal[*CORPORA, *TASKS]
FRACTIONS = ("python_source", "tiny_shakespeare")
"""Corpora without splits of their own."""
VERSION = 5
"""Version of the files in a prepared folder."""
LARGE = 10_000_000
"""Bytes of text from which a message is printed, because encoding takes long."""


@dataclass(frozen=True)
class DataConfig:
    """Settings of a text and its tokenization.

    Args:
        corpus: Text by name: downloaded once; python_source is the running Python's library, and
            sort, copy and recall are generated.
        path: Your own text instead of the corpus: a file, a folder or archive of documents,
            JSON lines, or three of these for train, val and test.
        vocab: bytes, characters, words, bpe, unigram, or a file: a saved vocab.json, a Hugging Face
            tokenizer.json, or words, one per line; default the corpus's own, or bytes.
        document_unit: Unit of documents, which attend to nothing before them; default the
            corpus's own, the files of a folder or archive, otherwise none.
        split: Fractions for train, val and test if the text is not already split; they add up to 1.
        words: Rules of words; default those of the corpus's published results.
        subwords: Training of subwords.
        task: Sizes of sort, copy and recall.
        data_dir: Data directory; default $TXL_DATA, or data.
    """

    corpus: CorpusName = "python_source"
    path: str | list[str] | None = None
    vocab: str | None = None
    document_unit: Literal["none", "files", "lines"] | None = None
    split: tuple[float, float, float] = (0.9, 0.05, 0.05)
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    task: TaskConfig = TaskConfig()
    data_dir: str | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        adds_up = len(self.split) == 3 and min(self.split) >= 0 and abs(sum(self.split) - 1) < 1e-6
        require(adds_up, "split", list(self.split), "three fractions that add up to 1")
        is_split = len(self.paths) == len(SPLITS) or not (self.paths or self.corpus in FRACTIONS)
        expected = f"the default, because {self.name} has splits of its own"
        require(not is_split or self.split == DataConfig.split, "split", list(self.split), expected)

    def list_unused(self) -> dict[str, str]:
        """Return settings that have no effect on this text, and why."""
        if self.is_task:
            names = ("vocab", "document_unit", "words", "subwords")
            reasons = dict.fromkeys(names, f"{self.corpus} is a task")
        else:
            reasons = {"task": f"{self.name} is not a task"}
            # A vocabulary's file may list words.
            for name, users in {"words": ("words",), "subwords": ("bpe", "unigram")}.items():
                if self.vocab_name in BUILT_IN.keys() - users:
                    reasons[name] = f"the vocabulary is {self.vocab_name}"
        filled = replace(self, words=self.words.fill())
        default = DataConfig(words=WordOptions().fill())
        changed = [name for name in reasons if getattr(filled, name) != getattr(default, name)]
        return {name: reasons[name] for name in changed}

    @property
    def is_task(self) -> bool:
        return self.path is None and self.corpus in TASKS

    @property
    def vocab_name(self) -> str:
        return self.vocab or ("bytes" if self.paths else CORPORA[self.corpus].vocab)

    @property
    def name(self) -> str:
        return self.corpus if self.path is None else ", ".join(self.paths)

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path or ())

    @property
    def data_folder(self) -> Path:
        return Path(self.data_dir or os.environ.get("TXL_DATA") or "data").expanduser()

    def recipe(self) -> "Recipe":
        """Find or download the text, and return the recipe of its store."""
        if paths := [Path(path).expanduser() for path in self.paths]:
            splits = split_user_files(paths, self.split, self.data_folder)
            unit = "files" if any(map(has_documents, paths)) else None
            words = WordOptions()
        else:
            corpus = CORPORA[self.corpus]
            splits = corpus.find_splits(self.data_folder, self.split)
            unit, words = corpus.document_unit, corpus.words
        unit = self.document_unit or unit
        unit = None if unit == "none" else unit
        return Recipe(splits, self.vocab_name, unit, self.words.fill(words), self.subwords)

    def open(self, whole: bool = False) -> Store | TaskStore:
        """Return the prepared text or a task; DataError if it is unavailable or cannot be encoded.

        With `whole`, all prepared files are compared with their checksums.
        """
        for name, reason in self.list_unused().items():
            warnings.warn(f"data.{name}: no effect, because {reason}", stacklevel=2)
        if self.is_task:
            return TaskStore(self.corpus, self.task)
        return prepare_text(self.recipe(), self.data_folder, whole)

    def encode_split(self, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
        """Encode a split with a given vocabulary in a permanent folder; DataError as in `open`."""
        recipe, saved = self.recipe(), folder / "vocab.json"
        nonempty = [name for name, parts in recipe.splits.items() if any(p.n_byte for p in parts)]
        if split not in nonempty:
            raise DataError(f"{self.name}: its {split} text is empty; give another split")
        saved.write_text(vocab.to_json())
        splits = {name: recipe.splits[name] if name == split else [] for name in SPLITS}
        store = prepare_text(replace(recipe, splits=splits, vocab=str(saved)), folder)
        # The hash of the text alone: it shows that vocabularies are compared on the same text.
        fingerprint = store.manifest["text"][:16]
        text = replace(EvalText.from_store(self.name, store, split), fingerprint=fingerprint)
        return text if len(nonempty) > 1 else replace(text, split="whole text")


@dataclass(frozen=True)
class Recipe:
    """All that tokens depend on; without a document unit each split is one document."""

    splits: Mapping[str, Sequence[FileSlice]]
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()


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
            create_folder(folder, build, lambda: not Store(folder).find_damage(data_dir, whole))
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


def describe_recipe(recipe: Recipe, sha256: str) -> dict[str, Any]:
    """Return a recipe as plain values, with the hash of its text."""
    sizes = {name: [part.n_byte for part in recipe.splits[name]] for name in SPLITS}
    description: dict[str, Any] = {
        "version": VERSION,
        "text": sha256,
        "vocab": recipe.vocab,
        "documents": recipe.document_unit,
        "bytes": {name: sum(sizes[name]) for name in SPLITS},
        # A line or a document also ends with its file.
        "cuts": short_hash(sizes),
    }
    match recipe.vocab:
        case "words":
            description["words"] = asdict(recipe.words)
        case "bpe" | "unigram":
            description["subwords"] = asdict(recipe.subwords)
        case name if name not in BUILT_IN:
            vocab = sha256_file(Path(name)) if Path(name).is_file() else name
            description |= {"vocab": vocab, "words": asdict(recipe.words)}
    return description


def build_store(folder: Path, recipe: Recipe, description: dict[str, Any]) -> None:
    """Write the ids of every split, the vocabulary and the manifest into a folder."""
    total = sum(description["bytes"].values())
    if total > LARGE and not sys.stderr.isatty():
        print_notice(f"encoding {total:,} bytes as {recipe.vocab}")
    with show_progress("vocabulary", None) as advance:
        slices = [
            part for name in BUILT_IN.get(recipe.vocab, ("train",)) for part in recipe.splits[name]
        ]
        watched = [replace(part, on_read=advance) for part in slices]
        vocab = build_vocabulary(recipe.vocab, watched, recipe.words, recipe.subwords)
    (folder / "vocab.json").write_text(vocab.to_json(), encoding="utf-8")
    with show_progress("encoding", total) as advance:
        counts = {name: write_ids(folder, name, vocab, recipe, advance) for name in SPLITS}
    manifest = description | {"dtype": vocab.dtype.name, "n_token": vocab.n_token}
    manifest["files"] = {
        name: {"bytes": (folder / name).stat().st_size, "blocks": hash_blocks(folder / name)}
        for name in FILES
    }
    for field in ("tokens", "unknown", "n_document"):
        manifest[field] = {name: counts[name][field] for name in SPLITS}
    write_json(manifest | {"checksum": short_hash(manifest)}, folder / "manifest.json")


def write_ids(
    folder: Path, split: str, vocab: Vocabulary, recipe: Recipe, advance: Advance
) -> dict[str, int]:
    """Write the ids of a split and its document positions; count all and unknown tokens."""
    unit, n_token, n_unknown = recipe.document_unit, 0, 0
    watched = (replace(part, on_read=advance) for part in recipe.splits[split])
    with (
        (folder / f"{split}.ids").open("wb") as ids_file,
        (folder / f"{split}.starts").open("wb") as starts_file,
    ):
        if unit is None:
            starts_file.write(bytes(8))
        for document in split_documents(watched, unit or "files"):
            if unit is not None:
                starts_file.write(n_token.to_bytes(8, sys.byteorder))
            for ids in vocab.encode(document):
                ids_file.write(ids.astype(vocab.dtype, copy=False))
                n_token += len(ids)
                if vocab.unknown is not None:
                    n_unknown += int(np.count_nonzero(ids == vocab.unknown))
        n_document = starts_file.tell() // 8
    return {"tokens": n_token, "unknown": n_unknown, "n_document": n_document}
