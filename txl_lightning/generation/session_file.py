"""A session as a safetensors file, which belongs to one network and one vocabulary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..errors import CheckpointError
from ..files import replace_file
from ..model.adaptation import Adaptation, prefix_names, select_names
from .incoming import IncomingText

FORMAT = "txl-lightning session 1"
STATE = "state."
WEIGHTS = "weights."


@dataclass(frozen=True)
class SavedSession:
    """Values from which a session is made again."""

    incoming: IncomingText
    adaptation: Adaptation
    tensors: dict[str, Tensor]
    """Tokens and memory; none before the first token."""
    weights: dict[str, Tensor]
    """The weights that have learned from the text; none without a rate."""


def hash_network(net: nn.Module) -> str:
    """Return the sha256 of a network's settings and weights, by their bits.

    Settings with their default do not count: a later version may have more of them.
    """
    given = {
        field.name: getattr(net.config, field.name)
        for field in fields(net.config)
        if getattr(net.config, field.name) != field.default
    }
    digest = hashlib.sha256(f"{type(net.config).__name__} {given}".encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(bits.numpy())
    return digest.hexdigest()


def save_session(saved: SavedSession, path: Path, fingerprint: Mapping[str, Any]) -> None:
    """Write a session atomically; StorageError if that fails."""
    incoming = asdict(saved.incoming) | {"undecoded": saved.incoming.undecoded.hex()}
    about = {"format": FORMAT, "fingerprint": dict(fingerprint), "incoming": incoming}
    about["adaptation"] = saved.adaptation.given
    tensors = prefix_names(STATE, saved.tensors) | prefix_names(WEIGHTS, saved.weights)
    # safetensors refuses tensors that share memory.
    copies = {name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}
    content = save(copies, {"session": json.dumps(about)})
    replace_file(path, lambda part: part.write_bytes(content))


def load_session(path: Path, fingerprint: Mapping[str, Any]) -> SavedSession:
    """Load what `save_session` wrote; CheckpointError if it is damaged or does not match."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads((file.metadata() or {}).get("session", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if about.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a session; expected a file of Session.save")
    for name, value in fingerprint.items():
        if about["fingerprint"].get(name) != value:
            found = about["fingerprint"].get(name)
            raise CheckpointError(f"{path}: other {name}: invalid {found}; expected {value}")
    incoming = about["incoming"] | {"undecoded": bytes.fromhex(about["incoming"]["undecoded"])}
    return SavedSession(
        IncomingText(**incoming),
        Adaptation(**about["adaptation"]),
        select_names(STATE, tensors),
        select_names(WEIGHTS, tensors),
    )
