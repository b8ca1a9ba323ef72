"""Checkpoint files: written whole or not at all, and known by their checksum.

Beside each stands a manifest, last.ckpt.json: the sha256 of the file and what is known of it, and
the same of the files before it. It is written before the new file takes the old one's place:
whichever of the two is there when a machine dies, the manifest knows it.
"""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..files import explain_write_errors, replace_file, sha256_file, write_text

KEY = "txl_lightning"
"""Key of a checkpoint for the state that Lightning does not know."""

FORMAT = 1
"""Raised when an older release could not read what is written now."""

RENAMED_SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "recurrence": ("memory_source", {"below": "layer_below", "same": "same_layer"}),
    "dropout_mask": ("dropout_type", {"fresh": "standard", "locked": "variational"}),
    "loss_chunk": ("loss_chunk_size", {}),
    "norm": ("norm", {"pre_keys": "pre_kv"}),
    "skip_budget": ("max_skipped_updates", {}),
    "matrix_lr": ("muon_lr", {}),
}
"""Settings in files of release 0.1.0: the name and values that they have now."""

KEPT = {"last.ckpt": "previous.ckpt"}
"""The name under which a file that is replaced is kept."""

N_ENTRY = 4
"""Entries of a manifest: the file's, and those of files that may be found in its place."""

Entry = dict[str, Any]
REQUIRED = {"step", "exact", "bytes"}
"""Keys of every entry."""


def save_checkpoint(checkpoint: Mapping[str, Any], path: Path, about: Mapping[str, Any]) -> None:
    """Write a checkpoint; the one that it replaces is kept under another name if KEPT has one.

    Args:
        checkpoint: what torch.save takes.
        path: the file; its folder is made.
        about: its entry in the manifest, without "bytes".

    Raises:
        StorageError: it cannot be written; what was there is unchanged.
    """

    def write(part: Path) -> None:
        with part.open("wb") as file:
            torch.save(checkpoint, file)
        announce(path, {sha256_file(part): {**about, "bytes": part.stat().st_size}})

    replace_file(path, write)


def announce(path: Path, entry: dict[str, Entry]) -> None:
    """Write the manifest of the file that will replace `path`, and move the one there to KEPT."""
    before, kept = previous_entries(path), None
    whole = path.is_file() and path.stat().st_size in {known["bytes"] for known in before.values()}
    # A step that is saved twice, or a file that was cut, would push out the one kept before.
    if whole and path.name in KEPT and newest_step(before) != newest_step(entry):
        kept = path.with_name(KEPT[path.name])
        write_manifest(kept, before | previous_entries(kept))
    write_manifest(path, entry | before)
    if kept:
        os.replace(path, kept)


def previous_entries(path: Path) -> dict[str, Entry]:
    """Read a manifest that is to be replaced; what is damaged says nothing."""
    try:
        return read_manifest(path)
    except CheckpointError:
        return {}


def newest_step(manifest: Mapping[str, Entry]) -> int | None:
    """Return the step of the newest file that a manifest names."""
    return next((entry["step"] for entry in manifest.values()), None)


def write_manifest(path: Path, manifest: Mapping[str, Entry]) -> None:
    """Write the manifest of a checkpoint: its first entries, newest first."""
    recent = dict(list(manifest.items())[:N_ENTRY])
    write_text(json.dumps(recent, indent=1), manifest_path(path))


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint and its manifest."""
    with explain_write_errors(path):
        for each in (path, manifest_path(path)):
            each.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint; nothing in it is executed.

    Raises:
        CheckpointError: it is damaged, or written by a later release.
    """
    verify_checkpoint(path)
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
    for group in ("net", "optim"):
        if isinstance(saved, dict) and isinstance(saved.get(group), dict):
            saved[group] = rename_settings(saved[group])
    return checkpoint


def rename_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of an earlier release under the names of this one."""
    renamed = {}
    for name, value in settings.items():
        new_name, values = RENAMED_SETTINGS.get(name, (name, {}))
        renamed[new_name] = values.get(value, value) if isinstance(value, str) else value
    return renamed


def verify_checkpoint(path: Path) -> Entry | None:
    """Return a file's entry in its manifest, None without one; refuse other bytes than written."""
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


def read_manifest(path: Path) -> dict[str, Entry]:
    """Read the entries of a checkpoint's manifest, newest first; empty without a manifest."""
    try:
        manifest = json.loads(manifest_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{manifest_path(path)}: not a manifest") from error
    entries = manifest.values() if isinstance(manifest, dict) else []
    if not entries or not all(isinstance(e, dict) and e.keys() >= REQUIRED for e in entries):
        raise CheckpointError(f"{manifest_path(path)}: not a manifest")
    return manifest


def manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def installed_versions() -> dict[str, str]:
    """Return the versions of what writes a checkpoint."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    for package in ("txl-lightning", "lightning", "numpy"):
        # This package has none where it is only on the path.
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
