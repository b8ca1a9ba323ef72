"""What every run has beside its steps."""

from pathlib import Path

import jsonargparse
from lightning.pytorch import Callback

from .callbacks.checkpointing import BestCheckpoint, LastCheckpoint
from .callbacks.predictions import SaveNats
from .callbacks.progress_bar import TokenProgressBar
from .callbacks.report import Report
from .callbacks.throughput import Throughput
from .callbacks.validation_probe import ValidationProbe
from .callbacks.wandb import WandbRun


def default_callbacks(verb: str, config: jsonargparse.Namespace) -> list[Callback]:
    """What every run of a verb has, unless its flags say otherwise; a config's own are added."""
    if verb == "predict":
        return [SaveNats()]
    return [*watching(config), *saving(config)] if verb == "fit" else []


def watching(config: jsonargparse.Namespace) -> list[Callback]:
    """What notes a run and shows it."""
    probe = ValidationProbe(config.report.sample_len)
    callbacks: list[Callback] = [Throughput(), probe]
    if config.report.html:
        callbacks.append(Report(probe))
    # After the report, which draws what W&B shows.
    callbacks.append(WandbRun(probe, config.wandb.checkpoints))
    if config.trainer.enable_progress_bar is not False:
        callbacks.append(TokenProgressBar())
    return callbacks


def saving(config: jsonargparse.Namespace) -> list[Callback]:
    """What writes its checkpoints."""
    if config.trainer.enable_checkpointing is False:
        return []
    root = Path(config.trainer.default_root_dir)
    # A logger has its folder.
    dirpath = next_run(root) / "checkpoints" if config.trainer.logger is False else None
    return [
        BestCheckpoint(root, dirpath),
        LastCheckpoint(config.checkpoint.every_n_steps, dirpath),
    ]


def next_run(root: Path) -> Path:
    """The folder of a run that has no logger to make one."""
    numbers = [int(path.name.removeprefix("version_")) for path in root.glob("version_[0-9]*")]
    return root / f"version_{max(numbers, default=-1) + 1}"
