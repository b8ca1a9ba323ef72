"""DataConfig: settings of a text -> a store, or a text to score."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError, require, require_types
from .corpora import CORPORA
from .documents import SPLITS
from .store import EvalText, Recipe, Store, prepare_store
from .tasks import TASKS, TaskConfig, TaskStore
from .user_files import has_documents, split_user_files
from .vocab import SubwordOptions, Vocabulary, WordOptions

CorpusName = Literal[*CORPORA, *TASKS]
# Settings with nested settings.
PARTS = {"words": WordOptions, "subwords": SubwordOptions, "task": TaskConfig}


def plain_values(config: "DataConfig") -> dict[str, Any]:
    """Return settings with paths as strings, and nested settings as instances of PARTS."""
    values: dict[str, Any] = {}
    for name in ("path", "vocab", "data_dir"):
        value = getattr(config, name)
        values[name] = str(value) if isinstance(value, Path) else value
    if isinstance(values["path"], list | tuple):
        values["path"] = [str(p) if isinstance(p, Path) else p for p in values["path"]]
    for name, kind in PARTS.items():
        value = getattr(config, name)
        # In a parsed YAML file, nested settings are dicts.
        values[name] = kind(**value) if isinstance(value, dict) else value
    return values


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
        for name, value in plain_values(self).items():
            object.__setattr__(self, name, value)
        require_types(self)
        adds_up = len(self.split) == 3 and min(self.split) >= 0 and abs(sum(self.split) - 1) < 1e-6
        require(adds_up, "split", list(self.split), "three fractions that add up to 1")

    @property
    def name(self) -> str:
        return self.corpus if self.path is None else ", ".join(self.paths)

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path or ())

    @property
    def data_folder(self) -> Path:
        return Path(self.data_dir or os.environ.get("TXL_DATA") or "data").expanduser()

    def recipe(self) -> Recipe:
        """Return the recipe of the store; download a corpus."""
        if own := [Path(path).expanduser() for path in self.paths]:
            splits = split_user_files(own, self.split, self.data_folder)
            unit = "files" if any(map(has_documents, own)) else None
            vocab, words = "bytes", WordOptions()
        else:
            corpus = CORPORA[self.corpus]
            splits = corpus.find_splits(self.data_folder, self.split)
            unit, vocab, words = corpus.document_unit, corpus.vocab, corpus.words
        unit = self.document_unit or unit
        defaults = asdict(WordOptions())
        changed = {name: v for name, v in asdict(self.words).items() if v != defaults[name]}
        words = replace(words, **changed)
        unit = None if unit == "none" else unit
        return Recipe(splits, self.vocab or vocab, unit, words, self.subwords)

    def open(self, whole: bool = False) -> Store | TaskStore:
        """Return the prepared text or a task; DataError if it is unavailable or cannot be encoded.

        With `whole`, all prepared files are compared with their checksums.
        """
        if self.path is None and self.corpus in TASKS:
            return TaskStore(self.corpus, self.task)
        return prepare_store(self.recipe(), self.data_folder, whole)

    def encode_split(self, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
        """Encode a split with a given vocabulary in a permanent folder; DataError as in `open`."""
        recipe, saved = self.recipe(), folder / "vocab.json"
        nonempty = [name for name, parts in recipe.splits.items() if any(p.n_byte for p in parts)]
        if split not in nonempty:
            raise DataError(f"{self.name}: its {split} text is empty; give another split")
        saved.write_text(vocab.to_json())
        splits = {name: recipe.splits[name] if name == split else [] for name in SPLITS}
        store = prepare_store(replace(recipe, splits=splits, vocab=str(saved)), folder)
        # The hash of the text alone: it shows that vocabularies are compared on the same text.
        fingerprint = store.manifest["text"][:16]
        text = replace(EvalText.from_store(self.name, store, split), fingerprint=fingerprint)
        return text if len(nonempty) > 1 else replace(text, split="whole text")
