"""Corpora made on the spot, in which it is known what must be remembered: sort, copy, recall.

An example is a document, read in segments of any length: what a model knows of its beginning at its
end it has seen or remembered. Only answers, which end the examples, are scored.

B rows   L positions in each   T tokens in an example
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..errors import require_at_least
from .documents import SPLITS, short_hash
from .vocab import WordOptions, Words

TaskName = Literal["sort", "copy", "recall"]
ENDLESS = 1 << 40
"""Examples in training when none is to come twice."""


@dataclass(frozen=True)
class TaskConfig:
    """Sizes of a task."""

    length: int = 20
    """Symbols to sort or copy; pairs to recall from."""
    n_symbol: int = 10
    """Different symbols there are."""
    distance: int = 0
    """Blanks between what is to be remembered and the answer (copy and recall)."""
    n_train: int | None = None
    """Different examples in training; left out, none comes twice."""
    n_eval: int = 1024
    """Examples in val and test, each."""
    seed: int = 1
    """Which examples are drawn."""

    def __post_init__(self) -> None:
        require_at_least(self, length=1, n_symbol=2, distance=0, n_train=1, n_eval=1)


class Sort:
    """n digits, and the same digits in order (augustwester/transformer-xl).

    With length 5: `3 1 4 1 5` is answered by `1 1 3 4 5`.
    """

    def __init__(self, config: TaskConfig) -> None:
        self.symbols = tuple(map(str, range(config.n_symbol)))
        self.answer_len = config.length
        self.example_len = 2 * config.length

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        unsorted = rng.integers(len(self.symbols), size=self.answer_len)
        return np.concatenate([unsorted, np.sort(unsorted)])


class Copy:
    """n symbols, blanks, a mark, and the same symbols again.

    With length 3 and distance 2: `3 1 4 . . >` is answered by `3 1 4`.
    """

    def __init__(self, config: TaskConfig) -> None:
        self.symbols = (*map(str, range(config.n_symbol)), ".", ">")
        self.n_symbol, self.distance = config.n_symbol, config.distance
        self.answer_len = config.length
        self.example_len = 2 * config.length + config.distance + 1

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        blank, mark = self.n_symbol, self.n_symbol + 1
        copied = rng.integers(self.n_symbol, size=self.answer_len)
        return np.concatenate([copied, np.full(self.distance, blank), [mark], copied])


class Recall:
    """Pairs of a key and a value, blanks, a mark and one of the keys: which value was its?

    With length 3 and distance 4: `c 1 a 7 b 1 . . . . > a` is answered by `7`.
    """

    answer_len = 1

    def __init__(self, config: TaskConfig) -> None:
        self.n_symbol, self.length, self.distance = config.n_symbol, config.length, config.distance
        keys = tuple(f"k{number}" for number in range(config.length))
        self.symbols = (*map(str, range(config.n_symbol)), *keys, ".", ">")
        self.example_len = 2 * config.length + config.distance + 3

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        keys = self.n_symbol + rng.permutation(self.length)
        values = rng.integers(self.n_symbol, size=self.length)
        blank, mark = self.n_symbol + self.length, self.n_symbol + self.length + 1
        asked = rng.integers(self.length)
        pairs = np.stack([keys, values], axis=1).ravel()
        question = [mark, keys[asked], values[asked]]
        return np.concatenate([pairs, np.full(self.distance, blank), question])


Task = Sort | Copy | Recall
"""`draw` gives example_len ids, which stand for `symbols`; the last answer_len are scored."""
TASKS: dict[str, type[Task]] = {"sort": Sort, "copy": Copy, "recall": Recall}


@dataclass(frozen=True)
class Examples:
    """A task's examples one after the other, as tokens; each is the same whenever it is read."""

    task: Task
    seed: tuple[int, ...]
    n_example: int

    @property
    def row_multiple(self) -> int:
        return self.task.example_len

    def __len__(self) -> int:
        return self.n_example * self.task.example_len

    def ids_at(self, position_BL: np.ndarray) -> np.ndarray:
        nth_BL, column_BL = np.divmod(position_BL, self.task.example_len)
        wanted, which_BL = np.unique(nth_BL, return_inverse=True)
        drawn = np.stack([self.example(int(nth)) for nth in wanted])
        return drawn[which_BL.reshape(position_BL.shape), column_BL]

    def doc_position(self, position_BL: np.ndarray) -> np.ndarray:
        return position_BL % self.task.example_len

    def is_target(self, position_BL: np.ndarray) -> np.ndarray:
        first = self.task.example_len - self.task.answer_len
        return self.doc_position(position_BL) >= first

    def example(self, nth: int) -> np.ndarray:
        return self.task.draw(np.random.default_rng((*self.seed, nth)))


@dataclass(frozen=True)
class TaskStore:
    """A task with the interface of a prepared text's Store."""

    name: str
    config: TaskConfig

    @cached_property
    def task(self) -> Task:
        return TASKS[self.name](self.config)

    @property
    def vocab(self) -> Words:
        return Words(self.task.symbols, WordOptions(line_end="none", unknown="error"))

    @property
    def fingerprint(self) -> str:
        return short_hash([self.name, asdict(self.config)])

    def text(self, split: str) -> Examples:
        """Return the examples of a split; no two splits share their random numbers."""
        seed = (self.config.seed, SPLITS.index(split))
        count = self.config.n_eval if split != "train" else self.config.n_train
        return Examples(self.task, seed, count or ENDLESS)

    def bytes_per_token(self, split: str) -> None:
        """Return None: symbols stand for no bytes."""
