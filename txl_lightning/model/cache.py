"""Memory of keys and values, as a value: with constant weights, each is computed once.

B rows   L segment   M kept   S = n_kept + L visible   E distances
N layers   H heads   K head width   C slots of a buffer
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import require
from .config import ContextLengths, SameLength
from .memory import (
    Attend,
    Band,
    Mask,
    Reading,
    attention_mask,
    count_filled,
    farthest_state,
    require_constant,
    require_layers,
)
from .positions import RELATIVE, DistanceTerms

MIN_SEGMENT = 256  # smallest segment length for which slots and distance terms are prepared
FIRST_CAPACITY = 8192  # number of states for which they are prepared at first, if mem_len is larger
RESERVING = threading.Lock()  # two threads may continue the same cache


class Slots:
    """Room for keys and values of each layer, each written once; the first `used` are taken.

    Caches that continue one another share it. Each knows its own end, and takes later slots only.
    """

    def __init__(self, capacity: int, n_layer: int) -> None:
        self.capacity = capacity
        # k_BCHK and v_BCHK, in the sizes and precisions of what a layer first returns.
        self.written: list[tuple[Tensor, Tensor] | None] = [None] * n_layer
        self.used = 0
        # Start, and k_BLHK and v_BLHK of each layer, of what is written once it is read.
        self.waiting: list[tuple[int, Sequence[tuple[Tensor, Tensor]]]] = []

    @property
    def layers(self) -> list[tuple[Tensor, Tensor] | None]:
        self.write_waiting()
        return self.written

    @property
    def dtype(self) -> torch.dtype | None:
        """Precision of the keys; None before the first ones."""
        return next((kept[0].dtype for kept in self.layers if kept is not None), None)

    def take(self, end: int, count: int) -> bool:
        """Take slots after `end`; False if there are too few, or another continuation has them."""
        with RESERVING:
            is_free = self.used == end and end + count <= self.capacity
            self.used += count if is_free else 0
            return is_free

    def add_later(self, start: int, new_N: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Write keys and values of all layers from a slot on, once something reads them."""
        with RESERVING:
            self.waiting.append((start, new_N))
        if len(self.waiting) == MIN_SEGMENT:
            self.write_waiting()

    def write_waiting(self) -> None:
        with RESERVING:
            start = self.waiting[0][0] if self.waiting else 0
            for layer, pairs in enumerate(zip(*(new_N for _, new_N in self.waiting), strict=True)):
                self.write(layer, start, *(torch.cat(x, dim=1) for x in zip(*pairs, strict=True)))
            self.waiting.clear()

    def write(
        self, layer: int, start: int, k_BLHK: Tensor, v_BLHK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values of a layer from a slot on; return all of them, with free slots."""
        kept = self.written[layer]
        if kept is None:
            kept = self.written[layer] = allocate_keys_values(k_BLHK, v_BLHK, self.capacity)
        k_BCHK, v_BCHK = kept
        stop = start + k_BLHK.size(1)
        k_BCHK[:, start:stop] = k_BLHK
        v_BCHK[:, start:stop] = v_BLHK
        return kept

    def copy(self, capacity: int, kept: slice, index_B: Tensor | None = None) -> Slots:
        """Return other slots, the first of which are those kept, or some rows of them."""
        slots = Slots(capacity, len(self.layers))
        slots.used = kept.stop - kept.start
        for n, layer in enumerate(self.layers):
            if layer is not None and slots.used:
                parts = [x_BCHK[:, kept] for x_BCHK in layer]
                if index_B is not None:
                    parts = [part.index_select(0, index_B) for part in parts]
                slots.write(n, 0, *parts)
        return slots


def allocate_keys_values(k_BLHK: Tensor, v_BLHK: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return room for keys and values like these: k_BCHK and v_BCHK."""
    B, _, H, K = k_BLHK.shape
    # A tensor made under inference_mode could not be written to outside of it.
    with torch.inference_mode(False):
        # One query reads keys faster in this order, in float32 and in bfloat16.
        k_HBKC = k_BLHK.new_empty(H, B, K, capacity)
        v_HBCK = v_BLHK.new_empty(H, B, capacity, v_BLHK.size(3))
        return k_HBKC.permute(1, 3, 0, 2), v_HBCK.permute(1, 2, 0, 3)


class CachedPast:
    """A memory of keys and values as one layer reads it in one segment.

    The first visible slot is `start`; the segment's first one is `end`. It is no dataclass and no
    tuple: FSDP2 gives a copy of these to a layer.
    """

    def __init__(
        self, slots: Slots, layer: int, start: int, end: int, terms: DistanceTerms, mask: Mask
    ) -> None:
        self.slots = slots
        self.layer = layer
        self.start = start
        self.end = end
        self.terms = terms
        self.mask = mask
        self.read_BLD: Tensor | None = None

    def choose_kernel(self, attend: Attend) -> Attend:
        """Return how the layer attends to these states: the same."""
        return attend

    def states(self, h_BLD: Tensor) -> tuple[Tensor]:
        """Return h alone."""
        self.read_BLD = h_BLD
        return (h_BLD,)

    def extend(self, kv_BL2HK: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all visible states from those of h, which are kept."""
        k_BCHK, v_BCHK = self.slots.write(self.layer, self.end, *kv_BL2HK.unbind(2))
        seen = slice(self.start, self.end + kv_BL2HK.size(1))
        if k_BCHK.dtype == kv_BL2HK.dtype:
            return k_BCHK[:, seen], v_BCHK[:, seen]
        # Autocast was switched within a text.
        return k_BCHK[:, seen].to(kv_BL2HK), v_BCHK[:, seen].to(kv_BL2HK)


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of the last M states of each layer, for constant weights.

    It is a value: later caches share its slots, but write only to later ones. With absolute
    positions, and in a network that remembers states of the same layer, keys are not constant:
    `empty_cache` returns a memory of states there.

    >>> net = TransformerXL(TransformerXLConfig(d_model=8, mem_len=6)).eval()
    >>> with torch.inference_mode():
    ...     h_BLD, cache = net.hidden(torch.tensor([[1, 2, 3]]), net.empty_cache(1))
    >>> isinstance(cache, KeyValueCache), cache.filled_B
    (True, tensor([3]))
    """

    sizes: dict[str, int]
    """n_layer, n_head and head_width, as in the network's config."""
    filled_B: Tensor
    mem_len: int
    clamp_len: int | None = None
    same_length: SameLength = None
    slots: Slots | None = None
    end: int = 0
    n_kept: int = 0
    """States kept before `end`, at most M, of whatever document; a row attends to `filled_B`."""
    is_even: bool = True
    """True if every row is known to have n_kept states."""
    terms_N: tuple[DistanceTerms, ...] = ()
    """Distance terms of each layer, for the distances needed so far."""

    @property
    def batch_size(self) -> int:
        return len(self.filled_B)

    def begin(self, net: nn.Module, tgt_len: int, doc_pos_BL: Tensor | None) -> Reading:
        """Return what each layer asks in the next segment.

        Raises:
            ValueError: gradients are enabled, training mode, or the network has got absolute
                positions since the memory was empty.
        """
        require_constant(net)
        cache = self.reserve_slots(tgt_len).prepare_terms(net, tgt_len)
        require_layers(net, cache.terms_N)
        mask = cache.attention_mask(tgt_len, doc_pos_BL)
        count = cache._count_terms(cache.n_kept, tgt_len)
        start = cache.end - cache.n_kept
        past_N = [
            CachedPast(cache.slots, n, start, cache.end, terms.nearest(count), mask)
            for n, terms in enumerate(cache.terms_N)
        ]
        return Reading(past_N, partial(cache.update, mask=mask))

    def update(self, states: Sequence[Tensor], mask: Mask, n_reread: int = 0) -> KeyValueCache:
        """Return the cache after a segment, without the last n_reread tokens."""
        tgt_len = states[0].size(1)
        n_kept = min(self.n_kept + tgt_len - n_reread, self.mem_len)
        self.slots.used = end = self.end + tgt_len - n_reread
        is_even = True
        filled_B = torch.full_like(self.filled_B, n_kept)
        # Of a band, all rows have the same states.
        if not isinstance(mask, Band):
            filled_B = count_filled(self.filled_B, mask.mask_BLS, n_reread, self.mem_len)
            is_even = read_on_cpu((filled_B == n_kept).all())
        return replace(self, end=end, n_kept=n_kept, filled_B=filled_B, is_even=is_even)

    def rows(self, index_B: Tensor | slice) -> KeyValueCache:
        """Return these rows, in this order; a row may occur twice."""
        index_B = torch.arange(self.batch_size, device=self.filled_B.device)[index_B]
        return replace(self._move(1, index_B), filled_B=self.filled_B[index_B])

    def to(self, *args, **kwargs) -> KeyValueCache:
        """Return the cache on another device, or its keys and values in another precision."""
        tensors = {name: tensor.to(*args, **kwargs) for name, tensor in self.tensors().items()}
        return self.restore(tensors | {"filled_B": self.filled_B.to(tensors["k_NHBKM"].device)})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save: copies of the states kept, without free slots."""
        _, n_head, head_width = self.sizes.values()
        shape = (self.batch_size, self.n_kept, n_head, head_width)
        none_BMHK = torch.zeros(shape, device=self.filled_B.device)
        kept = [each or (none_BMHK, none_BMHK) for each in self.list_kept()]
        k_NHBKM = torch.stack([k_BMHK.permute(2, 0, 3, 1) for k_BMHK, _ in kept])
        v_NHBMK = torch.stack([v_BMHK.permute(2, 0, 1, 3) for _, v_BMHK in kept])
        return {"k_NHBKM": k_NHBKM, "v_NHBMK": v_NHBMK, "filled_B": self.filled_B}

    def restore(self, tensors: dict[str, Tensor]) -> KeyValueCache:
        """Return the cache saved by `tensors`, with the lengths of this one."""
        k_NBMHK = tensors["k_NHBKM"].permute(0, 2, 4, 1, 3)
        v_NBMHK = tensors["v_NHBMK"].permute(0, 2, 3, 1, 4)
        n_state = k_NBMHK.size(2)
        slots = Slots(n_state, self.sizes["n_layer"])
        if n_state:
            slots.written = list(zip(k_NBMHK, v_NBMHK, strict=True))
        slots.used = n_state
        n_kept = min(n_state, self.mem_len)
        filled_B = tensors["filled_B"].clamp(max=n_kept)
        is_even = read_on_cpu((filled_B == n_kept).all())
        state = {"n_kept": n_kept, "filled_B": filled_B, "is_even": is_even, "terms_N": ()}
        return replace(self, slots=slots, end=n_state, **state)

    def resize(self, lengths: ContextLengths) -> KeyValueCache:
        """Return a cache of other lengths with the newest of these states."""
        n_kept = min(self.n_kept, lengths.mem_len)
        filled_B = self.filled_B.clamp(max=n_kept)
        state = {"n_kept": n_kept, "filled_B": filled_B, "terms_N": ()}
        return replace(self, **state, **lengths._asdict())

    def list_kept(self) -> list[tuple[Tensor, Tensor] | None]:
        """Return k_BMHK and v_BMHK of each layer, as views; None of one that never had any."""
        if self.slots is None or not self.n_kept:
            return [None] * self.sizes["n_layer"]
        kept = slice(self.end - self.n_kept, self.end)
        layers = self.slots.layers
        return [each and (each[0][:, kept], each[1][:, kept]) for each in layers]

    def _move(self, tgt_len: int, index_B: Tensor | None = None) -> KeyValueCache:
        """Return the same states, or some rows of them, in new slots."""
        # At least half of the slots stay free, so that they are rarely moved.
        enough = self._choose_capacity(tgt_len)
        capacity = enough + max(enough, 2 * tgt_len, MIN_SEGMENT)
        if self.slots is None:
            return replace(self, slots=Slots(capacity, self.sizes["n_layer"]))
        kept = slice(self.end - self.n_kept, self.end)
        return replace(self, slots=self.slots.copy(capacity, kept, index_B), end=self.n_kept)

    def reserve_slots(self, tgt_len: int) -> KeyValueCache:
        """Return the same states with slots for a segment after them."""
        if self.slots is not None and self.slots.take(self.end, tgt_len):
            return self
        cache = self._move(tgt_len)
        cache.slots.take(cache.end, tgt_len)
        return cache

    def prepare_terms(self, net: nn.Module, tgt_len: int) -> KeyValueCache:
        """Return the same states with the distance terms of a segment of this length."""
        terms_N = self.terms_N
        if type(net.positions) not in RELATIVE:
            # Their terms may depend on the number of distances: that of a memory of states.
            terms_N = make_terms(net, self._list_distances(self.mem_len + tgt_len + 1))
        elif not terms_N or terms_N[0].n_distance < self._count_terms(self.n_kept, tgt_len):
            # At least MIN_SEGMENT tokens: rounding depends on the count, and a text may continue.
            count = self._count_terms(self._choose_capacity(tgt_len), max(tgt_len, MIN_SEGMENT))
            terms_N = make_terms(net, self._list_distances(count))
        dtype = self.slots.dtype
        # Packed weights return keys and values in another precision than that of the network.
        if dtype not in (None, terms_N[0].dtype):
            terms_N = tuple(terms.to(dtype) for terms in terms_N)
        return self if terms_N is self.terms_N else replace(self, terms_N=terms_N)

    def _list_distances(self, count: int) -> Tensor:
        distance_E = torch.arange(count - 1, -1, -1, device=self.filled_B.device)
        return distance_E.clamp(min=0, max=self.clamp_len)

    def _choose_capacity(self, tgt_len: int) -> int:
        """Return mem_len or, if it is large, a power of two that is enough after the segment."""
        return min(self.mem_len, max(FIRST_CAPACITY, 1 << (self.n_kept + tgt_len - 1).bit_length()))

    def _count_terms(self, n_kept: int, tgt_len: int) -> int:
        # Terms beyond clamp_len are equal; the farthest L stand for all of them.
        count = n_kept + tgt_len + 1
        return count if self.clamp_len is None else min(count, self.clamp_len + tgt_len)

    def attention_mask(self, tgt_len: int, doc_pos_BL: Tensor | None = None) -> Mask:
        """Return which of the S states each query attends to: a band if all rows are equal."""
        farthest = farthest_state(self.same_length, self.mem_len)
        n_state = self.n_kept + tgt_len
        make = partial(attention_mask, self.filled_B, self.n_kept, tgt_len, farthest, doc_pos_BL)
        is_band = self.is_even
        if is_band and doc_pos_BL is not None:
            token_L = torch.arange(tgt_len, device=doc_pos_BL.device)
            is_band = read_on_cpu((doc_pos_BL >= token_L + self.n_kept).all())
        if not is_band:
            return Mask(make(), [(0, n_state)])
        n_far = 0 if farthest is None else max(n_state - 1 - farthest, 0)
        return Band(make, [(0, n_far), (self.n_kept + 1, n_state)])


def holds_keys(memory: object) -> bool:
    """Return True if a memory has keys and values, which a layer has of its mem_len last tokens."""
    return isinstance(memory, KeyValueCache)


def make_terms(net: nn.Module, distance_E: Tensor) -> tuple[DistanceTerms, ...]:
    """Return the distance terms of each layer; ValueError if positions are absolute."""
    terms_N = tuple(terms.lay_out() for terms in net.positions(distance_E))
    is_relative = all(terms.p_SD is None for terms in terms_N)
    expected = "a new memory, as the network has got absolute positions since it was empty"
    require(is_relative, "memory", "keys and values", expected)
    return terms_N


def read_on_cpu(flag: Tensor) -> bool:
    """Return a flag's value on a CPU; elsewhere False, because reading it would wait."""
    return flag.is_cpu and bool(flag)
