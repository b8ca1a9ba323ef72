"""Checkpoint files: written atomically, and verified by checksum.

Each has a manifest, such as last.ckpt.json, with entries for the file and for those it replaced:
sha256 and metadata. The manifest is written before the new file replaces the old one, so that it
describes whichever of the two exists after a crash.
"""

import json
import math
import os
import platform
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import CheckpointError, require
from ..files import (
    explain_write_errors,
    host_name,
    is_running,
    read_json,
    replace_file,
    sha256_file,
    write_text,
)
from ..signals import is_child
from .tensors import refuse_damaged

# Key in a checkpoint for state that Lightning does not know.
KEY = "txl_lightning"
# Incremented when older releases cannot read new checkpoints.
FORMAT = 1
# Settings of release 0.1.0, with their present names and values.
RENAMED_SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "recurrence": ("memory_source", {"below": "layer_below", "same": "same_layer"}),
    "dropout_mask": ("dropout_type", {"fresh": "standard", "locked": "variational"}),
    "loss_chunk": ("loss_chunk_size", {}),
    "norm": ("norm", {"pre_keys": "pre_kv"}),
    "skip_budget": ("max_skipped_updates", {}),
    "matrix_lr": ("muon_lr", {}),
}
# A replaced last.ckpt of another step is kept as previous.ckpt.
LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
# Manifest entries: the file's own, and those of files that may still be in its place.
N_ENTRY = 4
SHAPE = {...: {"step": int, "exact": bool, "bytes": int}}
FOREIGN = "ckpt_path: {} is not a checkpoint written by fit"
Manifest = dict[str, dict[str, Any]]


def save_checkpoint(checkpoint: Mapping[str, Any], path: Path, about: Mapping[str, Any]) -> None:
    """Write a checkpoint, and its manifest with `about` in the entry.

    Raises:
        StorageError: it cannot be written; existing files are unchanged.
    """

    def save_part(part: Path) -> None:
        with part.open("wb") as file:
            torch.save(checkpoint, file)
        update_manifests(path, {sha256_file(part): {**about, "bytes": part.stat().st_size}})

    replace_file(path, save_part)


def update_manifests(path: Path, entry: Manifest) -> None:
    """Write the manifest of the file that will replace `path`; keep the old file as PREVIOUS."""
    before, copy = previous_entries(path), None
    is_whole = path.is_file() and path.stat().st_size in {e["bytes"] for e in before.values()}
    # A step saved twice, or a truncated file, must not replace the previous checkpoint.
    if path.name == LAST and is_whole and newest_step(before) != newest_step(entry):
        copy = path.with_name(PREVIOUS)
        write_manifest(copy, before | previous_entries(copy))
    write_manifest(path, entry | before)
    if copy:
        os.replace(path, copy)


def previous_entries(path: Path) -> Manifest:
    # A damaged manifest is ignored.
    with suppress(CheckpointError):
        return read_manifest(path)
    return {}


def newest_step(manifest: Manifest) -> float:
    """Return the step of the newest file that a manifest names; infinity if it names none."""
    return next((entry["step"] for entry in manifest.values()), math.inf)


def write_manifest(path: Path, manifest: Manifest) -> None:
    recent = dict(islice(manifest.items(), N_ENTRY))
    write_text(json.dumps(recent, indent=1), manifest_path(path))


def read_manifest(path: Path) -> Manifest:
    """Read the entries of a checkpoint's manifest, newest first; none without a manifest."""
    file = manifest_path(path)
    if not file.is_file():
        return {}
    with refuse_damaged(file, f"{file}: not a manifest"):
        manifest = read_json(file, SHAPE)
        require(len(manifest) > 0, "content", manifest, "entries by checksum")
    return manifest


def manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def verify_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return a file's manifest entry, or None without one; refuse a file that has changed."""
    manifest = read_manifest(path)
    if not manifest:
        return None
    try:
        digest = sha256_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if digest not in manifest:
        written = next(iter(manifest))
        raise CheckpointError(
            f"{path}: damaged: its sha256 is {digest[:16]}, the manifest's {written[:16]} "
            f"({path.stat().st_size} bytes, of {manifest[written]['bytes']})"
        )
    return manifest[digest]


@cache
def warn_unverified(path: Path, why: str) -> None:
    """Warn once that a file cannot be verified."""
    if not is_child():
        warnings.warn(f"{path}: cannot be verified: {why}", stacklevel=2)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint without executing code; refuse a damaged or later one."""
    verify_checkpoint(path)
    with refuse_damaged(path, FOREIGN.format(path)):
        checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        written_as = checkpoint.get(KEY, {}).get("format", FORMAT)
        saved = checkpoint.get("hyper_parameters", {})
        for group in saved.keys() & {"net", "optim"}:
            saved[group] = rename_settings(saved[group])
    if written_as > FORMAT:
        known = f"this release reads formats up to {FORMAT}"
        raise CheckpointError(f"{path}: written by a later release (format {written_as}); {known}")
    return checkpoint


def rename_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an earlier release under the names of this one."""
    renamed = {}
    for name, value in settings.items():
        new_name, values = RENAMED_SETTINGS.get(name, (name, {}))
        renamed[new_name] = values.get(value, value) if isinstance(value, str) else value
    return renamed


def remove_checkpoint(path: Path) -> None:
    with explain_write_errors(path):
        path.unlink(missing_ok=True)
        manifest_path(path).unlink(missing_ok=True)


def find_latest(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint of the latest run, and the problems of skipped ones.

    The latest run has the largest N of version_N, its newest checkpoint the most steps: file times
    are not used. Crash checkpoints and runs without checkpoints are skipped.
    """
    problems: list[str] = []
    for folder in sorted(root.glob("version_*/checkpoints"), key=run_number, reverse=True):
        if path := find_in_run(folder, problems):
            return path, problems
    return None, problems


def find_in_run(folder: Path, problems: list[str]) -> Path | None:
    """Return the newest intact checkpoint in a folder; append problems to `problems`."""
    # Files without a step in a manifest come first; at equal steps, last.ckpt before best.ckpt.
    claims = [(newest_step(previous_entries(path)), path) for path in folder.glob("*.ckpt")]
    best, best_step = None, -1
    for claim, path in sorted(claims, reverse=True):
        # After a kill, a manifest may list more steps than its file has.
        if claim <= best_step:
            break
        try:
            entry = verify_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if entry is None:
            problems.append(f"{path}: its manifest {manifest_path(path)} is missing")
        elif entry["exact"] and entry["step"] > best_step:
            best, best_step = path, entry["step"]
    return best


def run_number(folder: Path) -> int:
    """Return N of version_N/checkpoints, or -1."""
    number = folder.parent.name.removeprefix("version_")
    return int(number) if number.isdecimal() else -1


def remove_partial_files(root: Path) -> None:
    """Remove partial files of ended processes of this machine."""
    for part in root.glob("version_*/**/.*.part"):
        *_, host, pid, _ = part.name.split(".")
        if host == host_name() and pid.isdecimal() and not is_running(int(pid)):
            part.unlink(missing_ok=True)


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that affect a checkpoint."""
    others = {package: version(package) for package in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "txl-lightning": __version__, **others}
