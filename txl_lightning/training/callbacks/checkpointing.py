"""Checkpoints of a run: last, best, after a signal, after an exception."""

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn

from ...checkpoints import files
from ...checkpoints.files import KEY
from ...errors import StorageError
from ...files import find_write_problem
from ...signals import EXIT, PendingSignals, handle_signals, is_child, print_message
from ..run_logger import RunLogger


class AtomicCheckpointIO(CheckpointIO):
    """Checkpoints that are whole or absent, known by their checksum, and never execute anything."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        state = checkpoint.get(KEY, {})
        about = {
            "step": checkpoint["global_step"],
            "exact": state.get("exact", False),
            "world_size": state.get("world_size", 1),
            "text": checkpoint.get("CorpusDataModule", {}).get("fingerprint"),
            "format": files.FORMAT,
            "versions": files.installed_versions(),
        }
        files.save_checkpoint(checkpoint, Path(path), about)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return files.load_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        files.remove_checkpoint(Path(path))


class LastCheckpoint(ModelCheckpoint):
    """last.ckpt, from which training resumes as if it had not stopped; previous.ckpt before it.

    It is written after each validation, every few steps, when a signal asks for it or stops
    training, and at the end. An exception leaves crash-N.ckpt, which is never resumed by itself.

    Args:
        every_n_steps: Steps between two of them; None is only on the other occasions.
        dirpath: The folder; None is the logger's.
    """

    def __init__(self, every_n_steps: int | None = None, dirpath: str | Path | None = None) -> None:
        super().__init__(dirpath, filename="last", save_top_k=0, enable_version_counter=False)
        self.every_n_steps = every_n_steps
        self.signals = PendingSignals()
        self.handlers = ExitStack()
        self.loops_before_validation: dict[str, Any] | None = None
        self.in_validation = False
        self.validation_due = False
        self.saved_step = -1

    @property
    def last(self) -> Path:
        return Path(self.dirpath) / "last.ckpt"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            replace_signal_handlers(trainer)
            problem = trainer.strategy.broadcast(
                find_write_problem(Path(self.dirpath)) if trainer.is_global_zero else None
            )
            if problem:
                raise StorageError(problem)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if launcher := trainer.strategy.launcher:
            self.signals.kill = partial(launcher.kill, signal.SIGKILL)
        # From here on a signal waits for the end of a step.
        self.handlers.enter_context(handle_signals(self.signals.handlers()))
        if trainer.is_global_zero:
            warn_of_little_space(Path(self.dirpath), pl_module)
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.drop_rows(trainer.global_step, self.validation_due)
        if self.validation_due:
            # As Lightning validates amid training, but from the beginning, wherever it was.
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting, trainer.validating = False, True
            loop.run()
            trainer.training = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not pl_module.between_steps:
            return
        loops = trainer.fit_loop
        # Private, because only Lightning knows whether it will validate after this hook.
        self.validation_due = loops.epoch_loop._should_check_val_fx(loops._data_fetcher)
        exit_code, wanted = pl_module.ranks.max(*self.signals.take())
        due = self.every_n_steps and trainer.global_step % self.every_n_steps == 0
        if exit_code or wanted or due:
            self.save(trainer)
        if exit_code or wanted:
            self.stop(trainer, exit_code)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.loops_before_validation = deepcopy(trainer.fit_loop.state_dict())

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        if self.loops_before_validation is None or not pl_module.between_steps:
            return
        exit_code, wanted = pl_module.ranks.max(*self.signals.take())
        if exit_code or wanted:
            self.in_validation = True
            self.save(trainer)
            self.in_validation = False
            self.stop(trainer, exit_code)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Before BestCheckpoint writes, which may be what training resumes from.
        self.validation_due = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.loops_before_validation is not None and pl_module.between_steps:
            self.save(trainer)
        self.loops_before_validation = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.in_validation:
            # Lightning would take the validation that follows a resume for the rest of this one.
            checkpoint["loops"]["fit_loop"] = self.loops_before_validation

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"validation_due": self.validation_due}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validation_due = state_dict.get("validation_due", False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # ModelCheckpoint would save: an epoch has no meaning here.
        pass

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.saved_step != trainer.global_step:
            self.save(trainer)
        self.handlers.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write crash-N.ckpt; Lightning's OnExceptionCheckpoint would wait for the other ranks."""
        self.handlers.close()
        expected = isinstance(exception, SystemExit) or hasattr(exception, "exit_code")
        # Sharded weights can be gathered only by all ranks together.
        elsewhere = isinstance(trainer.strategy, ModelParallelStrategy) or trainer.global_rank
        if expected or elsewhere or trainer.global_step == 0:
            return
        path = Path(self.dirpath) / f"crash-{trainer.global_step}.ckpt"
        try:
            # Private, because trainer.save_checkpoint ends with a barrier.
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            trainer.strategy.checkpoint_io.save_checkpoint(checkpoint, path)
        except Exception as error:
            print_message(f"no crash checkpoint: {error}")
        else:
            print_message(
                f"the state at the crash is in {path}; only last.ckpt continues training exactly"
            )

    def save(self, trainer: Trainer) -> None:
        """Write last.ckpt; all ranks call it together."""
        if trainer.fast_dev_run:
            return
        trainer.save_checkpoint(self.last)
        self.saved_step = trainer.global_step

    def stop(self, trainer: Trainer, exit_code: int) -> None:
        """Leave with an exit code, if there is one; on SLURM also without, to be queued again."""
        requeued = not exit_code and SLURMEnvironment.detect()
        if trainer.is_global_zero:
            print_message(
                f"saved after step {trainer.global_step}: {self.last}; --resume auto continues"
            )
            if requeued:
                requeue_job()
        if exit_code or requeued:
            if trainer.training:
                # Private: Lightning logs a step after this hook; this one would be in no log.
                trainer._logger_connector.update_train_step_metrics()
            raise SystemExit(0 if is_child() else exit_code or EXIT[signal.SIGTERM])


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt: the one with the lowest val/nats of its run, however often the run was resumed.

    Args:
        dirpath: The folder; None is the logger's.
    """

    def __init__(self, dirpath: str | Path | None = None) -> None:
        names = {"auto_insert_metric_name": False, "enable_version_counter": False}
        super().__init__(dirpath, filename="best", monitor="val/nats", **names)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        best = Path(self.dirpath) / "best.ckpt"
        if best.is_file():
            # The folder may have moved since, and Lightning compares paths.
            path, score = str(best), state_dict["best_model_score"]
            moved = {"dirpath": self.dirpath, "best_model_path": path, "kth_best_model_path": path}
            super().load_state_dict(state_dict | moved | {"best_k_models": {path: score}})


def requeue_job() -> None:
    """Ask SLURM to run this job once more."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print_message(f"job {job} cannot be requeued ({error}); run: scontrol requeue {job}")


def replace_signal_handlers(trainer: Trainer) -> None:
    """Keep Lightning's signal handlers out: they make ranks wait for each other in mid-step."""
    # Private, because no setting turns them off (the tests with two processes would hang).
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


def warn_of_little_space(folder: Path, pl_module: LightningModule) -> None:
    """Warn if three checkpoints may not fit: last, previous, and the one being written."""
    weights = sum(parameter.nbytes for parameter in pl_module.parameters())
    # Each holds the weights and two moments.
    needed, free = 3 * 3 * weights, shutil.disk_usage(folder).free
    if free < needed:
        rank_zero_warn(f"{folder}: {free:,} bytes free; checkpoints may need {needed:,}")
