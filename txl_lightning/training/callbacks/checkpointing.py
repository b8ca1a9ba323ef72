"""When checkpoints are written, and what a signal leaves behind."""

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
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from ...checkpoints import files
from ...checkpoints.files import KEY
from ...data.stream import Segment
from ...errors import StorageError
from ...files import find_write_problem
from ...signals import EXIT, PendingSignals, handle_signals, is_child, print_message


class WholeFiles(CheckpointIO):
    """Checkpoints that are whole or absent, known by their checksum, and never execute anything.

    Args:
        root: The default_root_dir of the run; resume looks there.
    """

    def __init__(self, root: str | Path = "runs") -> None:
        self.root = Path(root)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write it beside its place, wait for the disk, put it there."""
        path, carried = Path(path), checkpoint.get(KEY, {})
        about = {
            "step": checkpoint["global_step"],
            "exact": carried.get("exact", False),
            "world_size": carried.get("world_size", 1),
            "text": checkpoint.get("CorpusDataModule", {}).get("fingerprint"),
            "folder": os.path.relpath(path.parent, self.root),
            "format": files.FORMAT,
            "versions": files.versions(),
        }
        files.write(checkpoint, path, about)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Compare the checksum, and read tensors and plain values only."""
        return files.read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete it and its manifest."""
        files.remove(Path(path))


class LastCheckpoint(ModelCheckpoint):
    """last.ckpt, from which training goes on as if it had not stopped; previous.ckpt before it.

    It is written after each validation, every few steps, when a signal asks for it or stops
    training, and at the end. An exception leaves crash-N.ckpt, from which nothing resumes by
    itself.

    Args:
        every_n_steps: Steps between two of them; left out, only the other occasions.
        dirpath: The folder; left out, the logger's.
    """

    def __init__(self, every_n_steps: int | None = None, dirpath: str | Path | None = None) -> None:
        super().__init__(dirpath, filename="last", enable_version_counter=False)
        self.every_n_steps = every_n_steps
        self.signals = PendingSignals()
        self.handlers = ExitStack()
        self.before_validation: dict[str, Any] | None = None
        self.in_validation = False
        self.validation_due = False
        self.saved_step = -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find out before the first step whether anything can be written."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            take_over_signals(trainer)
            problem = trainer.strategy.broadcast(
                find_write_problem(Path(self.dirpath)) if trainer.is_global_zero else None
            )
            if problem:
                raise StorageError(problem)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a signal waits for the end of a step."""
        if launcher := trainer.strategy.launcher:
            self.signals.kill = partial(launcher.kill, signal.SIGKILL)
        self.handlers.enter_context(handle_signals(self.signals.handlers()))
        if trainer.is_global_zero:
            warn_of_little_room(Path(self.dirpath), pl_module)
        if self.validation_due:
            validate(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """At the end of a step, save if it is time to, or somebody wants it, and stop."""
        if not pl_module.between_steps:
            return
        loops = trainer.fit_loop
        self.validation_due = loops.epoch_loop._should_check_val_fx(loops._data_fetcher)
        exit_code, wanted = pl_module.ranks.max(*self.signals.take())
        due = self.every_n_steps and trainer.global_step % self.every_n_steps == 0
        if exit_code or wanted or due:
            self.save(trainer)
        if exit_code or wanted:
            self.stop(trainer, exit_code)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A signal may come in the midst of it, when Lightning's counters are in its midst too."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.before_validation = deepcopy(trainer.fit_loop.state_dict())

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """It may take long: training is saved as it was before it, and it is left to stop."""
        if self.before_validation is None or not pl_module.between_steps:
            return
        exit_code, wanted = pl_module.ranks.max(*self.signals.take())
        if exit_code or wanted:
            self.in_validation = True
            self.save(trainer)
            self.in_validation = False
            self.stop(trainer, exit_code)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is saved from here on has it behind it."""
        self.validation_due = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, unless gradients wait for more segments."""
        if self.before_validation is not None and pl_module.between_steps:
            self.save(trainer)
        self.before_validation = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """In the midst of a validation, count as if it had not begun."""
        if self.in_validation:
            checkpoint["loops"]["fit_loop"] = self.before_validation

    def state_dict(self) -> dict[str, Any]:
        """Whether a validation is to be made before the next step."""
        return super().state_dict() | {"validation_due": self.validation_due}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make up for it."""
        self.validation_due = state_dict.get("validation_due", False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing: an epoch has no meaning here."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The steps since the last validation are not lost."""
        if self.saved_step != trainer.global_step:
            self.save(trainer)
        self.handlers.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Keep what is there; beside it, what was reached."""
        self.handlers.close()
        expected = isinstance(exception, SystemExit) or hasattr(exception, "exit_code")
        # Parts of weights can be put together only by all ranks.
        elsewhere = isinstance(trainer.strategy, ModelParallelStrategy) or trainer.global_rank
        if expected or elsewhere or trainer.global_step == 0:
            return
        path = Path(self.dirpath) / f"crash-{trainer.global_step}.ckpt"
        try:
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            trainer.strategy.checkpoint_io.save_checkpoint(checkpoint, path)
        except Exception as error:
            print_message(f"no crash checkpoint: {error}")
        else:
            print_message(
                f"what was reached is in {path}; training continues exactly from last.ckpt only"
            )

    def save(self, trainer: Trainer) -> None:
        """On all ranks together."""
        if trainer.fast_dev_run:
            return
        trainer.save_checkpoint(self.last)
        self.saved_step = trainer.global_step

    @property
    def last(self) -> Path:
        """Where it is written."""
        return Path(self.dirpath) / "last.ckpt"

    def stop(self, trainer: Trainer, exit_code: int) -> None:
        """Leave if a signal says so; on SLURM also after its warning, to come again."""
        to_come_again = not exit_code and SLURMEnvironment.detect()
        if trainer.is_global_zero:
            print_message(
                f"saved after step {trainer.global_step}: {self.last}; --resume auto goes on"
            )
            if to_come_again:
                requeue()
        if exit_code or to_come_again:
            if trainer.training:
                # Lightning does that after this hook; or the step's row would be in no log.
                trainer._logger_connector.update_train_step_metrics()
            raise SystemExit(0 if is_child() else exit_code or EXIT[signal.SIGTERM])


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt: the one with the lowest val/nats, of the whole run, however often it stopped.

    Args:
        root: The default_root_dir of the run.
        dirpath: The folder; left out, the logger's.
    """

    def __init__(self, root: str | Path, dirpath: str | Path | None = None) -> None:
        named = {"auto_insert_metric_name": False, "enable_version_counter": False}
        super().__init__(dirpath, filename="best", monitor="val/nats", **named)
        self.root = Path(root)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Bring the best so far along into this run's folder."""
        before, here = Path(state_dict["best_model_path"]), Path(self.dirpath) / "best.ckpt"
        if not before.is_file() or before == here:
            return
        if rank_zero_only.rank == 0:
            files.copy(before, here, self.root)
        score, path = state_dict["best_model_score"], str(here)
        moved = {"best_model_path": path, "kth_best_model_path": path, "dirpath": self.dirpath}
        super().load_state_dict(state_dict | moved | {"best_k_models": {path: score}})


def validate(trainer: Trainer) -> None:
    """A validation as Lightning makes one amid training."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    # From its beginning, wherever it was.
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True


def requeue() -> None:
    """Ask SLURM to run this job once more."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print_message(
            f"job {job} cannot be queued again ({error}); do it yourself: scontrol requeue {job}"
        )


def take_over_signals(trainer: Trainer) -> None:
    """Keep Lightning's handlers out: they make processes wait for each other in mid-step."""
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


def warn_of_little_room(folder: Path, pl_module: LightningModule) -> None:
    """Say so while there is time, if three checkpoints may not fit."""
    weights = sum(
        parameter.numel() * parameter.element_size() for parameter in pl_module.parameters()
    )
    # Weights and two moments; last, previous, and the one being written.
    needed, free = 3 * 3 * weights, shutil.disk_usage(folder).free
    if free < needed:
        rank_zero_warn(f"{folder}: {free:,} bytes free; checkpoints may need {needed:,}")
