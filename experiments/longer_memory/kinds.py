"""How networks are trained and read; figures need no more."""

from dataclasses import dataclass, field
from typing import Any

SEGMENT = 64
"""Tokens of a segment, and the longest memory in training."""
FARTHEST = 2 * SEGMENT - 1
"""The largest distance in training: from the last token of a segment to the oldest state."""
BEFORE = 2 * SEGMENT
AFTER = 3 * BEFORE
"""Lengths of memory between which perplexity grows."""
LENGTHS = (SEGMENT, BEFORE, 192, 256, AFTER)
BROKEN = 1.05
"""Growth of perplexity above which a network breaks."""


@dataclass(frozen=True)
class Kind:
    """How a network is trained, and whether its distances can be clamped only when it is read."""

    options: dict[str, Any] = field(default_factory=dict)
    has_clamped_reading: bool = True
    draws_memory: bool = False
    """In training, each update draws how many states of the memory are read."""


KINDS = {
    "sinusoidal": Kind(),
    "shaw": Kind({"model.net.positions": "shaw", "model.net.clamp_len": FARTHEST}, False),
    "random memory": Kind(draws_memory=True),
}
"""By name, in the order of training."""
