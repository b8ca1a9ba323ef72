"""Parts of Lightning in a config: those that cannot work here, and monitors of no metric."""

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from ..data.datamodule import CorpusDataModule
from ..errors import invalid, require
from ..evaluation.scoring import readings
from .callbacks.checkpointing import BestCheckpoint
from .module import LanguageModel

UNUSABLE = {
    "BackboneFinetuning": "none, because the network has no backbone; --ckpt_path fine-tunes it",
    "BatchSizeFinder": "none; set data.batch_size, and data.micro_batches where memory is short",
    "LearningRateFinder": "none; compare some model.optim.lr with txl-lightning sweep",
}
"""Callbacks of Lightning that look for attributes of other modules, and what to use instead."""
TRAINING = ("lr", "memory_bytes", "peak_memory_bytes", "mem_filled", "tokens_seen", "grad_norm")
SPEED = ("tokens_per_second", "seconds")
PROBED = ("tokens_seen", "memory_gain", "memory_gain_error")
ANSWERS = ("token_accuracy", "answer_accuracy")
OUR_PACKAGES = ("lightning", "txl_lightning")


def refuse_unusable(callbacks: list[Callback]) -> None:
    """Refuse callbacks that would fail in the middle of a run, in any run."""
    for each in callbacks:
        for kind in type(each).__mro__:
            name = kind.__name__
            require(name not in UNUSABLE, "trainer.callbacks", name, UNUSABLE.get(name, ""))


def check_monitors(trainer: Trainer, module: LanguageModel, data: CorpusDataModule) -> None:
    """Refuse a monitor that no metric of this run has, or has too late for its first use."""
    packages = {type(each).__module__.partition(".")[0] for each in trainer.callbacks}
    # Callbacks of other packages may log any metric.
    if trainer.fast_dev_run or not packages <= {*OUR_PACKAGES}:
        return
    names = list_metrics(trainer, data)
    for each in trainer.callbacks:
        monitor = getattr(each, "monitor", None)
        if monitor is None or isinstance(each, BestCheckpoint):
            continue
        key = f"trainer.callbacks: {type(each).__name__}: monitor"
        require(monitor in names, key, monitor, f"one of {', '.join(names)}")
        if isinstance(each, EarlyStopping):
            validates = bool(trainer.limit_val_batches)
            expected = "a run with validations, after which it looks"
            require(validates, "trainer.limit_val_batches", trainer.limit_val_batches, expected)
            if monitor.startswith("train/"):
                check_logged_in_time(trainer, key, monitor)


def check_logged_in_time(trainer: Trainer, key: str, monitor: str) -> None:
    every, n_segment = trainer.log_every_n_steps, trainer.val_check_interval
    if isinstance(n_segment, int) and n_segment // trainer.accumulate_grad_batches < every:
        expected = f"a val/ metric; training is logged first at step {every} (log_every_n_steps)"
        raise invalid(key, monitor, f"{expected}, after the first validation")


def list_metrics(trainer: Trainer, data: CorpusDataModule) -> list[str]:
    """Return the names of all metrics that a run may log, those of validation first."""
    validates = bool(trainer.limit_val_batches)
    answers = ANSWERS if data.store.example_len else ()
    names = {"val": (*PROBED, *answers) if validates else None, "train": (*TRAINING, *SPEED)}
    return [
        f"{stage}/{name}"
        for stage, others in names.items()
        if others is not None
        for name in ("loss", *readings(0.0, data.vocab.unit, data.bytes_per_token(stage)), *others)
    ]
