"""Checkpoints of a run: last, best, after a signal, after an exception."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn

from ...checkpoints import files
from ...checkpoints.files import KEY
from ...errors import StorageError
from ...files import find_write_problem
from ...signals import EXIT, PendingSignals, handle_signals, is_child, print_message
from ..run_logger import RunLogger
from .run_folder import is_fitting, run_folder


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


class LastCheckpoint(Checkpoint):
    """last.ckpt, from which training resumes as if it had not stopped; previous.ckpt before it.

    It is written after each validation, every few steps, when a signal asks for it or stops
    training, and at the end. An exception leaves crash-N.ckpt, which is never resumed by itself.

    Args:
        every_n_steps: Steps between two of them; None is only on the other occasions.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.path = Path("last.ckpt")
        self.signals = PendingSignals()
        self.handlers = ExitStack()
        self.loops_before_validation: dict[str, Any] | None = None
        self.validation_due = self.is_extended = False
        self.saved_step = -1

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            replace_signal_handlers(trainer)
            folder = run_folder(trainer) / "checkpoints"
            problem = find_write_problem(folder) if trainer.is_global_zero else None
            if problem := trainer.strategy.broadcast(problem):
                raise StorageError(problem)
            self.path, self.loops_before_validation = folder / "last.ckpt", None

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.validation_due and trainer.should_stop:
            # trainer.max_time is over: here, too, Lightning would not start.
            trainer.should_stop, self.is_extended = False, True

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if launcher := trainer.strategy.launcher:
            self.signals.kill = partial(launcher.kill, signal.SIGKILL)
        # From here on a signal waits for the end of a step.
        self.handlers.enter_context(handle_signals(self.signals.handlers()))
        if trainer.is_global_zero:
            warn_of_little_space(self.path.parent, pl_module)
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.drop_rows(trainer.global_step, self.validation_due)
        if self.validation_due:
            # As Lightning validates amid training, but from the beginning, wherever it was.
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting, trainer.validating = False, True
            loop.run()
            trainer.training = True
        if self.is_extended:
            trainer.fit_loop.epoch_loop.max_steps, self.is_extended = trainer.global_step, False
        # A run that was killed after EarlyStopping had ended it takes no further step.
        if any(each.stopping_reason.value for each in trainer.early_stopping_callbacks):
            pl_module.print("EarlyStopping has ended this run")
            trainer.should_stop = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.between_steps:
            loops = trainer.fit_loop
            # Private, because only Lightning knows whether it will validate after this hook.
            self.validation_due = loops.epoch_loop._should_check_val_fx(loops._data_fetcher)
            every = self.every_n_steps
            self.save_if_asked(trainer, due=every and trainer.global_step % every == 0)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer):
            self.loops_before_validation = deepcopy(trainer.fit_loop.state_dict())

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        if self.loops_before_validation is not None and pl_module.between_steps:
            self.save_if_asked(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        # Before BestCheckpoint writes, which may be what training resumes from.
        self.validation_due, self.loops_before_validation = False, None

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer) and pl_module.between_steps:
            self.save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict) -> None:
        if self.loops_before_validation is not None:
            # Lightning would take the validation that follows a resume for the rest of this one.
            checkpoint["loops"]["fit_loop"] = self.loops_before_validation

    def state_dict(self) -> dict[str, bool]:
        return {"validation_due": self.validation_due}

    def load_state_dict(self, state_dict: dict[str, bool]) -> None:
        self.validation_due = state_dict["validation_due"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict) -> None:
        if 0 <= trainer.max_steps <= checkpoint["global_step"] and is_validation_due(checkpoint):
            # Lightning would not start training, and so never validate.
            trainer.fit_loop.epoch_loop.max_steps = checkpoint["global_step"] + 1
            self.is_extended = True

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.saved_step != trainer.global_step:
            self.save(trainer)
        self.handlers.close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Write crash-N.ckpt; Lightning's OnExceptionCheckpoint would wait for the other ranks."""
        self.handlers.close()
        expected = isinstance(exception, SystemExit) or hasattr(exception, "exit_code")
        # Sharded weights can be gathered only by all ranks together.
        elsewhere = isinstance(trainer.strategy, ModelParallelStrategy) or trainer.global_rank
        if expected or elsewhere or trainer.global_step == 0:
            return
        path = self.path.with_name(f"crash-{trainer.global_step}.ckpt")
        try:
            # Private, because trainer.save_checkpoint ends with a barrier.
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            trainer.strategy.checkpoint_io.save_checkpoint(checkpoint, path)
        except Exception as error:
            print_message(f"no crash checkpoint: {error}")
        else:
            crashed = f"the state at the crash is in {path}"
            print_message(f"{crashed}; only last.ckpt continues training exactly")

    def save_if_asked(self, trainer: Trainer, due: bool | None = False) -> None:
        """Save if it is due or a signal asks for it, which may also stop training."""
        exit_code, wanted = trainer.lightning_module.ranks.max(*self.signals.take())
        if exit_code or wanted or due:
            self.save(trainer)
        if exit_code or wanted:
            self.stop(trainer, exit_code)

    def save(self, trainer: Trainer) -> None:
        """Write last.ckpt; all ranks call it together."""
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(self.path)
            self.saved_step = trainer.global_step

    def stop(self, trainer: Trainer, exit_code: int) -> None:
        """Leave with an exit code, if there is one; on SLURM also without, to be queued again."""
        requeued = not exit_code and SLURMEnvironment.detect()
        if trainer.is_global_zero:
            saved = f"saved after step {trainer.global_step}: {self.path}"
            print_message(f"{saved}; --resume auto continues")
            if requeued:
                requeue_job()
        if exit_code or requeued:
            if trainer.training:
                # Private: Lightning logs a step after this hook; this one would be in no log.
                trainer._logger_connector.update_train_step_metrics()
            raise SystemExit(0 if is_child() else exit_code or EXIT[signal.SIGTERM])


def is_validation_due(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether training was stopped after a step, before or in the validation after it."""
    return checkpoint.get("callbacks", {}).get("LastCheckpoint", {}).get("validation_due", False)


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt: the one with the lowest val/nats of its run, however often the run was resumed."""

    def __init__(self) -> None:
        names = {"auto_insert_metric_name": False, "enable_version_counter": False}
        super().__init__(filename="best", monitor="val/nats", **names)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        best, score = Path(self.dirpath) / "best.ckpt", state_dict["best_model_score"]
        # A run killed after its first best.ckpt resumes from before that validation: no score yet.
        if best.is_file() and score is not None:
            # The folder may have moved since, and Lightning compares paths.
            path = str(best)
            moved = {"dirpath": self.dirpath, "best_model_path": path, "kth_best_model_path": path}
            super().load_state_dict(state_dict | moved | {"best_k_models": {path: score}})


def requeue_job() -> None:
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


def warn_of_little_space(folder: Path, pl_module: Any) -> None:
    """Warn if three checkpoints may not fit: last, previous, and the one being written."""
    weights = sum(parameter.nbytes for parameter in pl_module.parameters())
    # Each holds the weights and two moments.
    needed, free = 3 * 3 * weights, shutil.disk_usage(folder).free
    if free < needed:
        rank_zero_warn(f"{folder}: {free:,} bytes free; checkpoints may need {needed:,}")
