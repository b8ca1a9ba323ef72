"""Start of training: a new run, a checkpoint, or converted weights."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only

from .. import errors
from ..checkpoints.files import find_latest, remove_partial_files
from ..checkpoints.runs import find_checkpoint, read_data_settings
from ..data.datamodule import CorpusConfig, CorpusDataModule
from ..data.vocab import Vocabulary
from ..model import TransformerXL
from ..model.config import LEARNED
from .callbacks.checkpointing import is_validation_due
from .module import LanguageModel

Resume = Literal["auto", "must", "never"]
print_once = rank_zero_only(errors.print_notice)
SHAPES_NO_WEIGHT = {"mem_len", "clamp_len", "same_length", "kernel", "loss_chunk_size"}
SHAPES_NO_WEIGHT |= {"dropout", "dropout_type", "dropatt"}
SHAPES_NO_WEIGHT |= {"init", "init_std", "init_range", "proj_init_std"}
"""Fields of a checkpoint's network that may be given another value."""
SAME_STATE = {"adamw": "adam"}
"""Optimizers with the same state as another one."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Additional times at which last.ckpt is written, besides validations and the end."""

    every_n_steps: int | None = None
    """Number of steps between writes."""

    def __post_init__(self) -> None:
        errors.require_at_least(self, every_n_steps=1)


def find_start(resume: Resume, ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint to start from, or None for a new run.

    A path is a file, a run's folder or convert's, or "last": what resume would find under the root.
    """
    if ckpt_path not in (None, "last"):
        expected = "never with ckpt_path: one of them says where to start"
        errors.require(resume == "never", "resume", resume, expected)
        return find_checkpoint(ckpt_path)
    if resume == "never" and ckpt_path is None:
        return None
    if rank_zero_only.rank == 0:
        remove_partial_files(root)
    path, complaints = find_latest(root)
    for complaint in complaints:
        print_once(f"warning: {complaint}; passed over")
    if path is None and (resume == "must" or ckpt_path == "last"):
        setting = "resume: must" if resume == "must" else "ckpt_path: last"
        words = f"{setting}: there is no whole checkpoint of a run under {root}"
        raise errors.CheckpointError(words)
    print_once(f"resume: {path or f'nothing under {root}; training starts from the beginning'}")
    return path


def check_remaining_steps(max_steps: int, checkpoint: dict[str, Any], resume: Resume) -> None:
    """Exit if a resumed run is complete; refuse a checkpoint with more steps than max_steps."""
    step = checkpoint.get("global_step", 0)
    if not 0 <= max_steps <= step or (max_steps == step and is_validation_due(checkpoint)):
        return
    if resume != "never":
        print_once(f"all {max_steps} steps are done; more with --trainer.max_steps")
        raise SystemExit(0)
    expected = f"more than the {step} steps of the checkpoint"
    errors.require(False, "trainer.max_steps", max_steps, expected)


def check_same_model(model: Namespace, saved: dict[str, Any], training: bool) -> None:
    """Refuse settings that conflict with the checkpoint's weights or optimizer state."""
    net = saved["net"]
    table = {"clamp_len"} if net.get("positions") in LEARNED else set()
    for name in net.keys() - (SHAPES_NO_WEIGHT - table) - {"n_token"}:
        value = list(model.net[name]) if isinstance(model.net[name], tuple) else model.net[name]
        expected = f"{net[name]}, as in the checkpoint (as in its run's config.yaml)"
        errors.require(value == net[name], f"model.net.{name}", value, expected)
    # A converted checkpoint has no optimizer state.
    if training and "optim" in saved:
        name, before = model.optim.name, saved["optim"]["name"]
        same = SAME_STATE.get(name, name) == SAME_STATE.get(before, before)
        expected = f"{before}, as in the checkpoint; or convert it, and start from its weights"
        errors.require(same, "model.optim.name", name, expected)


def text_settings(start: Path, is_named: bool) -> dict[str, Any]:
    """Return the settings of data that a run has in its folder, but its text if one is named."""
    settings = read_data_settings(start)
    names = settings.keys() & {field.name for field in fields(CorpusConfig)}
    names -= {"corpus", "path"} if is_named else set()
    return errors.flatten_settings({name: settings[name] for name in names}, "data.")


def load_weights(
    net: TransformerXL, vocab: Vocabulary | None, model: LanguageModel, data: CorpusDataModule
) -> None:
    """Load the weights of another run; vocabularies must be equal, or of equal size if unknown."""
    if vocab is not None:
        data.load_state_dict({"vocab": vocab.to_json()})
    elif net.config.n_token != data.n_token:
        sizes = f"{data.n_token} tokens are not the {net.config.n_token} of the weights"
        raise errors.DataError(f"data.vocab: {sizes}; give the vocabulary that it was trained with")
    model.net.load_state_dict(net.state_dict())
