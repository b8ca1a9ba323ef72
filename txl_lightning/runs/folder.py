"""The layout of a run's folder, version_N, its lock, and the search for checkpoints.

config.yaml      settings          metrics.csv     a row per logged step
vocab.json       vocabulary        run.json        state: training, stopped, finished
checkpoints/     last.ckpt, previous.ckpt, best.ckpt, each with its manifest (last.ckpt.json)

Beside them are report.html and the results of commands. A folder that convert wrote is no
run: its config.json and model.safetensors are the checkpoint.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, StorageError
from ..files import RUN_FILE, explain_write_errors, find_host_name, require_local_path

CONFIG = "config.yaml"
METRICS = "metrics.csv"
TOKENS = "val/tokens_seen"  # a column there: tokens of training until a validation
STATE = RUN_FILE
VOCAB = "vocab.json"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"  # the last.ckpt of an earlier step
CONVERTED = "config.json"  # settings of the network in a converted folder
KEY = "txl_lightning"  # of what we add to a checkpoint, or to a converted folder's settings
FORMAT = 3  # of checkpoints of fit; incremented when older releases cannot read new ones


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint that a path names: in a run's folder best.ckpt, or else last.ckpt.

    For a folder written by convert or by another code, that is the folder itself; a folder without
    a checkpoint is a CheckpointError. wandb:ENTITY/PROJECT/NAME:ALIAS is an artifact's folder.
    """
    remedy = "; copy it, or resume with checkpoint.mirror"
    path = require_local_path("ckpt_path", path, remedy)
    if str(path).startswith("wandb:"):
        from .wandb_api import fetch_artifact

        path = fetch_artifact(path)
    if not path.is_dir() or (path / CONVERTED).is_file():
        return path
    # Not recursive: a path may be a large folder.
    candidates = (path / part / name for name in (BEST, LAST) for part in (CHECKPOINTS, ""))
    if found := next(filter(Path.is_file, candidates), None):
        return found
    deeper = sorted(path.glob(f"*/version_*/{CHECKPOINTS}"))
    inside = [each for each in list_versions(path) if (each / CHECKPOINTS).is_dir()]
    inside = inside or [each.parent for each in deeper]
    example = f", such as {inside[0]}" if inside else ""
    expected = f"expected a run's folder{example}, or one written by convert"
    raise CheckpointError(f"{path}: no checkpoint in this folder; {expected}")


def find_run_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run, which results are written to; for a converted
    folder, itself."""
    if checkpoint.is_dir():
        return checkpoint
    folder = checkpoint.parent if checkpoint.parent != Path() else Path.cwd()
    return folder.parent if folder.name == CHECKPOINTS else folder


def run_folder(trainer: Any) -> Path:
    """Return the folder that a Trainer's run writes to; all ranks call it together, to agree."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def list_versions(root: Path) -> list[Path]:
    """Return the folders version_N under a root, also without checkpoints, the latest run first."""
    folders = [path for path in root.glob("version_*") if path.is_dir()]
    return sorted(folders, key=lambda folder: parse_number(folder.name), reverse=True)


def claim_version(root: Path, creates: bool = True) -> str:
    """Return the name of the next run's folder under a root.

    It is made at once: of two runs that start at the same time, each has its own.
    """
    number = max((parse_number(path.name) for path in list_versions(root)), default=-1) + 1
    while creates:
        try:
            (root / f"version_{number}").mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
    return f"version_{number}"


def parse_number(name: str) -> int:
    """Return the N of a run's folder version_N; -1 for another folder."""
    number = name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def name_job() -> str | None:
    """Return the SLURM job of this process, ARRAY_TASK in an array, which a requeue keeps; None in
    a shell."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or os.environ.get("SLURM_JOB_NAME") in ("interactive", "bash"):
        return None
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else job


def read_job(run: Path) -> str | None:
    """Return the job that last trained in a run's folder; None if run.json names none."""
    try:
        job = json.loads((run / STATE).read_bytes())["job"]
    # A run that was killed at its start, or is of an earlier release, or a file of another tool.
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return job if isinstance(job, str) else None


def choose_run(root: Path) -> Path | None:
    """Return the run under a root that `resume` continues: the latest one, whatever it has saved.

    In a job it is its own, or else the latest one that no other task of its array trains.
    """
    runs = list_versions(root)
    job = name_job()
    own = [run for run in runs if job and read_job(run) == job]
    tasks = f"{job.partition('_')[0]}_" if job and "_" in job else None
    others = [run for run in runs if not tasks or not (read_job(run) or "").startswith(tasks)]
    return next(iter(own or others), None)


def lock_folder(folder: Path) -> int:
    """Create and lock a folder until the handle is closed; StorageError if it is locked already."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StorageError(f"{folder}: another process trains there") from error
    except OSError:
        # Not every file system has locks.
        pass
    return handle


def remove_partial_files(root: Path) -> None:
    """Remove partial files of ended processes of this machine."""
    for part in root.glob("version_*/**/.*.part"):
        *_, host, pid, _ = part.name.split(".")
        if host == find_host_name() and pid.isdecimal() and not is_running(int(pid)):
            part.unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Return True if another process on this machine has this id."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return pid != os.getpid()
