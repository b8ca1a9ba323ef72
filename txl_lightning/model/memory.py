"""Memory of previous segments, as a value (Section 3.2), and which states a query attends to.

B rows   L tokens in the segment   M in memory   S = M + L visible   T = S + 1 distances
D width   N layers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require
from .config import (
    AS_TRAINED,
    ContextLengths,
    EvalLengths,
    NetworkConfig,
    SameLength,
    TransformerXLConfig,
)
from .contract import AnyMemory
from .positions import DistanceTerms


class Past:
    """A memory of states as one layer reads it in one segment.

    It is no dataclass and no tuple: FSDP2 gives a copy of these to a layer.
    """

    def __init__(self, memory_BMD: Tensor, terms: DistanceTerms, mask: Mask) -> None:
        self.memory_BMD = memory_BMD
        self.terms = terms
        self.mask = mask
        # States that the layer reads, as a hook before it may have changed them.
        self.read_BLD: Tensor | None = None

    def choose_kernel(self, attend: Attend) -> Attend:
        """Return how the layer attends to these states: the same."""
        return attend

    def states(self, h_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return m and h, plus absolute positions, if the scheme has any."""
        self.read_BLD = h_BLD
        return self.terms.add_positions(self.memory_BMD.to(h_BLD.dtype), h_BLD)

    def extend(self, kv_BS2HK: Tensor) -> KeysValues:
        """Return keys and values of all visible states from those of [m o h]: the same."""
        return kv_BS2HK


KeysValues = Tensor | tuple[Tensor, Tensor]
"""kv_BS2HK, or k_BSHK and v_BSHK in any layout."""

Attend = Callable[..., Tensor]
"""A function like those of `KERNELS`."""


def split_keys_values(kv: KeysValues) -> tuple[Tensor, Tensor]:
    """Return k_BSHK and v_BSHK."""
    return kv.unbind(2) if isinstance(kv, Tensor) else kv


class Reading(NamedTuple):
    """A memory as the layers read it in one segment."""

    past_N: Sequence[Any]
    """Of each layer, a `Past`, or the `CachedPast` of cache.py."""
    end: Callable[..., AnyMemory]
    """Return the memory for the next segment from the states of each layer, and n_reread."""


@dataclass(frozen=True)
class Memory:
    """The last M hidden states that each layer reads, newest last.

    They have no gradient, as in the paper, or one into the segments before (`keep_gradient`).

    The shape is constant. Only the newest `filled_B` states of a row count; others are masked.

    >>> net = TransformerXL(TransformerXLConfig(n_layer=2, d_model=8, mem_len=6))
    >>> memory = net.empty_memory(3)
    >>> memory.h_NBMD.shape, memory.filled_B
    (torch.Size([2, 3, 6, 8]), tensor([0, 0, 0]))
    """

    h_NBMD: Tensor
    filled_B: Tensor
    clamp_len: int | None = None
    """Largest relative distance; larger ones are clamped. None: no limit."""
    same_length: SameLength = None
    """Number of states that each query attends to; None: all."""
    has_gradient: bool = False
    """False: the stop-gradient SG is applied to new states."""

    def __post_init__(self) -> None:
        is_each = self.filled_B.shape == (self.batch_size,)
        require(is_each, "filled_B", self.filled_B.shape, "a number for each row of h_NBMD")
        # Reading values would synchronize a GPU, and is impossible in a compiled graph.
        if self.filled_B.is_cpu and not torch.compiler.is_compiling():
            filled = self.filled_B.tolist()
            most = self.mem_len
            is_there = min(filled, default=0) >= 0 and max(filled, default=0) <= most
            require(is_there, "filled_B", filled, f"0 to {most}, the number of states")

    @property
    def batch_size(self) -> int:
        return self.h_NBMD.size(1)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the network, by their names in its config."""
        return {"n_layer": self.h_NBMD.size(0), "d_model": self.h_NBMD.size(3)}

    @property
    def mem_len(self) -> int:
        return self.h_NBMD.size(2)

    def begin(self, net: nn.Module, tgt_len: int, doc_pos_BL: Tensor | None) -> Reading:
        """Return what each layer asks in the next segment."""
        mask = Mask(self.attention_mask(tgt_len, doc_pos_BL))
        terms_N = net.positions(self.distances(tgt_len))
        require_layers(net, terms_N)
        past_N = [Past(*each, mask) for each in zip(self.h_NBMD, terms_N, strict=True)]
        return Reading(past_N, partial(self.update, mask_BLS=mask.mask_BLS))

    def attention_mask(self, tgt_len: int, doc_pos_BL: Tensor | None = None) -> Tensor:
        """Return mask_BLS, True where query l attends to state s: filled, causal, same document."""
        farthest = farthest_state(self.same_length, self.mem_len)
        return attention_mask(self.filled_B, self.mem_len, tgt_len, farthest, doc_pos_BL)

    def distances(self, tgt_len: int) -> Tensor:
        """Return distance_T: the relative distances S, ..., 0, clamped to clamp_len."""
        farthest = self.mem_len + tgt_len
        device = self.filled_B.device
        return torch.arange(farthest, -1, -1, device=device).clamp(min=0, max=self.clamp_len)

    def update(self, states: Sequence[Tensor], mask_BLS: Tensor, n_reread: int = 0) -> Memory:
        """Return SG([m o h])[-M:], without the last n_reread tokens: the next segment reads them.

        Without SG after `keep_gradient`. `states` are the h_BLD of each layer for the segment of
        `mask_BLS`.
        """
        h_NBLD = torch.stack([h if self.has_gradient else h.detach() for h in states])
        stop = h_NBLD.size(2) - n_reread
        n_new = min(stop, self.mem_len)
        # `h[-mem_len:]` would keep everything if mem_len is 0.
        old_NBMD = self.h_NBMD.narrow(2, n_new, self.mem_len - n_new).to(h_NBLD.dtype)
        h_NBMD = torch.cat([old_NBMD, h_NBLD.narrow(2, stop - n_new, n_new)], dim=2)
        filled_B = count_filled(self.filled_B, mask_BLS, n_reread, self.mem_len)
        return replace(self, h_NBMD=h_NBMD, filled_B=filled_B)

    def resize(self, lengths: ContextLengths) -> Memory:
        """Return a memory of other lengths with the newest of these states."""
        h_NBMD = self.h_NBMD
        n_new = lengths.mem_len - self.mem_len
        if n_new:
            # Negative padding removes entries.
            h_NBMD = F.pad(h_NBMD, (0, 0, n_new, 0))
        filled_B = self.filled_B.clamp(max=lengths.mem_len)
        return Memory(h_NBMD, filled_B, *lengths[1:], self.has_gradient)

    def keep_gradient(self) -> Memory:
        """Return a memory whose next ones have a gradient into the segments before."""
        return replace(self, has_gradient=True)

    def rows(self, index_B: Tensor | slice) -> Memory:
        """Return these rows, in this order; a row may occur twice."""
        return replace(self, h_NBMD=self.h_NBMD[:, index_B], filled_B=self.filled_B[index_B])

    def to(self, *args, **kwargs) -> Memory:
        """Return the memory on another device, or its states in another precision."""
        h_NBMD = self.h_NBMD.to(*args, **kwargs)
        return replace(self, h_NBMD=h_NBMD, filled_B=self.filled_B.to(h_NBMD.device))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return {"h_NBMD": self.h_NBMD, "filled_B": self.filled_B}

    def restore(self, tensors: dict[str, Tensor]) -> Memory:
        """Return the memory saved by `tensors`, with the lengths of this one."""
        return replace(self, h_NBMD=tensors["h_NBMD"], filled_B=tensors["filled_B"])


def require_memory(
    memory: AnyMemory, config: TransformerXLConfig, tokens_BL: Tensor, n_reread: int
) -> None:
    """Refuse a memory of another number of rows than the tokens, or of another network."""
    batch_size, tgt_len = tokens_BL.shape
    require(0 <= n_reread <= tgt_len, "n_reread", n_reread, "0 to all of the tokens")
    rows = f"{batch_size}, as many as the tokens have"
    require(memory.batch_size == batch_size, "memory", f"{memory.batch_size} rows", rows)
    expected = {name: getattr(config, name) for name in memory.sizes}
    require(memory.sizes == expected, "memory", memory.sizes, f"{expected}, as in the network")


def require_layers(net: nn.Module, terms_N: Sequence[DistanceTerms]) -> None:
    """Refuse a network whose layers were removed or added: each has distance terms of its own."""
    n_layer = len(net.layers)
    expected = f"{len(terms_N)}, as its positions have; or a new network with n_layer {n_layer}"
    require(n_layer == len(terms_N), "layers", n_layer, expected)


def require_constant(net: nn.Module) -> None:
    """Refuse gradients and training mode, in which weights change, and so do keys and values."""
    if torch.is_grad_enabled() or net.training:
        raise ValueError("a KeyValueCache needs eval() and torch.inference_mode or no_grad")


def farthest_state(same_length: SameLength, mem_len: int) -> int | None:
    """Return the largest number of states before itself that a query attends to; None: all."""
    # Without memory, equal context would be only the query itself.
    if not mem_len or same_length is None:
        return None
    return mem_len - 1 if same_length == "mem_len" else mem_len


def find_largest_distance(lengths: ContextLengths, segment_len: int) -> int:
    """Return the largest distance from a query to a state that it attends to.

    `segment_len` is the number of tokens in a segment, with those that it reads again.
    """
    farthest = farthest_state(lengths.same_length, lengths.mem_len)
    return lengths.mem_len + segment_len - 1 if farthest is None else farthest


def find_largest_row(lengths: ContextLengths, segment_len: int) -> int:
    """Return the largest distance whose sinusoids are read, where larger ones are clamped to it."""
    largest = find_largest_distance(lengths, segment_len)
    return largest if lengths.clamp_len is None else min(largest, lengths.clamp_len)


def describe_new_distances(
    config: NetworkConfig,
    trained_len: int | None,
    lengths: EvalLengths,
    segment_len: int,
    n_read: int | None,
    fix: str,
) -> str | None:
    """Return a notice if a reading has larger distances than training had; None if none is new.

    Only sinusoids of distances are new there: learned schemes have a row for each distance up to
    clamp_len. In experiments/longer_memory, the perplexity of some networks rose.

    Args:
        trained_len: tokens in a segment of training, with those read again; None if unknown.
        lengths: those of the reading.
        segment_len: tokens in a segment of the reading.
        n_read: tokens that are read in a row; None if that is not known.
        fix: what to try, with {} for the largest distance of training.
    """
    has_sinusoids = type(config) is TransformerXLConfig and config.positions == "sinusoidal"
    if not has_sinusoids or trained_len is None:
        return None
    trained = find_largest_row(AS_TRAINED.resolve(config), trained_len)
    largest = find_largest_row(lengths.resolve(config), segment_len)
    if n_read is not None:
        largest = min(largest, n_read - 1)
    if largest <= trained:
        return None
    read = f"distances up to {largest:,} are read, in training up to {trained:,}"
    return f"{read}; new ones can raise the loss: try {fix.format(trained)}"


def attention_mask(
    filled_B: Tensor, n_kept: int, tgt_len: int, farthest: int | None, doc_pos_BL: Tensor | None
) -> Tensor:
    """Return mask_BLS over n_kept cached states (the newest `filled_B` valid) and the segment."""
    token_L = torch.arange(tgt_len, device=filled_B.device)
    farthest_BL = (filled_B[:, None] + token_L).clamp(min=0, max=farthest)
    if doc_pos_BL is not None:
        farthest_BL = torch.minimum(farthest_BL, doc_pos_BL)
    state_S = torch.arange(n_kept + tgt_len, device=filled_B.device)
    distance_LS = token_L[:, None] + n_kept - state_S
    return (distance_LS >= 0) & (distance_LS <= farthest_BL[:, :, None])


class Mask:
    """States that each query of a segment attends to, for all layers.

    Args:
        mask_BLS: True where query l attends to state s.
        ranges: start and stop of ranges of states; every query attends to all states outside of
            them. None: they are found when a kernel asks.
    """

    def __init__(self, mask_BLS: Tensor, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        self.mask_BLS = mask_BLS
        self.ranges = ranges
        self.parts: dict[torch.dtype, list[tuple[int, Tensor]]] = {}

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set masked scores of some rows to -inf."""
        dtype = score_HBLS.dtype
        if dtype not in self.parts:
            self.parts[dtype] = self._make_parts(dtype)
        for start, added_BLX in self.parts[dtype]:
            score_HBLS.narrow(-1, start, added_BLX.size(-1)).add_(added_BLX[rows])

    def _make_parts(self, dtype: torch.dtype) -> list[tuple[int, Tensor]]:
        """Return the start of each range, and the numbers that are added to its scores."""
        parts = []
        ranges = [find_masked_columns(self.mask_BLS)] if self.ranges is None else self.ranges
        for start, stop in ranges:
            if start < stop:
                added_BLX = torch.where(self.mask_BLS[..., start:stop], 0.0, -math.inf)
                parts.append((start, added_BLX.to(dtype)))
        return parts


class Band(Mask):
    """The mask of rows that all have the same states; most kernels need only its ranges."""

    def __init__(self, make: Callable[[], Tensor], ranges: Sequence[tuple[int, int]]) -> None:
        self.make = make
        self.ranges = ranges
        self.parts = {}

    @cached_property
    def mask_BLS(self) -> Tensor:
        return self.make()


def find_masked_columns(mask_BLS: Tensor) -> tuple[int, int]:
    """Return start and stop of the states that some query does not attend to; on a GPU, of all."""
    if not mask_BLS.is_cpu:
        # The values would have to be awaited.
        return 0, mask_BLS.size(-1)
    columns = (~mask_BLS.all(dim=1).all(dim=0)).nonzero()[:, 0].tolist()
    return (columns[0], columns[-1] + 1) if columns else (0, 0)


def count_filled(filled_B: Tensor, mask_BLS: Tensor, n_reread: int, mem_len: int) -> Tensor:
    """Return filled_B after a segment with this mask, without its last n_reread tokens."""
    if not mask_BLS.size(1):
        return filled_B
    # Later queries cannot see states hidden from the last one: the document began after them.
    before_B = mask_BLS[:, -n_reread].sum(-1) - 1 if n_reread else mask_BLS[:, -1].sum(-1)
    return before_B.clamp(max=mem_len)
