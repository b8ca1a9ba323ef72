"""How a network reads a segment of a stream, and its nats in other units.

B rows   L segment   T tokens of a row   D width   V vocabulary   Y tokens of any rows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor

from ..errors import require
from .adaptive import nats_of_logits
from .contract import AnyMemory
from .inference import Reader


class Segment(Protocol):
    """The part of `data/stream.py`'s Segment that a network reads."""

    tokens_BL: Tensor
    targets_BL: Tensor
    doc_pos_BL: Tensor | None
    n_reread: int
    n_context: int

    def choose_targets(self, head: Any) -> Tensor:
        """Return the targets where a softmax reads them."""


def score_segment(net: Reader, segment: Segment, memory: AnyMemory) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of a segment's targets, 0 where IGNORED, and the memory for the next one."""
    targets_BL = segment.choose_targets(getattr(net, "head", None))
    doc_pos_BL = segment.doc_pos_BL
    return net.loss(segment.tokens_BL, targets_BL, memory, doc_pos_BL, segment.n_reread)


def read_segment(net: Reader, segment: Segment, memory: AnyMemory) -> tuple[Tensor, AnyMemory]:
    """Return the states h_BLD that predict a segment's targets, and the memory for the next one."""
    h_BLD, memory = net.hidden(segment.tokens_BL, memory, segment.doc_pos_BL, segment.n_reread)
    return h_BLD[:, segment.n_context :], memory


def read_segments(
    net: Reader,
    tokens_BT: Tensor,
    memory: AnyMemory,
    bounds: Iterable[int],
    ext_len: int = 0,
    find_doc_pos: Callable[[int, int], Tensor | None] = lambda start, stop: None,
) -> Iterator[tuple[Tensor, AnyMemory]]:
    """Yield the states h_BLD of each segment between two bounds, and the memory after it.

    `ext_len` tokens before a segment are read again with it. `find_doc_pos` returns the doc_pos_BL
    of the columns from one to another; by default, each row is one document.
    """
    for start, stop in pairwise(bounds):
        first = max(start - ext_len, 0)
        doc_pos_BL = find_doc_pos(first, stop)
        h_BLD, memory = net.hidden(tokens_BT[:, first:stop], memory, doc_pos_BL, min(ext_len, stop))
        yield h_BLD[:, start - first :], memory


def score_answers(
    net: Reader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, Tensor, AnyMemory]:
    """Return nats_BL, right_BL (the target is the most likely token), and the next memory."""
    require(not net.use.adapts, "adapt", "a cache or rate", "nothing, as the text is of a task")
    h_BLD, memory = read_segment(net, segment, memory)
    logits_BLV = net.head(h_BLD)
    targets_BL = segment.targets_BL
    nats_Y = nats_of_logits(logits_BLV.flatten(0, 1), targets_BL.flatten())
    return nats_Y.view_as(targets_BL), logits_BLV.argmax(dim=-1) == targets_BL, memory


def readings(nats: float, unit: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return mean nats per token in other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats), computed from the mean; perplexities are never
    averaged. Bits per byte of text compare models with different vocabularies.
    """
    bits = nats / math.log(2)
    values = {"nats": nats, f"bits_per_{unit}": bits, "perplexity": math.exp(min(nats, 700.0))}
    return values | ({"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {})
