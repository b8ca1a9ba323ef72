"""Checkpoint files: written whole or not at all, and known by their checksum.

Beside each stands a manifest, last.ckpt.json: what is known of it by its sha256, and of the file
that it replaced. It is written before the new file takes the old one's place, so that whichever of
the two is there when a machine dies, the manifest knows it.
"""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..files import explain_write_errors, flush_to_disk, sha256_file, temporary_path

KEY = "txl_lightning"
"""Where a checkpoint holds what Lightning does not know of."""

FORMAT = 1
"""Raised when an older release could not read what is written now."""

RENAMED_SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "recurrence": ("memory_source", {"below": "layer_below", "same": "same_layer"}),
    "dropout_mask": ("dropout_type", {"fresh": "standard", "locked": "variational"}),
    "loss_chunk": ("loss_chunk_size", {}),
    "norm": ("norm", {"pre_keys": "pre_kv"}),
}
"""A network's settings in files of release 0.1.0: the name and values that they have now."""

Entry = dict[str, Any]
SAID = {"step", "exact", "folder", "bytes"}
"""What a manifest says at least."""


def write(checkpoint: Mapping[str, Any], path: Path, about: Mapping[str, Any]) -> None:
    """Put a checkpoint in its place, and keep the one there under another name if KEPT says so.

    Args:
        checkpoint: what torch.save takes.
        path: where; its folder is made.
        about: what the manifest says of it.

    Raises:
        StorageError: it cannot be written; what was there is as it was.
    """
    part = temporary_path(path)
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                torch.save(checkpoint, file)
            flush_to_disk(part)
            replace(part, path, {sha256_file(part): {**about, "bytes": part.stat().st_size}})
        finally:
            part.unlink(missing_ok=True)


KEPT = {"last.ckpt": "previous.ckpt"}
"""The name under which a file that is replaced is kept."""

REMEMBERED = 4
"""Entries of a manifest: the file's, and those of files that it may find in its place."""


def replace(part: Path, path: Path, entry: dict[str, Entry]) -> None:
    """Let `part` take the place of `path`; at every moment, what is there is in a manifest."""
    before = entries(path)
    keep = path.with_name(KEPT[path.name]) if path.name in KEPT else None
    # A step that is saved twice would push the one before it out.
    if keep and path.exists() and newest_step(before) != newest_step(entry):
        write_manifest(keep, before | entries(keep))
        write_manifest(path, entry | before)
        os.replace(path, keep)
    else:
        write_manifest(path, entry | before)
    os.replace(part, path)
    flush_to_disk(path.parent)


def newest_step(known: Mapping[str, Entry]) -> int | None:
    """The step of what a manifest names first."""
    return next((entry["step"] for entry in known.values()), None)


def write_manifest(path: Path, known: Mapping[str, Entry]) -> None:
    """What is known of the file and of those that were there before."""
    recent = dict(list(known.items())[:REMEMBERED])
    aside = temporary_path(manifest_of(path))
    with aside.open("w", encoding="utf-8") as file:
        json.dump(recent, file, indent=1)
    flush_to_disk(aside)
    os.replace(aside, manifest_of(path))


def remove(path: Path) -> None:
    """Delete a checkpoint and its manifest."""
    with explain_write_errors(path):
        path.unlink(missing_ok=True)
        manifest_of(path).unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds; nothing in it is executed.

    Raises:
        CheckpointError: it is damaged, or written by a later release.
    """
    check(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        # Random bytes make torch.load raise anything: UnicodeDecodeError, OSError, ...
        raise CheckpointError(f"ckpt_path: {path} is not a checkpoint written by fit") from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"ckpt_path: {path} is not a checkpoint written by fit")
    written_as = checkpoint.get(KEY, {}).get("format", FORMAT)
    if written_as > FORMAT:
        known = f"this release reads formats up to {FORMAT}"
        raise CheckpointError(f"{path}: written by a later release (format {written_as}); {known}")
    saved = checkpoint.get("hyper_parameters")
    if isinstance(saved, dict) and isinstance(saved.get("net"), dict):
        saved["net"] = rename_settings(saved["net"])
    return checkpoint


def rename_settings(net: dict[str, Any]) -> dict[str, Any]:
    """Return a network's settings under the names of this release."""
    renamed = {}
    for name, value in net.items():
        new_name, values = RENAMED_SETTINGS.get(name, (name, {}))
        renamed[new_name] = values.get(value, value) if isinstance(value, str) else value
    return renamed


def check(path: Path) -> Entry | None:
    """What the manifest says of the very bytes of this file; None if there is no manifest.

    Raises:
        CheckpointError: they are not the bytes that were written.
    """
    known = entries(path)
    if not known:
        return None
    try:
        found = sha256_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if found not in known:
        written = next(iter(known))
        raise CheckpointError(
            f"{path}: damaged: its sha256 is {found[:16]}, the manifest's {written[:16]} "
            f"({path.stat().st_size} bytes, of {known[written]['bytes']})"
        )
    return known[found]


def copy(path: Path, target: Path, root: Path) -> None:
    """The same checkpoint in another folder of the runs under `root`."""
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = temporary_path(target)
        shutil.copyfile(path, part)
        folder = {"folder": os.path.relpath(target.parent, root)}
        replace(part, target, {sha: known | folder for sha, known in entries(path).items()})


def versions() -> dict[str, str]:
    """What wrote a checkpoint."""
    packages = {name: package_version(name) for name in ("txl-lightning", "lightning", "numpy")}
    return {**packages, "torch": torch.__version__, "python": platform.python_version()}


def package_version(package: str) -> str:
    """The version of a package; of this one there may be none, where it is only on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def manifest_of(path: Path) -> Path:
    """Where the manifest of a checkpoint stands."""
    return path.with_name(f"{path.name}.json")


def entries(path: Path) -> dict[str, Entry]:
    """What the manifest knows, newest first; nothing, if there is none.

    Raises:
        CheckpointError: what is there is no manifest.
    """
    try:
        known = json.loads(manifest_of(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{manifest_of(path)}: not a manifest") from error
    said = known.values() if isinstance(known, dict) else []
    if not said or not all(isinstance(entry, dict) and entry.keys() >= SAID for entry in said):
        raise CheckpointError(f"{manifest_of(path)}: not a manifest")
    return known
