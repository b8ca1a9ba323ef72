"""Weights & Biases: numbers over tokens, one run however often resumed, and none lost for it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from ...checkpoints.files import entries, manifest_of
from ...errors import UnreachableServerError
from ...evaluation.environment import commit, release
from .history import History


@dataclass(frozen=True)
class WandbConfig:
    """What becomes of a run whose logger is W&B's."""

    required: bool = False
    """Stop where the server cannot be reached; otherwise the run goes on offline."""
    checkpoints: Literal["best", "all", "none"] = "best"
    """What W&B keeps when training is over: best.ckpt, last.ckpt too, or neither."""


PROJECT = "txl_lightning"
SECONDS = 20.0
"""How long to wait for the server when a run begins."""


class Board(WandbLogger):
    """A `WandbLogger` that goes on offline when the server cannot be reached.

    Args:
        given: The logger that was asked for; it has begun no run yet.
        root: Where runs are kept; W&B's files are there too.
        required: Stop where the server cannot be reached, instead of going on offline.
        run_id: The run to go on with, if it is one.
    """

    def __init__(self, given: WandbLogger, root: str, required: bool, run_id: str | None) -> None:
        import wandb

        init = {name: value for name, value in given._wandb_init.items() if value is not None}
        if init["project"] == "lightning_logs" and "WANDB_PROJECT" not in os.environ:
            init["project"] = PROJECT
        default = os.environ.get("WANDB_DIR", root)
        init["dir"] = default if init.get("dir") in (None, ".") else init["dir"]
        init["id"] = init.get("id") or run_id
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            init.setdefault("settings", wandb.Settings(init_timeout=SECONDS))
        name, project, run_dir = init.pop("name", None), init.pop("project"), init.pop("dir")
        about = {"log_model": given._log_model, "prefix": given._prefix}
        about |= {"checkpoint_name": given._checkpoint_name}
        about |= {"add_file_policy": given.add_file_policy}
        super().__init__(name, run_dir, offline=given._offline, project=project, **about, **init)
        self._wandb_init.pop("anonymous")
        self.required, self.tokens = required, 0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, begun when it is first asked for."""
        if self._experiment is None:
            self._experiment = self.begun()
            define(self._experiment)
        return self._experiment

    def begun(self) -> Any:
        """A run, online or, where that cannot be, offline.

        Raises:
            Unreachable: it is required.
        """
        # It takes a second, and only who asks for it needs it.
        import wandb

        Path(self._wandb_init["dir"]).mkdir(parents=True, exist_ok=True)
        try:
            return wandb.init(**self._wandb_init, mode="offline" if self._offline else None)
        except wandb.errors.Error as error:
            reason = str(error).partition("\n")[0]
            if self.required:
                raise UnreachableServerError(
                    f"wandb.required: W&B cannot be reached: {reason}"
                ) from error
            rank_zero_warn(f"W&B cannot be reached ({reason}); this run goes on offline")
            self._offline = True
            return wandb.init(**self._wandb_init, mode="offline")

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Keep apart what Lightning knows of model and data: the run's config has such names."""
        super().log_hyperparams({"hparams": dict(params)})

    @rank_zero_only
    def tell(self, about: dict[str, Any]) -> None:
        """Put into the run's config."""
        super().log_hyperparams(about)

    @rank_zero_only
    def keep(self, path: Path, alias: str) -> None:
        """Log a checkpoint as a version of the run's artifact."""
        import wandb

        digest, about = next(iter(entries(path).items()))
        artifact = wandb.Artifact(
            f"checkpoint-{self.experiment.id}", "model", metadata={"sha256": digest, **about}
        )
        for file in (path, manifest_of(path)):
            # It stays as it is: to go on from it is to write elsewhere.
            artifact.add_file(str(file.resolve()), policy="immutable")
        self.experiment.log_artifact(artifact, aliases=[alias, f"step-{about['step']}"])

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers, and how many tokens were read before them."""
        super().log_metrics({**metrics, "tokens": self.tokens}, step)


def define(run: Any) -> None:
    """What is drawn over what, and what a table of runs says of each."""
    for name in ("trainer/global_step", "tokens"):
        run.define_metric(name)
    run.define_metric("*", step_metric="tokens")
    for best in ("val/nats", "val/bits_per_byte", "val/perplexity"):
        define_best(run, best)


def define_best(run: Any, name: str) -> None:
    """Let a run's summary have the least of a number; W&B does not of one that * stands for."""
    run.define_metric(name, step_metric="tokens", summary="min,last")


class Dashboard(Callback):
    """Keep what a W&B run needs to be gone on with, and tell its logger where training is.

    Args:
        history: What knows how many tokens were read.
        checkpoints: What W&B keeps of them; where log_model of the logger is set, that holds.
    """

    def __init__(self, history: History, checkpoints: str = "best") -> None:
        self.history, self.checkpoints = history, checkpoints
        self.run_id: str | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Say which code it is; ask for the run's id."""
        for board in boards(trainer):
            board.tell({"txl_lightning": {"commit": commit(), "release": release()}})
            self.run_id = board.version
            define_best(board.experiment, f"val/bits_per_{pl_module.unit}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After a resume, a validation may come first."""
        self.count(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Count for what is logged next."""
        self.count(trainer)

    def count(self, trainer: Trainer) -> None:
        """How many tokens were read."""
        for board in boards(trainer):
            board.tokens = self.history.tokens

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the checkpoints, if anything was trained."""
        names = {"best": ["best"], "all": ["best", "last"], "none": []}[self.checkpoints]
        for folder in {Path(each.dirpath) for each in trainer.checkpoint_callbacks if each.dirpath}:
            for name in names:
                path = folder / f"{name}.ckpt"
                for board in boards(trainer):
                    if path.is_file() and not board._log_model:
                        board.keep(path, name)

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"wandb": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it, also while nothing is logged there."""
        self.run_id = self.run_id or state_dict["wandb"]


def boards(trainer: Trainer) -> list[Board]:
    """The loggers that are W&B's."""
    return [logger for logger in trainer.loggers if isinstance(logger, Board)]


def on_a_board(
    loggers: list[Logger], root: str, required: bool, run_id: str | None
) -> list[Logger]:
    """The same loggers, with W&B's made as here.

    Raises:
        ValueError: W&B is required, and no logger is its.
    """
    if required and not any(isinstance(each, WandbLogger) for each in loggers):
        raise ValueError("wandb.required: true wants --trainer.logger WandbLogger")
    return [
        Board(each, root, required, run_id) if isinstance(each, WandbLogger) else each
        for each in loggers
    ]


def run_in(checkpoint: Mapping[str, Any]) -> str | None:
    """The id of the W&B run that wrote a checkpoint, if one did."""
    return checkpoint.get("callbacks", {}).get("Dashboard", {}).get("wandb")
