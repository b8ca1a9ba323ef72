"""Ways to read a text with a trained network, and what work each is.

N is a place of the text; weights are chosen by patterns of their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from txl_lightning.data.tokens import TextTokens
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.evaluation.scoring import score_text
from txl_lightning.model import Network
from txl_lightning.model.adaptation import Adaptation

SEGMENT = 64
RMS_TOKENS = 20_000
SHORTER = (32, 16, 8)
LEARNING = {"all weights": None, "the last layer": "layers.3.*,final_norm*", "norms": "*norm*"}
COUNTED = 20
"""Segments whose operations are counted."""


@dataclass(frozen=True)
class Way:
    """Options of `evaluate`, and what is chosen on validation text."""

    options: Mapping[str, Any] = field(default_factory=dict)
    first_rate: float | None = None
    """The rate that is tried first, if one is chosen."""
    lengths: tuple[int, ...] = ()
    """Tokens of a segment that are tried in turn with rates of their own, until the nats rise."""
    of: tuple[str, ...] = ()
    """Ways whose chosen options this one has."""

    @property
    def has_cache(self) -> bool:
        return "cache_len" in self.options


def list_steps() -> dict[str, Way]:
    """Return plain steps, and those by the RMS of gradients, of each choice of weights."""
    ways = {}
    for weights, patterns in LEARNING.items():
        chosen = {"rate_weights": patterns} if patterns else {}
        ways[f"steps of {weights}"] = Way(chosen, 0.1)
        ways[f"RMS steps of {weights}"] = Way(chosen | {"rms_tokens": RMS_TOKENS}, 1e-4)
    return ways


WAYS = (
    {"static": Way()}
    | {f"memory of {length}": Way({"mem_len": length}) for length in (256, 512, 1024, 2048)}
    | {f"cache of {length:,}": Way({"cache_len": length}) for length in (2_000, 20_000)}
    | list_steps()
    | {
        "cache and steps": Way(of=("cache of 20,000", "steps of all weights")),
        "cache and RMS steps": Way(of=("cache of 20,000", "RMS steps of all weights")),
        "steps in shorter segments": Way(first_rate=0.05, lengths=SHORTER),
        "cache and steps in shorter segments": Way(
            of=("cache of 20,000", "steps in shorter segments")
        ),
        # 8 was the shortest of SHORTER, and the best one.
        "steps in segments of 4": Way({"tgt_len": 4}, first_rate=0.025),
    }
)


def count_linear(input_shape: torch.Size, weight_shape: torch.Size, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a linear map, as PyTorch's own counts do."""
    return 2 * input_shape.numel() * weight_shape[0]


def count_products(_: Any, a_shape: torch.Size, b_shape: torch.Size, **__: Any) -> int:
    """Return the FLOPs of baddbmm."""
    return 2 * a_shape.numel() * b_shape[-1]


UNKNOWN = {
    # On a CPU, where no gradient is needed.
    torch.ops.mkldnn._linear_pointwise: count_linear,
    torch.ops.aten.baddbmm_: count_products,
}
"""Products that PyTorch's counter does not know."""


def count_operations(net: Network, ids_N: np.ndarray, options: Mapping[str, Any]) -> float:
    """Return the multiplications of matrices' elements for a token of the last segments of a text.

    So a memory or a cache that the text can fill is full. Gradients of training text are not
    counted.
    """
    names = Adaptation.__dataclass_fields__
    adapted = {name: options[name] for name in options if name in names and name != "rms_tokens"}
    lengths = {name: options[name] for name in options if name not in names}
    how = Protocol(**{"tgt_len": SEGMENT} | lengths, adaptation=Adaptation(**adapted))
    parts = score_text(net, TextTokens(ids_N), how)
    n_before = max(-(-len(ids_N) // how.tgt_len) - COUNTED, 0)
    for _ in islice(parts, n_before):
        pass
    with FlopCounterMode(display=False, custom_mapping=UNKNOWN) as counter:
        n_token = sum(len(part.nats_K) for part in parts)
    return counter.get_total_flops() / 2 / n_token
