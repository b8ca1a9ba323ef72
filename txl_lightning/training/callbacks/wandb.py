"""Weights & Biases: metrics over tokens, one run however often resumed, offline if it must be."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from ... import __version__
from ...checkpoints.files import manifest_path, read_manifest
from ...errors import require
from ...evaluation.environment import commit
from .run_folder import is_fitting, run_folder
from .validation_probe import ValidationProbe


@dataclass(frozen=True)
class WandbConfig:
    """Settings of Weights & Biases, for runs whose logger is WandbLogger."""

    required: bool = False
    """Stop where the server cannot be reached; otherwise the run goes on offline."""
    checkpoints: Literal["best", "all", "none"] = "best"
    """Checkpoints that W&B keeps when training is over: best.ckpt, last.ckpt too, or neither."""


class OfflineFallbackWandbLogger(WandbLogger):
    """The config's WandbLogger, offline where the server cannot be reached, unless it is required.

    W&B's files are kept in the root, the folder of runs.
    """

    def __init__(self, logger: WandbLogger, root: str, required: bool, run_id: str | None) -> None:
        super().__init__()
        # Lightning has no public copy of what a logger was asked for.
        vars(self).update(vars(logger))
        init = {name: value for name, value in self._wandb_init.items() if value is not None}
        if init["project"] == "lightning_logs" and "WANDB_PROJECT" not in os.environ:
            init["project"] = "txl_lightning"
        if init.get("dir") in (None, "."):
            init["dir"] = os.environ.get("WANDB_DIR", root)
        init.setdefault("id", run_id)
        # Seconds; W&B's own 90 are a long time to stand still where there is no network.
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")
        self._wandb_init, self._project = init, init["project"]
        self._save_dir, self._id = init["dir"], init["id"]
        self.required, self.tokens_seen = required, 0.0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        # It takes a second to import, and only who asks for it needs it.
        import wandb

        if self._experiment is None:
            init = partial(wandb.init, **self._wandb_init)
            Path(self._wandb_init["dir"]).mkdir(parents=True, exist_ok=True)
            try:
                self._experiment = init(mode="offline" if self._offline else None)
            except wandb.errors.Error as error:
                message = f"W&B cannot be reached: {str(error).splitlines()[0]}"
                if self.required:
                    raise ValueError(f"wandb.required: {message}") from error
                rank_zero_warn(f"{message}; this run goes on offline")
                self._experiment = init(mode="offline")
            self._experiment.define_metric("trainer/global_step")
            self._experiment.define_metric("tokens")
            self._experiment.define_metric("*", step_metric="tokens")
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        # Under a name of their own: the run's config has model and data too.
        self.update_config({"hparams": dict(params)})

    @rank_zero_only
    def update_config(self, values: dict[str, Any]) -> None:
        super().log_hyperparams(values)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name in ("train/tokens_seen", "val/tokens_seen"):
            self.tokens_seen = metrics.get(name, self.tokens_seen)
        super().log_metrics({**metrics, "tokens": self.tokens_seen}, step)

    @rank_zero_only
    def log_checkpoint_artifact(self, path: Path, alias: str) -> None:
        import wandb

        digest, about = next(iter(read_manifest(path).items()))
        metadata = {"sha256": digest, **about}
        artifact = wandb.Artifact(f"checkpoint-{self.experiment.id}", "model", metadata=metadata)
        for file in (path, manifest_path(path)):
            artifact.add_file(str(file.resolve()))
        self.experiment.log_artifact(artifact, aliases=[alias, f"step-{about['step']}"])


class WandbRun(Callback):
    """Store the W&B run id in checkpoints, so that a resumed run continues it; log media to it.

    Logged after each validation: curve and attention (pictures), val/samples (a table of texts) and
    val/nats_by_position (a chart). A logger's own log_model wins over `checkpoints`.
    """

    def __init__(self, probe: ValidationProbe, checkpoints: str = "best") -> None:
        self.probe, self.checkpoints = probe, checkpoints
        self.run_id: str | None = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self.folder = run_folder(trainer)
        names = ("loss", "nats", "bits_per_byte", f"bits_per_{pl_module.unit}", "perplexity")
        # The least value in the run's summary, which W&B has not of metrics under *.
        options = {"step_metric": "tokens", "summary": "min,last"}
        for logger in wandb_loggers(trainer):
            logger.update_config({"txl_lightning": {"commit": commit(), "release": __version__}})
            for name in names:
                logger.experiment.define_metric(f"val/{name}", **options)
            self.run_id = logger.version

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer) and trainer.is_global_zero:
            for logger in wandb_loggers(trainer):
                media = make_media(self.probe, self.folder)
                logger.log_metrics(media, trainer.global_step - 1)

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        loggers = [logger for logger in wandb_loggers(trainer) if not logger._log_model]
        for name in {"best": ["best"], "all": ["best", "last"], "none": []}[self.checkpoints]:
            if (path := self.folder / "checkpoints" / f"{name}.ckpt").is_file():
                for logger in loggers:
                    logger.log_checkpoint_artifact(path, name)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Kept also while nothing is logged there.
        self.run_id = self.run_id or state_dict["run_id"]


def make_media(probe: ValidationProbe, folder: Path) -> dict[str, Any]:
    import wandb

    title = "nats by position in the segment"
    table = wandb.Table(["position", "nats"], probe.nats_by_position)
    media = {"val/nats_by_position": wandb.plot.line(table, "position", "nats", title=title)}
    if probe.samples:
        media["val/samples"] = wandb.Table(["step", "text"], probe.samples)
    paths = {name: folder / f"{name}.png" for name in ("curve", "attention")}
    return media | {name: wandb.Image(str(paths[name])) for name in paths if paths[name].is_file()}


def wandb_loggers(trainer: Trainer) -> list[OfflineFallbackWandbLogger]:
    return [each for each in trainer.loggers if isinstance(each, OfflineFallbackWandbLogger)]


def wrap_wandb_loggers(loggers: list[Logger], root: str, required: bool, run_id: str | None) -> Any:
    """Return the same loggers, W&B's as `OfflineFallbackWandbLogger`."""
    theirs = [isinstance(each, WandbLogger) for each in loggers]
    require(any(theirs) or not required, "wandb.required", "true", "--trainer.logger WandbLogger")
    return [
        OfflineFallbackWandbLogger(each, root, required, run_id) if is_theirs else each
        for each, is_theirs in zip(loggers, theirs, strict=True)
    ]


def run_id_from(checkpoint: Mapping[str, Any]) -> str | None:
    return checkpoint.get("callbacks", {}).get("WandbRun", {}).get("run_id")
