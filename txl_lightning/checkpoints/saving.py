"""Save checkpoint files: written atomically, and verified by checksum.

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

from .. import __version__, files
from ..data.vocab import Vocabulary
from ..errors import CheckpointError, require
from ..model.config import describe_config
from ..model.contract import Network
from ..process import is_child
from ..runs.folder import CONVERTED, KEY, LAST, PREVIOUS, VOCAB
from .contents import refuse_damaged, refuse_substitute, save_tensors

MODEL_TYPE = "txl-lightning"  # name by which transformers finds the class of a folder, in hub/
WEIGHTS = "model.safetensors"
# Incremented when older releases cannot read new folders of convert.
FOLDER_FORMAT = 1
# Largest number of manifest entries: the file's own, and those of files it has replaced.
N_ENTRY = 4
# Each entry, by the sha256 of its file; other fields are free.
SHAPE = {...: {"step": int, "exact": bool, "bytes": int}}
Manifest = dict[str, dict[str, Any]]


def save_checkpoint(checkpoint: Mapping[str, Any], path: Path, metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint, and its manifest with `metadata` (step, exact, ...) in the entry.

    Raises:
        StorageError: it cannot be written; existing files are unchanged.
    """

    def save_part(part: Path) -> None:
        with part.open("wb") as file:
            torch.save(checkpoint, file)
        entry = {**metadata, "bytes": part.stat().st_size}
        rotate_manifests(path, {files.hash_file(part): entry})

    files.replace_file(path, save_part)


def rotate_manifests(path: Path, entry: Manifest) -> None:
    """Write the manifest of the file that will replace `path`; keep the old file as PREVIOUS."""
    before = read_manifest_or_none(path)
    copy = None
    is_whole = path.is_file() and path.stat().st_size in {e["bytes"] for e in before.values()}
    # A step saved twice, or a truncated file, must not replace the previous checkpoint.
    if path.name == LAST and is_whole and find_newest_step(before) != find_newest_step(entry):
        copy = path.with_name(PREVIOUS)
        write_manifest(copy, before | read_manifest_or_none(copy))
    write_manifest(path, entry | before)
    if copy:
        os.replace(path, copy)


def read_manifest_or_none(path: Path) -> Manifest:
    """Return the manifest of a file; no entries, if it is missing or damaged."""
    with suppress(CheckpointError):
        return read_manifest(path)
    return {}


def find_newest_step(manifest: Manifest) -> float:
    """Return the step of the newest file that a manifest names; infinity if it names none."""
    return next((entry["step"] for entry in manifest.values()), math.inf)


def write_manifest(path: Path, manifest: Manifest) -> None:
    recent = dict(islice(manifest.items(), N_ENTRY))
    files.write_text(json.dumps(recent, indent=1), manifest_path(path))


def read_manifest(path: Path) -> Manifest:
    """Read the entries of a checkpoint's manifest, newest first; none without a manifest."""
    file = manifest_path(path)
    if not file.is_file():
        return {}
    with refuse_damaged(file, f"{file}: not a manifest"):
        manifest = files.read_json(file, SHAPE)
        require(len(manifest) > 0, "content", manifest, "entries by checksum")
    return manifest


def manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def verify_checkpoint(path: Path) -> str:
    """Return a file's sha256; CheckpointError if its manifest does not name it."""
    manifest = read_manifest(path)
    try:
        refuse_substitute(path)
        digest = files.hash_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if manifest and digest not in manifest:
        written = next(iter(manifest))
        raise CheckpointError(
            f"{path}: damaged: its sha256 is {digest[:16]}, the manifest's {written[:16]} "
            f"({path.stat().st_size} bytes, of {manifest[written]['bytes']})"
        )
    return digest


@cache
def warn_unverified(path: Path, why: str) -> None:
    if not is_child():
        warnings.warn(f"{path}: cannot be verified: {why}", stacklevel=2)


def remove_checkpoint(path: Path) -> None:
    with files.explain_write_errors(path):
        path.unlink(missing_ok=True)
        manifest_path(path).unlink(missing_ok=True)


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that affect a checkpoint."""
    others = {package: version(package) for package in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "txl-lightning": __version__, **others}


def save_folder(model: Network, folder: Path, vocab: Vocabulary | None = None) -> None:
    """Write a network, and its vocabulary if there is one; shared weights are written once."""
    save_tensors(dict(model.named_parameters()), folder / WEIGHTS)
    if vocab is not None:
        files.write_text(vocab.to_json(), folder / VOCAB)
    net = describe_config(model.config)
    sha256 = files.hash_file(folder / WEIGHTS)
    checksums = {"weights_sha256": sha256, "rest": hash_rest(folder, net)}
    # Written last, so that an interrupted export is not a valid folder.
    settings = {KEY: {"format": FOLDER_FORMAT} | checksums, "model_type": MODEL_TYPE, "net": net}
    files.write_json(settings, folder / CONVERTED)


def hash_rest(folder: Path, net: dict[str, Any]) -> str:
    """Return a checksum of a network's settings and of the vocabulary in its folder."""
    vocab = folder / VOCAB
    return files.hash_values([net, vocab.read_text(encoding="utf-8") if vocab.is_file() else None])
