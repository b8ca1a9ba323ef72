"""CorpusDataModule: a named corpus, or the user's own text, as ordered segments."""

import platform
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any, Literal, Self

from lightning.pytorch import LightningDataModule

from ..errors import DataError, convert_fields, require, require_at_least, suggest_key
from ..files import expand_home
from .json_lines import LineFormat, save_texts
from .sources import DataConfig
from .store import Store
from .stream import Segment, Stream, TrainingLoader
from .tasks import TaskStore
from .tokens import SHORTEST, FixedLengths, VarlenLengths, make_order
from .vocab import Vocabulary, load_vocabulary

SIZES = ("batch_size", "tgt_len", "ext_len")  # each also with eval_
MOST_UNKNOWN = 0.1  # share of unknown tokens from which training warns; published texts have 5 %
IN_ORDER = {"order": "ordered", "segments": "fixed", "restart_len": None}  # nothing is drawn


@dataclass(frozen=True)
class StreamConfig:
    """Rows and segments in which a text is read.

    Args:
        tgt_len: Tokens per segment.
        batch_size: Rows read in parallel, over all devices together.
        ext_len: Tokens before a segment that it reads again: context with gradients, not scored.
            Memory ends before them.
        eval_tgt_len: Tokens per segment in validation, test and predict; default tgt_len.
        eval_batch_size: Rows in validation, test and predict; default batch_size.
        eval_ext_len: Tokens read again in validation, test and predict; default ext_len.
        eval_warmup_len: Unscored tokens that each row except the first reads before its own, in
            validation, test and predict.
        order: Order of the training text: ordered; rolled, each row from another offset in each
            pass; or shuffled, documents in another order in each pass.
        segments: Lengths of training segments: fixed, tgt_len each; or varlen, random around
            tgt_len.
        restart_len: Tokens of a training row in which memory starts anew at one random place, as at
            the start of a document; null: it does so at documents only.
        seed: Random seed of rolled, shuffled, varlen and restart_len.
        micro_batches: Micro-batches into which each device splits its rows in training: only one is
            in memory, and activations are computed twice.
        allow_mismatch: Continue although a checkpoint is of another text or vocabulary.
    """

    tgt_len: int = 64
    batch_size: int = 16
    ext_len: int = 0
    eval_tgt_len: int | None = None
    eval_batch_size: int | None = None
    eval_ext_len: int | None = None
    eval_warmup_len: int = 0
    order: Literal["ordered", "rolled", "shuffled"] = "ordered"
    segments: Literal["fixed", "varlen"] = "fixed"
    restart_len: int | None = None
    seed: int = 1
    micro_batches: int = 1
    allow_mismatch: bool = False

    def __post_init__(self) -> None:
        convert_fields(self)
        tgt_len = SHORTEST if self.segments == "varlen" else 1
        require_at_least(self, tgt_len=tgt_len, batch_size=1, ext_len=0, micro_batches=1)
        require_at_least(self, restart_len=1)
        require_at_least(self, eval_tgt_len=1, eval_batch_size=1, eval_ext_len=0, eval_warmup_len=0)
        for name in SIZES:
            if getattr(self, f"eval_{name}") is None:
                object.__setattr__(self, f"eval_{name}", getattr(self, name))


@dataclass(frozen=True)
class CorpusConfig(DataConfig, StreamConfig):
    """Settings of a text and of reading it."""

    def __post_init__(self) -> None:
        # First, because it converts paths to strings.
        DataConfig.__post_init__(self)
        StreamConfig.__post_init__(self)


# The explanations of all settings.
KINDS = (DataConfig, LineFormat, StreamConfig)
EXPLAINED = [str(getdoc(kind)).partition("Args:\n")[2] for kind in KINDS]


class CorpusDataModule(LightningDataModule):
    """Text -> ids -> memory-mapped store -> ordered streams for a Trainer.

    >>> data = CorpusDataModule.from_texts(["to be or not", "to be, that is"] * 99, "lines.jsonl")
    >>> data.vocab.decode(next(iter(data.train_dataloader())).tokens_BL[0, :12])
    'to be or not'

    An unknown or invalid setting is a ValueError; an unusable text is a DataError, once prepared.
    """

    # Both configs explain their settings; help and jsonargparse show all of them.
    # Python -OO has removed them.
    __doc__ = "\n".join([cleandoc(__doc__ or ""), "\nArgs:", *EXPLAINED])

    # With the parameters of CorpusConfig, which help and jsonargparse show.
    @wraps(CorpusConfig.__init__, assigned=())
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        names = [field.name for field in fields(CorpusConfig)]
        for name in settings.keys() - names:
            raise ValueError(suggest_key(name, names))
        self.config = CorpusConfig(**settings)

    @classmethod
    def from_texts(cls, texts: Iterable[str], path: str | Path, **settings: Any) -> Self:
        """Save texts, each a document, as JSON lines; return the module that reads this file, which
        evaluation and resuming need."""
        path = Path(expand_home(path))
        save_texts(texts, path, settings.get("text_key"))
        return cls(path=path, **settings)

    @cached_property
    def store(self) -> Store | TaskStore:
        return self.config.open_text()

    @property
    def vocab(self) -> Vocabulary:
        return self.store.vocab

    @property
    def n_token(self) -> int:
        return self.vocab.n_token

    def bytes_per_token(self, stage: str) -> float | None:
        """Return the mean bytes per token of a stage's text; None if tokens have no bytes."""
        return self.store.bytes_per_token(stage if stage in ("train", "val") else "test")

    def unknown_share(self, stage: str) -> float:
        """Return the share of tokens in a stage's text that stand for unknown text."""
        return self.store.unknown_share({"fit": "train", "validate": "val"}.get(stage, "test"))

    def prepare_data(self) -> None:
        # The property opens the store, and keeps it for `setup`.
        _ = self.store

    def setup(self, stage: str) -> None:
        share = max(map(self.unknown_share, ("fit", "validate")))
        if stage == "fit" and share > MOST_UNKNOWN:
            advice = "their loss is small; use the vocabulary of this text, or data.vocab bpe"
            warnings.warn(f"{share:.0%} of the tokens are unknown: {advice}", stacklevel=2)
        data = {
            "corpus": self.config.name,
            "fingerprint": self.store.fingerprint,
            "vocabulary": self.vocab.fingerprint,
            "n_token": self.n_token,
            "python": platform.python_version(),
        }
        names = [f"{stage}{name}" for stage in ("", "eval_") for name in SIZES]
        self.save_hyperparameters({"data": data | self._select_settings(names)})

    def train_dataloader(self) -> TrainingLoader:
        config = self.config
        n_rank = self.trainer.world_size if self.trainer else 1
        expected = f"at least {n_rank}, the number of devices"
        require(config.batch_size >= n_rank, "data.batch_size", config.batch_size, expected)
        tokens = self.store.text("train")
        if self.store.example_len:
            reason = "for a task, whose examples are drawn at random"
            for name, only in IN_ORDER.items():
                value = getattr(config, name)
                require(value == only, f"data.{name}", value, f"{only or 'null'} {reason}")
        order = make_order(config.order, tokens, config.restart_len, config.seed)
        # A step reads so many segments at once.
        n_joined = self.count_joined()
        lengths = FixedLengths(config.tgt_len * n_joined)
        if config.segments == "varlen":
            lengths = VarlenLengths(config.tgt_len, config.seed)
        how = {"lengths": lengths, "order": order, "ext_len": config.ext_len}
        fix = "lower data.batch_size or data.tgt_len, or give more text"
        tgt_len = config.tgt_len * n_joined
        stream = self._make_stream("train", config.batch_size, tgt_len, fix, **how)
        batches = self.trainer.overfit_batches if self.trainer else 0
        # Lightning also accepts a fraction of a pass.
        n_segment = batches if isinstance(batches, int) else round(batches * len(stream))
        expected = f"0, or a share with at least one of the {len(stream):,} segments of a pass"
        require(n_segment or not batches, "trainer.overfit_batches", batches, expected)
        read_as = self.list_reading_settings()
        read_as |= {"overfit_batches": n_segment} if n_segment else {}
        return TrainingLoader(stream, read_as, n_segment or None)

    def val_dataloader(self) -> Stream:
        return self._make_evaluation_stream("val")

    def test_dataloader(self) -> Stream:
        return self._make_evaluation_stream("test")

    predict_dataloader = test_dataloader

    def list_reading_settings(self) -> dict[str, Any]:
        """Return all settings that a position in the training text depends on."""
        names = (*SIZES, *IN_ORDER)
        if self._select_settings(IN_ORDER) != IN_ORDER:
            names += ("seed",)
        settings = {"text": self.store.fingerprint} | self._select_settings(names)
        return settings | {"gradient_segments": self.count_joined()}

    def count_joined(self) -> int:
        """Return the segments of a training step, between which gradients flow."""
        module = self.trainer and self.trainer.lightning_module
        n_joined = module.hparams.get("gradient_segments", 1) if module else 1
        if n_joined > 1:
            for name, only in {"segments": "fixed", "ext_len": 0}.items():
                value = getattr(self.config, name)
                expected = f"{only}, as model.gradient_segments is {n_joined}"
                require(value == only, f"data.{name}", value, expected)
        return n_joined

    def on_before_batch_transfer(self, segment: Segment, dataloader_idx: int) -> Segment:
        # Copies from unpinned memory wait until the GPU has finished earlier work.
        on_gpu = self.trainer and self.trainer.strategy.root_device.type == "cuda"
        return segment.pin_memory() if on_gpu else segment

    def state_dict(self) -> dict[str, Any]:
        state = {"vocab": self.vocab.to_json(), "fingerprint": self.store.fingerprint}
        # How ids were read, for other files of ids.
        if self.store.id_options:
            state["ids"] = self.store.id_options
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise a DataError for a checkpoint of another text or vocabulary, unless allowed."""
        before = load_vocabulary(state["vocab"])
        fingerprints = {"data.vocab": (before.fingerprint, self.vocab.fingerprint)}
        if text := state.get("fingerprint"):
            fingerprints[f"data ({self.config.name})"] = (text, self.store.fingerprint)
        changed = "; ".join(
            f"{key}: the checkpoint's is {theirs}, this text's {ours}"
            for key, (theirs, ours) in fingerprints.items()
            if theirs != ours
        )
        if before.n_token != self.n_token:
            sizes = f"they have {before.n_token} and {self.n_token} tokens"
            raise DataError(f"{changed}; {sizes}; pass its run's vocab.json as data.vocab")
        if changed and not self.config.allow_mismatch:
            fix = "give the same text and vocabulary, or continue with --data.allow_mismatch true"
            raise DataError(f"{changed}; {fix}")
        if changed:
            warnings.warn(f"{changed}; data.allow_mismatch is true", stacklevel=2)

    def _select_settings(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in names}

    def _make_evaluation_stream(self, split: str) -> Stream:
        config = self.config
        unscored = {"warmup_len": config.eval_warmup_len, "ext_len": config.eval_ext_len}
        how = {"lengths": FixedLengths(config.eval_tgt_len), **unscored}
        # Of a task, all examples.
        how["drop_last"] = self.store.example_len is None
        fix = "lower data.eval_batch_size, change data.split, or give more text"
        # The only segment may be shorter than eval_tgt_len.
        return self._make_stream(split, config.eval_batch_size, 1, fix, **how)

    def _make_stream(self, split: str, n_row: int, tgt_len: int, fix: str, **how: Any) -> Stream:
        trainer = self.trainer
        tokens = self.store.text(split)
        if not len(tokens):
            fix = "give more documents, three texts as [train, val, test], or another data.split"
            raise DataError(f"{self.config.name}, {split}: no text; {fix}")
        rank, n_rank = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        stream = Stream(tokens, n_row, rank=rank, world_size=n_rank, **how)
        multiple = tokens.row_multiple
        shortest = -(-(tgt_len + 1) // multiple) * multiple
        if stream.row_len < shortest:
            unit = "" if multiple == 1 else f", in whole examples of {multiple}"
            raise DataError(
                f"{self.config.name}, {split}: {len(tokens)} tokens are too few for {n_row} rows "
                f"of {tgt_len} + 1{unit} ({n_row} x {shortest} = {n_row * shortest}); {fix}"
            )
        return stream
