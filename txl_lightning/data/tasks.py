"""Generated tasks that require memory: sort, copy, recall.

An example is a document, read in segments of any length: at its end, its beginning is in the
segment or in memory. Only answers, which end the examples, are scored.
"""

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from ..errors import Settings
from ..files import hash_values
from .text_files import SPLITS
from .tokens import Examples, QuestionAnswer
from .vocab import WordOptions, Words

N_ENDLESS = 1 << 40  # number of training examples if none is repeated


@dataclass(frozen=True)
class TaskConfig(Settings):
    """Sizes of a task."""

    minima: ClassVar = {"length": 1, "n_symbol": 2, "distance": 0, "n_train": 1, "n_eval": 1}

    length: int = 20
    """Symbols to sort or copy; pairs to recall from."""
    n_symbol: int = 10
    """Number of different symbols."""
    distance: int = 0
    """Blanks between the symbols to remember and the answer (copy and recall)."""
    n_train: int | None = None
    """Number of different training examples; default unlimited, without repetition."""
    n_eval: int = 1024
    """Number of examples in val, and in test."""
    seed: int = 1
    """Random seed of the examples."""


def draw_sort(config: TaskConfig, rng: np.random.Generator) -> QuestionAnswer:
    """Draw digits, answered by the sorted digits (augustwester/transformer-xl).

    With length 5: `3 1 4 1 5` is answered by `1 1 3 4 5`.
    """
    unsorted = rng.integers(config.n_symbol, size=config.length)
    return unsorted, np.sort(unsorted)


def draw_copy(config: TaskConfig, rng: np.random.Generator) -> QuestionAnswer:
    """Draw symbols, blanks and a mark, answered by the same symbols.

    With length 3 and distance 2: `3 1 4 . . >` is answered by `3 1 4`.
    """
    copied = rng.integers(config.n_symbol, size=config.length)
    blank = config.n_symbol
    mark = config.n_symbol + 1
    return np.concatenate([copied, np.full(config.distance, blank), [mark]]), copied


def draw_recall(config: TaskConfig, rng: np.random.Generator) -> QuestionAnswer:
    """Draw pairs of a key and a value, blanks, a mark and a key, answered by the key's value.

    With length 3 and distance 4: `c 1 a 7 b 1 . . . . > a` is answered by `7`.
    """
    keys = config.n_symbol + rng.permutation(config.length)
    values = rng.integers(config.n_symbol, size=config.length)
    chosen = rng.integers(config.length)
    pairs = np.stack([keys, values], axis=1).ravel()
    blank = config.n_symbol + config.length
    mark = config.n_symbol + config.length + 1
    question = np.concatenate([pairs, np.full(config.distance, blank), [mark, keys[chosen]]])
    return question, values[[chosen]]


TASKS = {"sort": draw_sort, "copy": draw_copy, "recall": draw_recall}


@dataclass(frozen=True)
class TaskStore:
    """A task with the interface of a prepared text's Store."""

    name: str
    config: TaskConfig
    id_options = None

    @cached_property
    def vocab(self) -> Words:
        keys = [f"k{n}" for n in range(self.config.length)] if self.name == "recall" else []
        marks = [".", ">"] if self.name != "sort" else []
        symbols = (*map(str, range(self.config.n_symbol)), *keys, *marks)
        return Words(symbols, WordOptions(line_end="none", unknown="error"))

    @cached_property
    def example_len(self) -> int:
        return self.text("test").row_multiple

    @property
    def fingerprint(self) -> str:
        return hash_values([self.name, asdict(self.config)])

    def text(self, split: str) -> Examples:
        """Return the examples of a split; splits use different random numbers."""
        seed = (self.config.seed, SPLITS.index(split))
        count = self.config.n_eval if split != "train" else self.config.n_train
        draw = partial(TASKS[self.name], self.config)
        question, answer = draw(np.random.default_rng(0))
        return Examples(draw, seed, count or N_ENDLESS, len(question) + len(answer), len(answer))

    def identifiers(self, split: str) -> None:
        """Return None: examples are drawn, and have no identifiers."""

    def describe(self) -> str:
        return f"examples of {self.example_len} tokens, vocabulary of {self.vocab.n_token} symbols"

    def unknown_share(self, split: str) -> float:
        return 0.0

    def bytes_per_token(self, split: str) -> None:
        """Return None: symbols have no bytes."""
