"""Weights & Biases: metrics over tokens, one W&B run for all resumes, offline if needed."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from ... import __version__
from ...checkpoints.saving import manifest_path, read_manifest
from ...errors import format_line
from ...files import check_folder_writable
from ...machine import find_commit
from ...runs.folder import BEST, CHECKPOINTS, CONFIG, LAST, find_run_folder, run_folder
from ..module import LanguageModel
from .validation_probe import ValidationProbe

KEPT = {"best": [BEST], "all": [BEST, LAST], "none": []}
"""Checkpoints that W&B keeps, by the setting wandb.checkpoints."""


class OfflineFallbackWandbLogger(WandbLogger):
    """A WandbLogger that logs metrics over tokens, offline if the server cannot be reached.

    It stores its files in the root, the folder of runs.
    """

    def __init__(self, root: str, required: bool, run_id: str | None, spec: Namespace) -> None:
        options = drop_none(spec.init_args.as_dict() | dict(spec.get("dict_kwargs") or {}))
        options.setdefault("project", os.environ.get("WANDB_PROJECT", "txl_lightning"))
        folder = options.get("save_dir", options.get("dir", "."))
        options["save_dir"] = os.environ.get("WANDB_DIR", root) if folder == "." else folder
        if options["save_dir"] == os.environ.get("WANDB_DIR"):
            check_folder_writable("WANDB_DIR", options["save_dir"])
        options.setdefault("id", run_id)
        # Seconds; with W&B's own 90, a run without a network would wait too long.
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")
        super().__init__(**options)
        # Private, here and below: W&B warns of settings that Lightning passes as None.
        self._wandb_init = drop_none(self._wandb_init)
        self.required = required
        self.model: LanguageModel | None = None
        self.logs_checkpoints = bool(options.get("log_model"))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        # Slow to import, and needed only by runs with this logger.
        import wandb

        Path(self.save_dir).mkdir(parents=True, exist_ok=True)
        try:
            return super().experiment
        except wandb.errors.Error as error:
            message = f"W&B cannot be reached: {str(error).splitlines()[0]}"
            if self.required:
                raise ValueError(f"wandb.required: {message}") from error
            rank_zero_warn(f"{message}; this run goes on offline")
            self._wandb_init["mode"] = "offline"
        try:
            return super().experiment
        except wandb.errors.Error as error:
            raise ValueError(f"trainer.logger: W&B: {format_line(str(error))}") from error

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        # The config of the run has keys model and data too.
        self.update_config({"hparams": dict(params)})

    @rank_zero_only
    def update_config(self, values: dict[str, Any]) -> None:
        super().log_hyperparams(values)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        tokens = self.model.tokens_seen if self.model else 0
        super().log_metrics({**metrics, "tokens": tokens}, step)

    @rank_zero_only
    def log_checkpoint_artifact(self, path: Path) -> None:
        import wandb

        digest, entry = next(iter(read_manifest(path).items()))
        metadata = {"sha256": digest, **entry}
        artifact = wandb.Artifact(f"checkpoint-{self.experiment.id}", "model", metadata=metadata)
        for file in (path, manifest_path(path), find_run_folder(path) / CONFIG):
            if file.is_file():
                artifact.add_file(str(file.resolve()))
        self.experiment.log_artifact(artifact, aliases=[path.stem, f"step-{entry['step']}"])


class WandbRun(Callback):
    """Keep the id of the W&B run, which a resumed run continues, and log media.

    Logged after each validation: curve and attention (pictures), val/samples (a table of texts) and
    val/nats_by_position (a chart). At the end, `checkpoints`, a key of KEPT, are logged as
    artifacts, unless the logger has its own log_model.
    """

    def __init__(self, probe: ValidationProbe, checkpoints: str = "best") -> None:
        self.probe = probe
        self.checkpoints = checkpoints
        self.wandb_id: str | None = None

    def setup(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        self.folder = run_folder(trainer)
        names = ("loss", "nats", "bits_per_byte", f"bits_per_{module.unit}", "perplexity")
        for logger in wandb_loggers(trainer):
            logger.model = module
            ours = {"commit": find_commit(), "release": __version__}
            logger.update_config({"txl_lightning": ours})
            define_metric = logger.experiment.define_metric
            define_metric("tokens")
            define_metric("*", step_metric="tokens", overwrite=True)
            # The summary of a metric defined by * has no minimum.
            for name in names:
                define_metric(f"val/{name}", step_metric="tokens", summary="min,last")

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        # Also of a logger that was given another id than the checkpoint's.
        for logger in wandb_loggers(trainer):
            self.wandb_id = logger.version

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting and trainer.is_global_zero:
            for logger in wandb_loggers(trainer):
                media = make_media(self.probe, self.folder)
                logger.log_metrics(media, trainer.global_step - 1)

    def on_fit_end(self, trainer: Trainer, *_: Any) -> None:
        loggers = [logger for logger in wandb_loggers(trainer) if not logger.logs_checkpoints]
        for name in KEPT[self.checkpoints]:
            if (path := self.folder / CHECKPOINTS / name).is_file():
                for logger in loggers:
                    logger.log_checkpoint_artifact(path)


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


def replace_wandb_loggers(
    loggers: list[Logger], specs: list[Namespace], root: str, required: bool, run_id: str | None
) -> list[Logger]:
    """Return the loggers, each WandbLogger as one of ours; `specs` have their settings."""
    replace = partial(OfflineFallbackWandbLogger, root, required, run_id)
    pairs = zip(loggers, specs, strict=True)
    return [replace(spec) if type(each) is WandbLogger else each for each, spec in pairs]


def drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
