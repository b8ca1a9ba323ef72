"""CorpusDataModule: a corpus by name, or one's own text, as ordered segments."""

import platform
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningDataModule

from .corpora import CORPORA, own_text, split
from .errors import DataError
from .store import Store, prepare
from .stream import EvaluationLoader, OrderedStream, TrainingLoader, check_length
from .vocab import Vocabulary, fingerprint


class CorpusDataModule(LightningDataModule):
    """Text -> ids -> memory-mapped store -> ordered streams for fit, validate, test and predict.

    Args:
        corpus: Text by name: the running Python's own source, or Tiny Shakespeare (downloaded).
        path: Your own text file; it takes the place of the corpus.
        vocab: bytes, characters, or a saved vocab.json; left out, the corpus's own, or bytes.
        tgt_len: Tokens in a segment.
        batch_size: Rows read in parallel, over all devices together.
        eval_tgt_len: Tokens in a segment of validation, test and predict; left out, tgt_len.
        eval_batch_size: Rows in validation, test and predict; left out, batch_size.
        split: Fractions of the text for train, val and test, in this order; they add up to 1.
        root: The folder where data lives.

    Raises:
        ValueError: a number that no stream can have.
        DataError: a text that cannot be used (when it is prepared).
    """

    def __init__(
        self,
        corpus: Literal["python_source", "tiny_shakespeare"] = "python_source",
        path: str | None = None,
        vocab: str | None = None,
        tgt_len: int = 64,
        batch_size: int = 16,
        eval_tgt_len: int | None = None,
        eval_batch_size: int | None = None,
        split: tuple[float, float, float] = (0.9, 0.05, 0.05),
        root: str = "data",
    ) -> None:
        super().__init__()
        check_numbers(tgt_len, batch_size, eval_tgt_len, eval_batch_size, split)
        self.corpus = corpus
        self.path = None if path is None else Path(path)
        self.vocab_name = vocab or (CORPORA[corpus].vocab if path is None else "bytes")
        self.fractions = split
        self.root = Path(root)
        self.train_shape = (batch_size, tgt_len)
        self.eval_shape = (eval_batch_size or batch_size, eval_tgt_len or tgt_len)
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The prepared text."""
        if self._store is None:
            named = CORPORA[self.corpus].files
            files = named(self.root) if self.path is None else own_text(self.path)
            self._store = prepare(split(files, self.fractions), self.vocab_name, self.root)
        return self._store

    @property
    def text_name(self) -> str:
        """What an error calls the text."""
        return self.corpus if self.path is None else str(self.path)

    @property
    def vocab(self) -> Vocabulary:
        """What turns the text into ids and back."""
        return self.store.vocab

    @property
    def n_token(self) -> int:
        """Size of the vocabulary, V."""
        return self.vocab.n_token

    @property
    def unit(self) -> str:
        """What one token is: byte or character."""
        return self.vocab.unit

    def prepare_data(self) -> None:
        """Build the store."""
        assert self.store

    def setup(self, stage: str) -> None:
        """Say with the run's hyperparameters which text it was."""
        data = {
            "corpus": self.text_name,
            "sha256": self.store.sha256,
            "vocabulary": fingerprint(self.vocab),
            "python": platform.python_version(),
            "batch_size": self.train_shape[0],
            "tgt_len": self.train_shape[1],
            "eval_batch_size": self.eval_shape[0],
            "eval_tgt_len": self.eval_shape[1],
        }
        self.save_hyperparameters({"data": data})

    def train_dataloader(self) -> TrainingLoader:
        """Endless segments of the training text."""
        stream = self._stream("train", self.train_shape)
        fix = "lower data.batch_size or data.tgt_len, or give more text"
        check_length(f"{self.text_name}, train", len(stream.ids), *self.train_shape, fix)
        return TrainingLoader(stream, text=self.store.sha256)

    def val_dataloader(self) -> EvaluationLoader:
        """One pass over the validation text."""
        return self._evaluation("val")

    def test_dataloader(self) -> EvaluationLoader:
        """One pass over the test text."""
        return self._evaluation("test")

    def predict_dataloader(self) -> EvaluationLoader:
        """One pass over the test text."""
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must know to use the model without the text."""
        return {"vocab": self.vocab.to_json()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint whose ids mean something else."""
        if state["vocab"] != self.vocab.to_json():
            raise DataError(
                f"data.vocab: {self.vocab_name} of this text ({self.n_token} tokens) is not the "
                "checkpoint's vocabulary; pass the vocab.json saved with its run as data.vocab"
            )

    def _stream(self, split: str, shape: tuple[int, int]) -> OrderedStream:
        batch_size, tgt_len = shape
        rank, world_size = (
            (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        )
        if batch_size % world_size:
            raise ValueError(
                f"data.batch_size, data.eval_batch_size: {batch_size} rows cannot be shared by "
                f"{world_size} devices; it must be a multiple of {world_size}"
            )
        return OrderedStream(self.store.ids(split), batch_size, tgt_len, rank, world_size)

    def _evaluation(self, split: str) -> EvaluationLoader:
        """One pass; a segment may be shorter than tgt_len, but not without a target."""
        stream = self._stream(split, self.eval_shape)
        fix = "lower data.eval_batch_size, change data.split, or give more text"
        check_length(f"{self.text_name}, {split}", len(stream.ids), stream.batch_size, 1, fix)
        return EvaluationLoader(stream)


def check_numbers(
    tgt_len: int,
    batch_size: int,
    eval_tgt_len: int | None,
    eval_batch_size: int | None,
    split: tuple[float, float, float],
) -> None:
    """Refuse numbers that no stream can have, before anything is read.

    Raises:
        ValueError: it starts with the setting's name.
    """
    numbers = {
        "tgt_len": tgt_len,
        "batch_size": batch_size,
        "eval_tgt_len": eval_tgt_len,
        "eval_batch_size": eval_batch_size,
    }
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: {value} is not possible; it must be at least 1")
    if len(split) != 3 or min(split) < 0 or abs(sum(split) - 1) > 1e-6:
        raise ValueError(
            f"split: {list(split)} is not possible; it must be three fractions that add up to 1"
        )
