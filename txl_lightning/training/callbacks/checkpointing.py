"""Checkpoints of a run: last.ckpt, best.ckpt, and crash-N.ckpt after an exception.

| state of the run               | last.ckpt                   | a resume                          |
|--------------------------------|-----------------------------|-----------------------------------|
| between two steps              | the last saved step         | takes the step after it           |
| in a step, or between segments | the last saved step         | takes the step after it from its  |
|   whose gradients accumulate   |                             |   first segment                   |
| a validation is due or running | its step and validation_due | validates from the first segment  |
| the same, all steps done       | its step and validation_due | only validates                    |
| the validation is over         | its step and the best score | trains; exits if no step remains  |
| after an exception             | the last saved step         | ignores crash-N.ckpt if not named |

previous.ckpt is the last.ckpt of an earlier step, for a resume that finds last.ckpt damaged.
"""

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
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn

from ...checkpoints import LoadedCheckpoint, load_checkpoint, saving
from ...checkpoints.mirror import Mirror
from ...errors import StorageError
from ...files import find_write_problem
from ...process import EXIT, PendingSignals, handle_signals, is_child, print_message
from ...runs.folder import BEST, CHECKPOINTS, FORMAT, KEY, LAST, run_folder
from ...runs.logger import RunLogger
from .. import loops
from ..module import LanguageModel


class AtomicCheckpointIO(CheckpointIO):
    """Write checkpoints atomically, with their checksum; load them without executing code.

    `start` is already loaded: its first load returns it without reading the file again.
    """

    def __init__(self, start: LoadedCheckpoint | None = None) -> None:
        self.start = start

    def __getstate__(self) -> dict[str, None]:
        # A spawned process loads the checkpoint from its file.
        return {"start": None}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, **_: Any) -> None:
        state = checkpoint.get(KEY, {})
        entry = {
            "step": checkpoint["global_step"],
            "exact": state.get("exact", False),
            "world_size": state.get("world_size", 1),
            "text": checkpoint.get("CorpusDataModule", {}).get("fingerprint"),
            "format": FORMAT,
            "versions": saving.installed_versions(),
        }
        saving.save_checkpoint(checkpoint, Path(path), entry)

    def load_checkpoint(self, path: str | Path, **_: Any) -> dict[str, Any]:
        start = self.start
        self.start = None
        if start is None or start.path != Path(path):
            start = load_checkpoint(path)
        return start.saved

    def remove_checkpoint(self, path: str | Path) -> None:
        saving.remove_checkpoint(Path(path))


class LastCheckpoint(Checkpoint):
    """Write last.ckpt, from which training resumes as if it had not stopped.

    It is written after each validation, every few steps, when a signal asks for it or stops
    training, and at the end. An exception leaves crash-N.ckpt.
    """

    def __init__(self, every_n_steps: int | None = None, mirror_url: str | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.mirror_url = mirror_url
        self.mirror: Mirror | None = None
        self.path = Path(LAST)
        self.saved_step = -1
        self.signals = PendingSignals()
        self.handlers = ExitStack()
        # The states above: a validation follows this step (TrainingStateCheckpoint sets it); it is
        # running, and only it is left.
        self.validation_due = self.only_validates = False
        self.loops_before_validation: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, *_: Any, stage: str) -> None:
        if stage == "fit":
            loops.replace_signal_handlers(trainer)
            folder = run_folder(trainer)
            problem = self.open_folder(trainer, folder) if trainer.is_global_zero else None
            if problem := trainer.strategy.broadcast(problem):
                raise StorageError(problem)
            self.path = folder / CHECKPOINTS / LAST
            self.loops_before_validation = None

    def open_folder(self, trainer: Trainer, folder: Path) -> str | None:
        """Open a run's folder and its mirror; return why one cannot be written, or None."""
        problem = find_write_problem(folder / CHECKPOINTS)
        if problem is None and self.mirror_url and not trainer.fast_dev_run:
            try:
                self.mirror = Mirror(self.mirror_url)
                self.mirror.claim(folder)
            except ValueError as error:
                return str(error)
        return problem

    def allow_validation(self, trainer: Trainer, step: int) -> None:
        """Let Lightning start a run whose steps are done, for a validation that is due."""
        if self.validation_due and 0 <= trainer.max_steps <= step:
            loops.set_last_step(trainer, step + 1)
            self.only_validates = True

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        if self.validation_due and trainer.should_stop:
            # Lightning does not start when trainer.max_time is over.
            trainer.should_stop = False
            self.only_validates = True

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        if launcher := trainer.strategy.launcher:
            self.signals.kill = partial(launcher.kill, signal.SIGKILL)
        # From here on a signal waits for the end of a step.
        self.signals.take_early_request()
        self.handlers.enter_context(handle_signals(self.signals.handlers()))
        if trainer.is_global_zero:
            warn_of_little_space(self.path.parent, module)
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                done = trainer.global_step, self.validation_due, module.tokens_seen
                logger.drop_rows(*done)
        if self.validation_due:
            loops.validate_now(trainer)
        if self.only_validates:
            loops.set_last_step(trainer, trainer.global_step)
            self.only_validates = False
        # A run that was killed after EarlyStopping had ended it takes no further step.
        if any(has_stopped(each) for each in trainer.early_stopping_callbacks):
            trainer.should_stop = True

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if module.between_steps:
            every = self.every_n_steps
            self.save_if_asked(trainer, due=every and trainer.global_step % every == 0)

    def on_validation_start(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting:
            self.loops_before_validation = deepcopy(trainer.fit_loop.state_dict())

    def on_validation_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if self.loops_before_validation is not None and module.between_steps:
            self.save_if_asked(trainer)

    def on_validation_epoch_end(self, *_: Any) -> None:
        # Before BestCheckpoint writes, because training may resume from best.ckpt.
        self.validation_due = False
        self.loops_before_validation = None

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting and module.between_steps:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        if self.saved_step != trainer.global_step:
            self.save(trainer)
        self.copy_run()
        self.handlers.close()

    def on_exception(self, trainer: Trainer, _: LanguageModel, exception: BaseException) -> None:
        """Write crash-N.ckpt; Lightning's OnExceptionCheckpoint would wait for the other ranks."""
        self.copy_run()
        self.handlers.close()
        is_expected = isinstance(exception, SystemExit) or hasattr(exception, "exit_code")
        # Sharded weights can be gathered only by all ranks together.
        is_impossible = isinstance(trainer.strategy, ModelParallelStrategy) or trainer.global_rank
        if is_expected or is_impossible or trainer.global_step == 0:
            return
        path = self.path.with_name(f"crash-{trainer.global_step}.ckpt")
        try:
            loops.save_alone(trainer, path)
        # Any error: it must not hide the one that stopped training.
        except Exception as error:
            print_message(f"no crash checkpoint: {error}")
        else:
            crashed = f"the state at the crash is in {path}"
            print_message(f"{crashed}; only last.ckpt continues training exactly")

    def save_if_asked(self, trainer: Trainer, due: bool | None = False) -> None:
        """Save if it is due or a signal asks for it, which may also stop training."""
        exit_code, is_asked = trainer.lightning_module.ranks.max(*self.signals.take())
        if exit_code or is_asked or due:
            self.save(trainer)
        if exit_code or is_asked:
            self.stop(trainer, exit_code)

    def save(self, trainer: Trainer) -> None:
        """Write last.ckpt; all ranks call it together."""
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(self.path)
            self.saved_step = trainer.global_step
            self.copy_run()

    def copy_run(self) -> None:
        if self.mirror and self.saved_step >= 0:
            self.mirror.copy(self.path.parents[1])

    def stop(self, trainer: Trainer, exit_code: int) -> None:
        """Exit after a signal to stop, and on SLURM, which queues the job again, after any."""
        is_requeued = not exit_code and SLURMEnvironment.detect()
        if is_requeued:
            self.signals.expect_stop()
        if trainer.is_global_zero:
            saved = f"saved after step {trainer.global_step}: {self.path}"
            print_message(f"{saved}; --resume auto continues")
            if is_requeued:
                self.copy_run()
                requeue_job()
        if exit_code or is_requeued:
            raise SystemExit(0 if is_child() else exit_code or EXIT[signal.SIGTERM])


def has_stopped(callback: EarlyStopping) -> bool:
    """Return True if a callback has ended the run, and would with the patience given now."""
    reason = callback.stopping_reason
    was_patience = reason.name == "PATIENCE_EXHAUSTED"
    return bool(reason.value) and not (was_patience and callback.wait_count < callback.patience)


class BestCheckpoint(ModelCheckpoint):
    """Write best.ckpt when val/nats is the lowest of the run, resumed or not."""

    def __init__(self) -> None:
        names = {"auto_insert_metric_name": False, "enable_version_counter": False}
        super().__init__(filename=Path(BEST).stem, monitor="val/nats", **names)

    def adopt(self, saved: dict[str, Any]) -> dict[str, Any] | None:
        """Return a saved best score with the folder of now; None without score or file."""
        best = Path(self.dirpath) / BEST
        score = saved["best_model_score"]
        # No score: the run was killed between its first best.ckpt and last.ckpt.
        if not best.is_file() or score is None:
            return None
        # Lightning compares paths, and the folder may have moved.
        path = str(best)
        moved = {"dirpath": self.dirpath, "best_model_path": path, "kth_best_model_path": path}
        return saved | moved | {"best_k_models": {path: score}}


def requeue_job() -> None:
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        advice = "submit it again, and `--resume auto` continues"
        print_message(f"job {job} cannot be requeued ({error}); {advice}")


def warn_of_little_space(folder: Path, module: LanguageModel) -> None:
    """Warn if three checkpoints may not fit: last, previous, and the one being written."""
    n_byte = sum(parameter.nbytes for parameter in module.parameters())
    # Each contains the weights and two moments.
    needed = 3 * 3 * n_byte
    free = shutil.disk_usage(folder).free
    if free < needed:
        rank_zero_warn(f"{folder}: {free:,} bytes free; checkpoints may need {needed:,}")
