"""The settings of a text."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import DataError, convert_fields, require
from ..files import local_path
from .corpora import CORPORA
from .id_files import IDS, IdOptions, split_id_files
from .recipe import Recipe, prepare_text
from .store import EvalText, Store, open_store
from .tasks import TASKS, TaskConfig, TaskStore
from .text_files import SPLITS, SUFFIXES, has_documents, has_mark, split_user_files
from .vocab.base import Bytes, Vocabulary
from .vocab.kinds import BUILT_IN
from .vocab.subwords import SubwordOptions
from .vocab.words import WordOptions

CorpusName = Literal[*CORPORA, *TASKS]
FRACTIONS = ("python_source", "tiny_shakespeare")  # corpora without splits of their own


@dataclass(frozen=True)
class DataConfig:
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
    split: tuple[float, float, float] = (0.9, 0.05, 0.05)
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    task: TaskConfig = TaskConfig()
    id_options: IdOptions = IdOptions()
    data_dir: str | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        for name in ("data_dir", "path", "ids"):
            value = getattr(self, name)
            for path in [value or ""] if isinstance(value, str | None) else value:
                local_path(name, path)
        for name in ("path", "ids", "store"):
            value = getattr(self, name)
            require(name == self.kind or value is None, name, value, f"null with {self.kind}")
        is_file = self.kind != "ids" or self.vocab not in BUILT_IN
        require(is_file, "vocab", self.vocab, "the tokenizer.json of the ids, or null")
        adds_up = len(self.split) == 3 and min(self.split) >= 0 and abs(sum(self.split) - 1) < 1e-6
        require(adds_up, "split", list(self.split), "three fractions that add up to 1")
        has_own = {"corpus": self.corpus not in FRACTIONS, "store": True}
        is_split = has_own.get(self.kind, len(self.paths) == len(SPLITS))
        expected = f"the default, because {self.name} has splits of its own"
        require(not is_split or self.split == DataConfig.split, "split", list(self.split), expected)

    def list_unused(self) -> dict[str, str]:
        """Return settings that have no effect on this text, and why."""
        names = ("vocab", "document_unit", "words", "subwords", "task", "id_options")
        reasons = {}
        if self.is_task:
            reasons = dict.fromkeys((*names[:4], "id_options"), f"{self.corpus} is a task")
        elif self.kind == "store":
            reasons = dict.fromkeys(names, f"{self.name} is prepared")
        elif self.kind == "ids":
            reasons = dict.fromkeys(names[1:5], f"{self.name} has ids")
        else:
            reasons = {"task": f"{self.name} is not a task", "id_options": f"{self.name} is text"}
            # A vocabulary's file may list words.
            for name, users in {"words": ("words",), "subwords": ("bpe", "unigram")}.items():
                if self.vocab_name in BUILT_IN.keys() - users:
                    reasons[name] = f"the vocabulary is {self.vocab_name}"
        changed = [name for name in reasons if getattr(self, name) != getattr(DataConfig, name)]
        # Options of words may be given with their defaults.
        if "words" in changed and self.words.fill() == WordOptions().fill():
            changed.remove("words")
        return {name: reasons[name] for name in changed}

    @property
    def kind(self) -> str:
        """The setting that names the text: path, ids, store, or else corpus."""
        names = ("path", "ids", "store")
        return next((name for name in names if getattr(self, name) is not None), "corpus")

    @property
    def is_task(self) -> bool:
        return self.kind == "corpus" and self.corpus in TASKS

    @property
    def vocab_name(self) -> str:
        own = {"path": "bytes", "ids": IDS}.get(self.kind)
        return self.vocab or own or CORPORA[self.corpus].vocab

    @property
    def name(self) -> str:
        return self.corpus if self.kind == "corpus" else ", ".join(self.paths)

    @property
    def paths(self) -> list[str]:
        value = () if self.kind == "corpus" else getattr(self, self.kind)
        return [value] if isinstance(value, str) else list(value)

    @property
    def data_folder(self) -> Path:
        return Path(self.data_dir or os.environ.get("TXL_DATA") or "data").expanduser()

    def make_recipe(self) -> Recipe:
        """Find or download the text, and return the recipe of its store."""
        paths = [Path(path).expanduser() for path in self.paths]
        if self.kind == "ids":
            options = self.id_options
            splits = split_id_files(paths, options, self.split)
            has_units = any(part.has_documents for parts in splits.values() for part in parts)
            unit = "files" if has_units else None
            return Recipe(splits, self.vocab_name, unit, self.words, self.subwords, options)
        if self.kind == "path":
            splits = split_user_files(paths, self.split, self.data_folder, self.vocab == "bytes")
            has_units = any(has_documents(path, self.data_folder) for path in paths)
            unit = "files" if has_units else None
            words = self.words
        else:
            corpus = CORPORA[self.corpus]
            splits = corpus.find_splits(self.data_folder, self.split)
            unit = corpus.document_unit
            words = self.words.fill(corpus.words)
        unit = self.document_unit or unit
        unit = None if unit == "none" else unit
        return Recipe(splits, self.vocab_name, unit, words, self.subwords)

    def open_text(self, whole: bool = False, workers: int | str = 1) -> Store | TaskStore:
        """Return the prepared text or a task; DataError if it is unavailable or cannot be encoded.
        `whole`: all prepared files are compared with their checksums."""
        for name, reason in self.list_unused().items():
            warnings.warn(f"data.{name}: no effect, because {reason}", stacklevel=2)
        if self.is_task:
            return TaskStore(self.corpus, self.task)
        if self.kind == "store":
            return open_store(self.store, self.data_folder, whole)
        return prepare_text(self.make_recipe(), self.data_folder, whole, workers)

    def encode_split(self, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
        """Encode a split with a vocabulary in a permanent folder; a store must have it already."""
        if self.kind == "store":
            store = open_store(self.store, self.data_folder)
            theirs, ours = store.vocab.fingerprint, vocab.fingerprint
            if theirs != ours:
                raise DataError(f"{self.store}: vocabulary {theirs}; the checkpoint's is {ours}")
            return EvalText.from_store(self.name, store, split)
        # Bytes are read from any file.
        is_bytes = self.kind == "path" and isinstance(vocab, Bytes)
        recipe = (replace(self, vocab="bytes") if is_bytes else self).make_recipe()
        saved = folder / "vocab.json"
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


def is_store(folder: Path) -> bool:
    """Return True for a folder with the manifest of a store; other programs have such files too."""
    # Also of a damaged one, which is then refused as a store, by name.
    return has_mark(folder, "manifest.json")


def find_kind(path: Path) -> str:
    """Return the setting of a path: path for a text, ids for a file of ids, or store."""
    if is_store(path):
        return "store"
    return "ids" if path.suffix in SUFFIXES and path.is_file() else "path"
