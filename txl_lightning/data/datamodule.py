"""CorpusDataModule: a corpus by name, or one's own text, as ordered segments."""

import platform
import warnings
from collections.abc import Callable
from typing import Any, Literal

from lightning.pytorch import LightningDataModule

from ..errors import DataError
from .config import DataConfig
from .numbers import check_numbers
from .orders import (
    FixedLengths,
    ReadingOrder,
    RolledOrder,
    SegmentLengths,
    ShuffledOrder,
    TextOrder,
    VarlenLengths,
)
from .store import Store
from .stream import EvaluationLoader, Stream, TrainingLoader, check_length
from .tasks import TaskStore
from .tokens import Text, Tokens
from .vocab import Vocabulary, load_vocabulary


class CorpusDataModule(LightningDataModule):
    """Text -> ids -> memory-mapped store -> ordered streams for fit, validate, test and predict.

    Args:
        tgt_len: Tokens in a segment.
        batch_size: Rows read in parallel, over all devices together.
        ext_len: Tokens of the segments before that each reads again before its own: context with
            gradients that is not scored. Memory holds what stands before them.
        eval_tgt_len: Tokens in a segment of validation, test and predict; left out, tgt_len.
        eval_batch_size: Rows in validation, test and predict; left out, batch_size.
        eval_ext_len: Tokens read again in validation, test and predict; left out, ext_len.
        eval_warmup_len: Tokens that each row of them but the first reads before its own, unscored.
        order: How training reads: ordered; rolled, each row from another place in each pass; or
            shuffled, the documents in another order in each pass.
        segments: How long they are in training: fixed, tgt_len each; or varlen, drawn around it.
        seed: Of rolled, shuffled and varlen.
        allow_mismatch: Go on although a checkpoint is of another text or vocabulary.
        micro_batches: Parts in which each device computes its rows when it trains, one after the
            other: activations of one part are kept at a time, and computed twice.
        **text: The text: see DataConfig.

    Raises:
        ValueError: a number that no stream can have.
        DataError: a text that cannot be used (when it is prepared).
    """

    def __init__(
        self,
        tgt_len: int = 64,
        batch_size: int = 16,
        ext_len: int = 0,
        eval_tgt_len: int | None = None,
        eval_batch_size: int | None = None,
        eval_ext_len: int | None = None,
        eval_warmup_len: int = 0,
        order: Literal["ordered", "rolled", "shuffled"] = "ordered",
        segments: Literal["fixed", "varlen"] = "fixed",
        seed: int = 1,
        allow_mismatch: bool = False,
        micro_batches: int = 1,
        **text: Any,
    ) -> None:
        super().__init__()
        evaluated = (eval_tgt_len, eval_batch_size, eval_ext_len, eval_warmup_len)
        check_numbers(tgt_len, batch_size, ext_len, *evaluated, segments, micro_batches)
        self.text = DataConfig(**text)
        self.train_shape = (batch_size, tgt_len)
        self.eval_shape = (eval_batch_size or batch_size, eval_tgt_len or tgt_len)
        self.ext_len = ext_len
        self.eval_ext_len = ext_len if eval_ext_len is None else eval_ext_len
        self.eval_warmup_len = eval_warmup_len
        self.micro_batches = micro_batches
        self.order, self.segments, self.seed = order, segments, seed
        self.allow_mismatch = allow_mismatch
        self._store: Store | TaskStore | None = None

    @property
    def store(self) -> Store | TaskStore:
        """The prepared text, or the task."""
        if self._store is None:
            self._store = self.text.open()
        return self._store

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
        """What one token is: byte, character, word or subword."""
        return self.vocab.unit

    @property
    def example_len(self) -> int | None:
        """Tokens in an example, if the text is a task, whose answers are right or wrong."""
        return self.store.task.example_len if isinstance(self.store, TaskStore) else None

    def bytes_per_token(self, stage: str) -> float | None:
        """Bytes that a token of a stage's text stands for on average; None if for none."""
        return self.store.bytes_per_token(stage if stage in ("train", "val") else "test")

    def prepare_data(self) -> None:
        """Build the store."""
        assert self.store

    def setup(self, stage: str) -> None:
        """Say with the run's hyperparameters which text it was."""
        data = {
            "corpus": self.text.name,
            "fingerprint": self.store.fingerprint,
            "vocabulary": self.vocab.fingerprint,
            "n_token": self.n_token,
            "python": platform.python_version(),
            "batch_size": self.train_shape[0],
            "tgt_len": self.train_shape[1],
            "ext_len": self.ext_len,
            "eval_batch_size": self.eval_shape[0],
            "eval_tgt_len": self.eval_shape[1],
            "eval_ext_len": self.eval_ext_len,
        }
        self.save_hyperparameters({"data": data})

    def train_dataloader(self) -> TrainingLoader:
        """Endless segments of the training text."""
        batch_size, tgt_len = self.train_shape
        tokens = self.store.text("train")
        self._check_task()
        lengths = LENGTHS[self.segments](tgt_len, self.seed)
        order = ORDERS[self.order](tokens, self.seed)
        stream = Stream(
            tokens, batch_size, lengths, order, ext_len=self.ext_len, **self._share(batch_size)
        )
        fix = "lower data.batch_size or data.tgt_len, or give more text"
        check_length(f"{self.text.name}, train", stream, tgt_len, fix)
        # A fraction is one of a pass.
        batches = self.trainer.overfit_batches if self.trainer else 0
        n_segment = batches if isinstance(batches, int) else round(batches * len(stream))
        return TrainingLoader(stream, self.read_as(), n_segment or None)

    def val_dataloader(self) -> EvaluationLoader:
        """One pass over the validation text."""
        return self._evaluation("val")

    def test_dataloader(self) -> EvaluationLoader:
        """One pass over the test text."""
        return self._evaluation("test")

    def predict_dataloader(self) -> EvaluationLoader:
        """One pass over the test text."""
        return self.test_dataloader()

    def read_as(self) -> dict[str, Any]:
        """What the position in the training text means something with."""
        batch_size, tgt_len = self.train_shape
        described = {"text": self.store.fingerprint, "batch_size": batch_size, "tgt_len": tgt_len}
        described |= {"ext_len": self.ext_len, "order": self.order, "segments": self.segments}
        drawn = self.order != "ordered" or self.segments != "fixed"
        return described | ({"seed": self.seed} if drawn else {})

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must know to use the model without the text, and to know the text."""
        return {"vocab": self.vocab.to_json(), "fingerprint": self.store.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint of another text or vocabulary, unless it is accepted.

        One that does not say of which text it is may be of any.

        Raises:
            DataError: with both fingerprints.
        """
        was = load_vocabulary(state["vocab"])
        identities = {"data.vocab": (was.fingerprint, self.vocab.fingerprint)}
        if text := state.get("fingerprint"):
            identities[f"data ({self.text.name})"] = (text, self.store.fingerprint)
        changed = [
            f"{key}: the checkpoint's is {before}, this text's {now}"
            for key, (before, now) in identities.items()
            if before != now
        ]
        if was.n_token != self.n_token:
            sizes = f"of {was.n_token} and {self.n_token} tokens"
            fix = "pass the vocab.json saved with its run as data.vocab"
            raise DataError(f"{'; '.join(changed)}; they are {sizes}; {fix}")
        if changed and not self.allow_mismatch:
            fix = "give the same text and vocabulary, or --data.allow_mismatch true"
            raise DataError(f"{'; '.join(changed)}; {fix}")
        for said in changed:
            warnings.warn(f"{said}; data.allow_mismatch is true", stacklevel=2)

    def _evaluation(self, split: str) -> EvaluationLoader:
        """One pass; a segment may be shorter than tgt_len, but not without a target."""
        batch_size, tgt_len = self.eval_shape
        tokens = self.store.text(split)
        context = {"warmup_len": self.eval_warmup_len, "ext_len": self.eval_ext_len}
        stream = Stream(
            tokens, batch_size, FixedLengths(tgt_len), **context, **self._share(batch_size)
        )
        fix = "lower data.eval_batch_size, change data.split, or give more text"
        check_length(f"{self.text.name}, {split}", stream, 1, fix)
        return EvaluationLoader(stream)

    def _check_task(self) -> None:
        """Refuse to read the examples of a task in another way than one after the other."""
        given = {"order": (self.order, "ordered"), "segments": (self.segments, "fixed")}
        for name, (value, possible) in given.items():
            if self.example_len and value != possible:
                raise ValueError(
                    f"data.{name}: invalid {value} for a task, whose examples are drawn at "
                    f"random; it must be {possible}"
                )

    def _share(self, batch_size: int) -> dict[str, int]:
        """Which rows this process reads."""
        if self.trainer is None:
            return {"rank": 0, "world_size": 1}
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        if batch_size % world_size:
            raise ValueError(
                f"data.batch_size, data.eval_batch_size: invalid {batch_size} for {world_size} "
                f"devices; expected a multiple of {world_size}"
            )
        return {"rank": rank, "world_size": world_size}


def shuffled(tokens: Tokens, seed: int) -> ReadingOrder:
    """Another order of the documents in each pass.

    Raises:
        DataError: there are none.
    """
    if not isinstance(tokens, Text) or len(tokens.starts) < 2:
        raise DataError(
            "data.order: invalid shuffled for a text in one piece; give a folder or tar of "
            "documents, or set data.document_unit to lines"
        )
    return ShuffledOrder(tokens, seed)


ORDERS: dict[str, Callable[[Tokens, int], ReadingOrder]] = {
    "ordered": lambda tokens, _: TextOrder(tokens),
    "rolled": RolledOrder,
    "shuffled": shuffled,
}
LENGTHS: dict[str, Callable[[int, int], SegmentLengths]] = {
    "fixed": lambda tgt_len, _: FixedLengths(tgt_len),
    "varlen": VarlenLengths,
}
