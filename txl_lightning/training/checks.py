"""Every number of a run is checked before anything is built."""

from dataclasses import fields
from typing import Any

from jsonargparse import Namespace

from ..data.config import PARTS, DataConfig
from ..data.datamodule import StreamConfig
from ..errors import prefix_errors
from ..model import TransformerXLConfig
from ..model.config import LEARNED
from .lengths import make_eval_lengths
from .optimizers import OptimConfig, check_end
from .resume import SavingConfig

READ_OTHERWISE = {"mem_len", "clamp_len", "same_length", "kernel", "loss_chunk_size"}
TRAINED_OTHERWISE = {"dropout", "dropout_type", "dropatt"}
DRAWN_OTHERWISE = {"init", "init_std", "init_range", "proj_init_std"}
SHAPES_NO_WEIGHT = READ_OTHERWISE | TRAINED_OTHERWISE | DRAWN_OTHERWISE
"""Fields of a checkpoint's network that may be given another value."""
SAME_STATE = {"adamw": "adam"}
"""Optimisers that keep of each weight what another one keeps."""


def check_numbers_of(config: Namespace) -> None:
    """Refuse numbers that cannot be, with the whole key."""
    net = {name: value for name, value in vars(config.model.net).items() if name != "n_token"}
    with prefix_errors("model.net"):
        TransformerXLConfig(**net)
    with prefix_errors("model.optim"):
        optim = OptimConfig(**vars(config.model.optim))
    with prefix_errors("checkpoint"):
        SavingConfig(**vars(config.checkpoint))
    with prefix_errors("model"):
        make_eval_lengths(config.model.eval_mem_len, config.model.eval_clamp_len)
    with prefix_errors("data"):
        StreamConfig(**{field.name: config.data[field.name] for field in fields(StreamConfig)})
        DataConfig(split=config.data.split)
    for name, options in PARTS.items():
        with prefix_errors(f"data.{name}"):
            options(**vars(config.data[name]))
    check_end(optim, config.trainer.max_steps)
    check_endless(config.trainer)


def as_counts(trainer: Namespace) -> None:
    """Numbers of batches as whole numbers.

    Lightning takes either kind, and which of the two a number becomes depends on what the process
    has imported: Python keeps one of Optional[Union[int, float]] and Optional[Union[float, int]].
    """
    for name in vars(trainer):
        if name.endswith("_batches") or name == "val_check_interval":
            value = trainer[name]
            if isinstance(value, float) and value > 1 and value.is_integer():
                trainer[name] = int(value)


def check_endless(trainer: Namespace) -> None:
    """Refuse fractions of a stream that has no end, unless epochs are limited to a few batches."""
    if any(isinstance(trainer[name], int) for name in ("limit_train_batches", "overfit_batches")):
        return
    for name in ("val_check_interval", "limit_train_batches"):
        value = trainer[name]
        if isinstance(value, float) and (name, value) != ("limit_train_batches", 1.0):
            raise ValueError(
                f"trainer.{name}: invalid {value}, because training has no end; it must be "
                "a whole number of batches"
            )


def check_same_network(given: Namespace, saved: dict[str, Any]) -> None:
    """Refuse a setting that the checkpoint's weights would not fit."""
    table = {"clamp_len"} if saved.get("positions") in LEARNED else set()
    for name in saved.keys() - (SHAPES_NO_WEIGHT - table) - {"n_token"}:
        value = list(given[name]) if isinstance(given[name], tuple) else given[name]
        if value != saved[name]:
            raise ValueError(
                f"model.net.{name}: {value} is not the {saved[name]} of the "
                "checkpoint; leave it out, or use the config.yaml saved with its run"
            )


def check_same_optimiser(given: str, saved: str) -> None:
    """Refuse to go on with an optimiser that cannot read what the checkpoint's has kept."""
    if SAME_STATE.get(given, given) != SAME_STATE.get(saved, saved):
        raise ValueError(
            f"model.optim.name: {given} is not the {saved} of the checkpoint; leave it out, or "
            "begin anew from its weights: convert it, and give the folder as ckpt_path"
        )
