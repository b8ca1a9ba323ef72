"""Where a text comes from: your own files, a corpus, files of ids, a store, or a generated task.

Each is a class that has the settings it uses as its fields, and one `open`. `DataConfig` has the
settings of all of them; its `source` is the one that is meant. Nothing else asks for the kind.
"""

import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Literal

from ..errors import DataError, convert_fields, invalid, require
from ..files import expand_home, require_local_path
from . import text_files
from .corpora import CORPORA, Corpus
from .encoding import Encoding, OwnLength, encode_split, prepare_folder, prepare_text
from .id_files import IDS, IdEncoding, IdOptions, split_id_files
from .json_lines import LineFormat
from .store import EvalText, Store, open_store
from .tasks import TASKS, TaskConfig, TaskStore
from .text_files import FRACTIONS, SPLITS, DocumentUnit
from .vocab.base import Bytes, Vocabulary
from .vocab.kinds import BUILT_IN, require_vocabulary
from .vocab.subwords import SubwordOptions
from .vocab.words import WordOptions

CorpusName = Literal[*CORPORA, *TASKS]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """The place a text comes from; its fields are the settings that have an effect on it."""

    reason: ClassVar[str]  # why other settings have no effect, after the name of the text
    has_splits: ClassVar[bool] = True  # of its own, whatever the fractions are
    data_folder: Path

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the text in results."""

    @abstractmethod
    def open(self, whole: bool = False, workers: int = 1) -> Store | TaskStore:
        """Return the prepared text or a task; DataError if it is unavailable or cannot be encoded.
        `whole`: all prepared files are compared with their checksums."""

    def list_unused(self) -> dict[str, str]:
        """Return the fields that have no effect together with the others, and why."""
        return {}

    def measure_own(self) -> OwnLength:
        """Return the length of a text of the user's own; no bytes for others, and for a text that
        cannot be read."""
        return OwnLength(0)

    def encode(self, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
        """Return a split in the ids of a vocabulary, which are written to a permanent folder."""
        store = self.open()
        theirs = store.vocab.fingerprint
        ours = vocab.fingerprint
        if theirs != ours:
            raise DataError(f"{self.name}: vocabulary {theirs}; the checkpoint's is {ours}")
        return EvalText.from_store(self.name, store, split)


@dataclass(frozen=True, kw_only=True)
class EncodedSource(Source):
    """A text, or ids, of which a store is made."""

    key: ClassVar[str]  # the field with its paths: one, or three for train, val and test
    split: tuple[float, ...]
    vocab: str | None

    @property
    def given(self) -> list[str]:
        return list_given(getattr(self, self.key))

    @property
    def name(self) -> str:
        return ", ".join(self.given)

    @property
    def has_splits(self) -> bool:
        return len(self.given) == len(SPLITS)

    @property
    def paths(self) -> list[Path]:
        return [Path(expand_home(path)) for path in self.given]

    @abstractmethod
    def find_encoding(self, any_bytes: bool = False) -> Encoding:
        """Find or download the text, and return its encoding. `any_bytes`: files of the user that
        are not text are read, too."""

    def open(self, whole: bool = False, workers: int = 1) -> Store:
        return prepare_text(self.find_encoding(), self.data_folder, whole, workers)

    def write_store(self, out: Path, whole: bool = False, workers: int = 1) -> Store:
        """Return the store in a folder of the user, written if absent."""
        return prepare_folder(self.find_encoding(), out, self.data_folder, workers, whole)

    def encode(self, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
        encoding = self.find_encoding(any_bytes=isinstance(vocab, Bytes))
        return encode_split(encoding, self.name, split, vocab, folder)


@dataclass(frozen=True, kw_only=True)
class TextSource(EncodedSource):
    """A text, of which a vocabulary can be made."""

    reason = "is a text"
    document_unit: DocumentUnit | Literal["none"] | None
    words: WordOptions
    subwords: SubwordOptions

    @property
    def vocab_name(self) -> str:
        return "bytes" if self.vocab is None else self.vocab

    def list_unused(self) -> dict[str, str]:
        users = {"words": {"words"}, "subwords": {"bpe", "unigram"}}
        reason = f"the vocabulary is {self.vocab_name}"
        # A vocabulary's file may list words.
        return {name: reason for name in users if self.vocab_name in BUILT_IN.keys() - users[name]}

    def choose_unit(self, own: DocumentUnit | None) -> DocumentUnit | None:
        """Return the unit of documents that is given, or else the text's own."""
        unit = self.document_unit or own
        return None if unit == "none" else unit


@dataclass(frozen=True, kw_only=True)
class FileSource(TextSource, LineFormat):
    """Your own text: a file, a folder or an archive, or three of these."""

    key = "path"
    path: str | list[str]

    def __post_init__(self) -> None:
        is_used = self.id_key is None or self.document_unit in (None, "files")
        require(is_used, "id_key", self.id_key, f"null with document_unit {self.document_unit}")

    def measure_own(self) -> OwnLength:
        require_vocabulary(self.vocab_name)
        how = self.data_folder, self.vocab == "bytes", self
        return OwnLength(sum(text_files.count_bytes(path, *how) for path in self.paths))

    def find_encoding(self, any_bytes: bool = False) -> Encoding:
        require_vocabulary(self.vocab_name)
        how = self.data_folder, any_bytes or self.vocab == "bytes", self
        splits = text_files.split_user_files(self.paths, self.split, *how)
        has_units = any(text_files.has_documents(path, how[0], self) for path in self.paths)
        unit = self.choose_unit("files" if has_units or self.text_key or self.id_key else None)
        return Encoding(splits, self.vocab_name, unit, self.words, self.subwords, self)


@dataclass(frozen=True, kw_only=True)
class CorpusSource(TextSource):
    """A corpus by name, with the splits, vocabulary and documents of its published results."""

    corpus: str

    @property
    def name(self) -> str:
        return self.corpus

    @property
    def has_splits(self) -> bool:
        return self.entry.has_splits

    @property
    def vocab_name(self) -> str:
        return self.entry.vocab if self.vocab is None else self.vocab

    @property
    def entry(self) -> Corpus:
        return CORPORA[self.corpus]

    def find_encoding(self, any_bytes: bool = False) -> Encoding:
        require_vocabulary(self.vocab_name)
        splits = self.entry.find_splits(self.data_folder, self.split)
        unit = self.choose_unit(self.entry.document_unit)
        words = self.words.fill(self.entry.words)
        return Encoding(splits, self.vocab_name, unit, words, self.subwords)


@dataclass(frozen=True, kw_only=True)
class IdSource(EncodedSource):
    """Token ids of another program: one file, or three."""

    reason = "has ids"
    key = "ids"
    ids: str | list[str]
    id_options: IdOptions

    def __post_init__(self) -> None:
        is_file = self.vocab not in (*BUILT_IN, "")
        require(is_file, "vocab", self.vocab, "the tokenizer.json of the ids, or null")

    def measure_own(self) -> OwnLength:
        n_token = sum(part.high - part.low for part in self.find_encoding().slices)
        return OwnLength(None, n_token, self.id_options.n_token)

    def find_encoding(self, any_bytes: bool = False) -> IdEncoding:
        splits = split_id_files(self.paths, self.id_options, self.split)
        has_units = any(part.has_documents for parts in splits.values() for part in parts)
        unit = "files" if has_units else None
        return IdEncoding(splits, self.vocab or IDS, unit, id_options=self.id_options)


@dataclass(frozen=True, kw_only=True)
class StoreSource(Source):
    """A store that `prepare --out` wrote, in a folder or at a URL."""

    reason = "is prepared"
    store: str

    @property
    def name(self) -> str:
        return self.store

    def open(self, whole: bool = False, workers: int = 1) -> Store:
        return open_store(self.store, self.data_folder, whole)

    def measure_own(self) -> OwnLength:
        store = self.open()
        n_token = sum(store.manifest["tokens"].values())
        return OwnLength(sum(store.n_byte.values()) or None, n_token, store.vocab.n_token)


@dataclass(frozen=True, kw_only=True)
class TaskSource(Source):
    """Generated examples."""

    reason = "is a task"
    corpus: str
    task: TaskConfig

    @property
    def name(self) -> str:
        return self.corpus

    def open(self, whole: bool = False, workers: int = 1) -> TaskStore:
        return TaskStore(self.corpus, self.task)


SOURCES = {"path": FileSource, "ids": IdSource, "store": StoreSource}
"""Sources by the setting that names the text; without one of these it is the corpus."""
ALWAYS = {"corpus", *SOURCES, "split", "data_dir"}
"""Settings that replace others, are refused if they cannot be used, or say where files are."""


@dataclass(frozen=True)
class DataConfig(LineFormat):
    """Settings of a text and its tokenization.

    Args:
        corpus: Text by name: downloaded once; python_source is the running Python's library, and
            sort, copy and recall are generated.
        path: Your own text instead of the corpus: a file, a folder or archive of documents,
            JSON lines, or three of these for train, val and test.
        ids: Token ids instead of a text: .npy, flat .bin, Megatron's .bin beside its .idx,
            datatrove's .ds; one file, or three for train, val and test.
        store: A store made by prepare --out, instead of a text: a folder, or a URL (s3://...) from
            which it is copied to data_dir once.
        vocab: bytes, characters, words, bpe, unigram, or a file: a saved vocab.json, a Hugging Face
            tokenizer.json, or words, one per line; default the corpus's own, or bytes.
        document_unit: Unit of documents, which attend to nothing before them; default the
            corpus's own, the files of a folder or archive, otherwise none.
        split: Fractions for train, val and test if the text is not already split; they add up to 1.
        words: Rules of words; default as in the corpus's published results.
        subwords: Training of subwords.
        task: Sizes of sort, copy and recall.
        id_options: How files of ids are read.
        data_dir: Data directory; default $TXL_DATA, or data.
    """

    corpus: CorpusName = "python_source"
    path: str | list[str] | None = None
    ids: str | list[str] | None = None
    store: str | None = None
    vocab: str | None = None
    document_unit: Literal["none", "files", "lines"] | None = None
    split: tuple[float, float, float] = FRACTIONS
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    task: TaskConfig = TaskConfig()
    id_options: IdOptions = IdOptions()
    data_dir: str | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        for name in ("data_dir", "path", "ids"):
            for path in list_given(getattr(self, name)):
                require_local_path(name, path)
                require(path != "-", name, path, "a file; or prepare - --out STORE, and data.store")
        first, *others = [name for name in SOURCES if getattr(self, name) is not None] or ["corpus"]
        for name in others:
            raise invalid(name, getattr(self, name), f"null with {first}")
        adds_up = len(self.split) == 3 and min(self.split) >= 0 and abs(sum(self.split) - 1) < 1e-6
        require(adds_up, "split", list(self.split), "three fractions that add up to 1")
        is_used = not self.source.has_splits or self.split == FRACTIONS
        expected = f"the default, because {self.name} has splits of its own"
        require(is_used, "split", list(self.split), expected)

    @property
    def source(self) -> Source:
        """The place the text comes from, with the settings that it uses."""
        own = TaskSource if self.corpus in TASKS else CorpusSource
        kind = next((SOURCES[name] for name in SOURCES if getattr(self, name) is not None), own)
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def data_folder(self) -> Path:
        return Path(expand_home(self.data_dir or os.environ.get("TXL_DATA") or "data"))

    def uses(self, name: str) -> bool:
        """Return True if the source of the text has this setting."""
        return any(field.name == name for field in fields(self.source))

    def list_unused(self) -> dict[str, str]:
        """Return settings that are given and have no effect on this text, and why."""
        source = self.source
        given = {f.name for f in fields(DataConfig) if getattr(self, f.name) != f.default}
        others = {name for name in given - ALWAYS if not self.uses(name)}
        reasons = dict.fromkeys(sorted(others), f"{source.name} {source.reason}")
        reasons |= source.list_unused()
        return {name: reason for name, reason in reasons.items() if name in given}

    def open_text(self, whole: bool = False, workers: int = 1) -> Store | TaskStore:
        """Open the source, and warn of settings that have no effect on it."""
        for name, reason in self.list_unused().items():
            warnings.warn(f"data.{name}: no effect, because {reason}", stacklevel=2)
        return self.source.open(whole, workers)

    def put_all_in_test(self) -> "DataConfig":
        """Return the settings with which a text without splits of its own is all test."""
        return self if self.source.has_splits else replace(self, split=(0.0, 0.0, 1.0))


def list_given(value: str | list[str] | None) -> list[str]:
    """Return the paths that a setting gives: none, one or several."""
    return [value] if isinstance(value, str) else list(value or [])
