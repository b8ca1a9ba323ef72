"""The checkpoint to resume from, and the files that a killed process has left."""

import os
from pathlib import Path

from ..errors import CheckpointError
from ..files import host_name
from .files import manifest_path, newest_step, read_manifest, verify_checkpoint


def find_latest(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest whole checkpoint of the latest run, and what is wrong with others.

    The latest run has the greatest N of version_N, its newest checkpoint has most steps: the clocks
    of files say nothing. What was saved in a crash is passed over, and so is a run without any.
    """
    complaints: list[str] = []
    for folder in sorted(root.glob("version_*/checkpoints"), key=run_number, reverse=True):
        if path := find_in_run(folder, complaints):
            return path, complaints
    return None, complaints


def find_in_run(folder: Path, complaints: list[str]) -> Path | None:
    """Return the newest whole checkpoint in a folder; add to the complaints."""
    claims: list[tuple[int, bool, Path]] = []
    for path in sorted(folder.glob("*.ckpt")):
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            complaints.append(str(error))
            continue
        if manifest:
            claims.append((newest_step(manifest), path.name == "last.ckpt", path))
        else:
            complaints.append(f"{path}: its manifest {manifest_path(path)} is missing")
    best: tuple[int, Path] | None = None
    for step, _, path in sorted(claims, reverse=True):
        if best and step <= best[0]:
            break
        try:
            entry = verify_checkpoint(path)
        except CheckpointError as error:
            complaints.append(str(error))
            continue
        # After a kill, a manifest may claim more steps than its file has.
        if entry["exact"] and (best is None or entry["step"] > best[0]):
            best = entry["step"], path
    return best and best[1]


def run_number(folder: Path) -> int:
    """Return N of version_N/checkpoints, or -1."""
    number = folder.parent.name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def remove_partial_files(root: Path) -> None:
    """Remove what ended processes of this machine were writing into their runs."""
    for part in root.glob("version_*/**/.*.part"):
        *_, host, pid, _ = part.name.split(".")
        if host == host_name() and pid.isdecimal() and not is_running(int(pid)):
            part.unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Return whether another process has this id; this one writes nothing when it asks."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
