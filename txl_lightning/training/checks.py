"""Checks of all settings of a run, before anything is built."""

from dataclasses import fields
from typing import Any

from jsonargparse import Namespace

from ..data.config import PARTS, DataConfig
from ..data.datamodule import StreamConfig
from ..errors import prefix_errors, require
from ..model import TransformerXLConfig
from ..model.config import LEARNED
from .memory_bank import make_eval_lengths
from .optimizers import OptimConfig, check_end
from .resume import CheckpointConfig, Resume, print_once

SETTINGS = {
    "model.net": TransformerXLConfig,
    "model.optim": OptimConfig,
    "checkpoint": CheckpointConfig,
} | {f"data.{name}": options for name, options in PARTS.items()}
"""Groups of settings that check themselves."""

READ_OTHERWISE = {"mem_len", "clamp_len", "same_length", "kernel", "loss_chunk_size"}
TRAINED_OTHERWISE = {"dropout", "dropout_type", "dropatt"}
DRAWN_OTHERWISE = {"init", "init_std", "init_range", "proj_init_std"}
SHAPES_NO_WEIGHT = READ_OTHERWISE | TRAINED_OTHERWISE | DRAWN_OTHERWISE
"""Fields of a checkpoint's network that may be given another value."""
SAME_STATE = {"adamw": "adam"}
"""Optimisers that keep of each weight what another one keeps."""


def check_settings(config: Namespace) -> None:
    """Refuse values that cannot be, with the whole key."""
    for key, settings in SETTINGS.items():
        given = dict(vars(config[key]))
        if key == "model.net":
            # The vocabulary's size is not known yet.
            given.pop("n_token", None)
        with prefix_errors(key):
            settings(**given)
    with prefix_errors("model"):
        make_eval_lengths(config.model.eval_mem_len, config.model.eval_clamp_len)
    with prefix_errors("data"):
        StreamConfig(**{field.name: config.data[field.name] for field in fields(StreamConfig)})
        DataConfig(split=config.data.split)
    check_end(OptimConfig(**vars(config.model.optim)), config.trainer.max_steps)
    check_endless(config.trainer)


def round_counts(trainer: Namespace) -> None:
    """Make numbers of batches whole numbers.

    Lightning takes either kind, and which of the two a number becomes depends on what the process
    has imported: Python keeps one of Optional[Union[int, float]] and Optional[Union[float, int]].
    """
    for name, value in vars(trainer).items():
        counts = name.endswith("_batches") or name == "val_check_interval"
        if counts and isinstance(value, float) and value > 1 and value.is_integer():
            trainer[name] = int(value)


def check_endless(trainer: Namespace) -> None:
    """Refuse fractions of a stream that has no end, unless epochs are limited to a few batches."""
    if any(isinstance(trainer[name], int) for name in ("limit_train_batches", "overfit_batches")):
        return
    for name, default in {"val_check_interval": None, "limit_train_batches": 1.0}.items():
        whole = not isinstance(trainer[name], float) or trainer[name] == default
        expected = "a whole number of batches, because training has no end"
        require(whole, f"trainer.{name}", trainer[name], expected)


def check_remaining_steps(max_steps: int, step: int, resume: Resume) -> None:
    """Exit when a resumed run is done; refuse a checkpoint beyond the steps asked for."""
    if not 0 <= max_steps <= step:
        return
    if resume != "never":
        print_once(f"all {max_steps} steps are done; more with --trainer.max_steps")
        raise SystemExit(0)
    expected = f"more than the {step} steps of the checkpoint"
    require(False, "trainer.max_steps", max_steps, expected)


def check_same_model(model: Namespace, saved: dict[str, Any], training: bool) -> None:
    """Refuse settings that the checkpoint's weights, or its optimiser's state, do not fit."""
    net = saved["net"]
    table = {"clamp_len"} if net.get("positions") in LEARNED else set()
    for name in net.keys() - (SHAPES_NO_WEIGHT - table) - {"n_token"}:
        value = list(model.net[name]) if isinstance(model.net[name], tuple) else model.net[name]
        expected = f"{net[name]}, as in the checkpoint (as in its run's config.yaml)"
        require(value == net[name], f"model.net.{name}", value, expected)
    # A checkpoint that convert wrote has no optimiser.
    if training and "optim" in saved:
        name, before = model.optim.name, saved["optim"]["name"]
        same = SAME_STATE.get(name, name) == SAME_STATE.get(before, before)
        expected = f"{before}, as in the checkpoint; or convert it, and start from its weights"
        require(same, "model.optim.name", name, expected)
