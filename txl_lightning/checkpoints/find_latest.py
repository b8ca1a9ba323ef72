"""Which checkpoint to go on from, and what a killed process has left."""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import CheckpointError
from ..files import host_name
from .files import check, entries, manifest_of, newest_step


def find_latest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of the runs under `root`, and what is wrong with others.

    Newest is what has made most steps in the latest run (version_N): the clocks of files say
    nothing. What was saved in the midst of a crash is passed over.
    """
    complaints: list[str] = []
    found: dict[int, list[tuple[int, bool, Path]]] = {}
    for path in sorted(everything(root, "*.ckpt")):
        try:
            known = entries(path)
        except CheckpointError as error:
            complaints.append(str(error))
            continue
        if not known:
            complaints.append(f"{path}: nothing is known of it: {manifest_of(path)} is missing")
        elif any(path.parent == root / entry["folder"] for entry in known.values()):
            claimed = (newest_step(known), path.name == "last.ckpt", path)
            found.setdefault(run_number(path), []).append(claimed)
    for number in sorted(found, reverse=True):
        if path := newest_of_run(sorted(found[number], reverse=True), complaints):
            return path, complaints
    return None, complaints


def newest_of_run(claimed: list[tuple[int, bool, Path]], complaints: list[str]) -> Path | None:
    """The one that has made most steps; of a kill, a manifest may claim more than its file has."""
    best: tuple[int, Path] | None = None
    for step, _, path in claimed:
        if best and step <= best[0]:
            break
        try:
            entry = check(path)
        except CheckpointError as error:
            complaints.append(str(error))
        else:
            if entry["exact"] and (best is None or entry["step"] > best[0]):
                best = entry["step"], path
    return best and best[1]


def everything(root: Path, pattern: str) -> Iterator[Path]:
    """Files of a name in the folders below, also where a folder is a link."""
    for folder, _, names in os.walk(root, followlinks=True):
        yield from (Path(folder, name) for name in fnmatch.filter(names, pattern))


def run_number(path: Path) -> int:
    """N of version_N/checkpoints/last.ckpt, or -1."""
    number = path.parent.parent.name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def remove_partial_files(root: Path) -> None:
    """Remove what processes of this machine that are no more were writing."""
    for part in everything(root, ".*.part"):
        *_, where, pid, _ = part.name.split(".")
        if where == host_name() and pid.isdecimal() and not alive(int(pid)):
            part.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process is running; this one is writing nothing when it asks."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
