"""Evaluation with cached keys and values: a second loop over the network's layers, and its cache.

With constant weights, the keys and values of a state and of a distance are constant. They are
computed once here; the network recomputes all M of them for every segment.

B rows   L segment   M cached   S = n_kept + L visible   E distances
N layers   H heads   K head width   D width   C slots of a buffer
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .adaptive import as_indices
from .config import (
    AS_TRAINED,
    EvalLengths,
    SameLength,
    is_transformer_xl,
    require_transformer_xl,
)
from .contract import Network, PlainReader
from .kernels.cached import Workspace, attend, lay_out_terms
from .memory import (
    Mask,
    Memory,
    attention_mask,
    count_filled,
    farthest_state,
    require_memory,
)
from .parts import PackedLinear, is_onednn_faster
from .positions import DistanceTerms
from .transformer_xl import Layer, TransformerXL, has_constant_keys

Weights = Literal["float32", "bf16"]
MIN_SEGMENT = 256  # smallest segment length for which slots and distance terms are prepared
RESERVING = threading.Lock()  # two threads may continue the same cache
FIRST_CAPACITY = 8192  # number of states for which they are prepared at first, if mem_len is larger


class CachedReader:
    """The network for evaluation, with the same methods; its memory caches keys and values.

    For `torch.inference_mode` or `no_grad`, in eval mode, with constant weights. The network
    itself, with `Memory`, computes the same more slowly.
    """

    def __init__(self, net: TransformerXL) -> None:
        expected = "a TransformerXL with its own forward and loss; make_reader takes any network"
        require(net.reads_states, "net", type(net).__name__, expected)
        self.net = net
        self.config = net.config
        self.workspace = Workspace()

    @property
    def head(self) -> nn.Module:
        return self.net.head

    def empty_memory(
        self, batch_size: int, lengths: EvalLengths | None = None
    ) -> Memory | KeyValueCache:
        """Return an empty cache, or an empty `Memory` where a cache is impossible."""
        require(batch_size >= 0, "batch_size", batch_size, "0 or more")
        config = self.config
        weight = next(self.net.layers[0].parameters())
        # FSDP2 gathers a layer's weights, which are DTensors, only for the layer's own forward;
        # importing that class takes as long as the rest of torch.
        if not has_constant_keys(self.net) or hasattr(weight, "full_tensor"):
            return self.net.empty_memory(batch_size, lengths)
        # Layers with bfloat16 weights return keys and values in that precision.
        dtypes = self.net.compute_dtype, self.net.layers[0].attention.kv_net.weight.dtype
        dtype = min(dtypes, key=lambda dtype: dtype.itemsize)
        shape = (config.n_layer, config.n_head, batch_size, config.head_width, 0)
        k_NHBKC = torch.empty(shape, dtype=dtype, device=weight.device)
        filled_B = torch.zeros(batch_size, dtype=torch.long, device=weight.device)
        use = (lengths or AS_TRAINED).resolve(config)
        return KeyValueCache(Buffer(k_NHBKC, k_NHBKC.mT, 0), 0, 0, filled_B, *use)

    # Both read `hidden` and `head` only.
    __call__ = TransformerXL.forward
    loss = TransformerXL.loss

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: Memory | KeyValueCache | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, Memory | KeyValueCache]:
        """Return h^N_BLD and the memory for the next segment, as the network does.

        Raises:
            ValueError: gradients are enabled, training mode, or another number of rows.
        """
        batch_size, tgt_len = tokens_BL.shape
        memory = self.empty_memory(batch_size) if memory is None else memory
        if isinstance(memory, Memory):
            return self.net.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        require_memory(memory, self.config, tokens_BL, n_reread)
        if torch.is_grad_enabled() or drops_units(self.net):
            raise ValueError("a KeyValueCache needs eval() and torch.inference_mode or no_grad")
        expected = "a new memory, as the network has got hooks or other parts since it was empty"
        require(has_constant_keys(self.net), "memory", "keys and values", expected)
        cache = memory.reserve_slots(tgt_len).prepare_terms(tgt_len, self.net.positions)
        mask = cache.attention_mask(tgt_len, doc_pos_BL)
        h_BLD = self.net.embedding(as_indices(tokens_BL)) * self.config.d_model**0.5
        for layer, cached in zip(self.net.layers, cache.layers(tgt_len), strict=True):
            h_BLD = read_layer(layer, h_BLD, cached, mask, self.workspace)
        return self.net.final_norm(h_BLD), cache.update(tgt_len, mask, n_reread)


def drops_units(net: TransformerXL) -> bool:
    """Return True if dropout that `CachedReader` leaves out is in training mode."""
    parts = (part for layer in net.layers for part in (layer.drop, layer.attention))
    return net.training or net.drop.training or any(part.training for part in parts)


CachedLayer = tuple[Tensor, Tensor, DistanceTerms]
"""k_HBKS and value_HBSK, whose last L are for the segment; and distance terms."""


def read_layer(
    layer: Layer, h_BLD: Tensor, cached: CachedLayer, mask: Mask, workspace: Workspace
) -> Tensor:
    """Return the output of `layer` for a segment, after writing the segment's keys and values."""
    attention = layer.attention
    (k_HBKS, value_HBSK, terms) = cached
    normed_BLD = layer.norm_before(h_BLD)
    new_BLHK = attention.kv_net(normed_BLD).unflatten(-1, (2, *attention.heads)).unbind(2)
    k_BSHK, value_BSHK = k_HBKS.permute(1, 3, 0, 2), value_HBSK.permute(1, 2, 0, 3)
    n_kept = k_BSHK.size(1) - h_BLD.size(1)
    k_BSHK[:, n_kept:], value_BSHK[:, n_kept:] = new_BLHK
    query_BLD = normed_BLD if layer.norms_queries else h_BLD
    q_BLHK = attention.q_net(query_BLD).unflatten(-1, attention.heads)
    out_BLI = attend(q_BLHK, k_BSHK, value_BSHK, terms, mask, workspace).flatten(-2)
    return layer.feed_forward(layer.norm_after(h_BLD + attention.o_net(out_BLI)))


@dataclass
class Buffer:
    """Slots for keys and values, each written once; the first `used` are filled."""

    k_NHBKC: Tensor
    v_NHBCK: Tensor
    used: int

    def slots(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return views of keys and values."""
        return self.k_NHBKC[..., start:stop], self.v_NHBCK[..., start:stop, :]


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of the last M states of each layer: the memory of a `CachedReader`.

    It is a value: later caches share its buffer, but write only to later slots.

    >>> from txl_lightning.model import CachedReader
    >>> reader = CachedReader(TransformerXL(TransformerXLConfig(d_model=8, mem_len=6)).eval())
    >>> with torch.inference_mode():
    ...     h_BLD, cache = reader.hidden(torch.tensor([[1, 2, 3]]), reader.empty_memory(1))
    >>> isinstance(cache, KeyValueCache), cache.filled_B
    (True, tensor([3]))
    """

    buffer: Buffer
    end: int
    n_kept: int
    """States kept before `end`, at most M, of whatever document; a row attends to `filled_B`."""
    filled_B: Tensor
    mem_len: int
    clamp_len: int | None = None
    same_length: SameLength = None
    is_even: bool = True
    """True if every row is known to have n_kept states."""
    terms_N: tuple[DistanceTerms, ...] = ()
    """Distance terms of each layer, for the distances needed so far."""

    @property
    def batch_size(self) -> int:
        return len(self.filled_B)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the network, by their names in its config."""
        n_layer, n_head, _, head_width, _ = self.buffer.k_NHBKC.shape
        return {"n_layer": n_layer, "n_head": n_head, "head_width": head_width}

    def rows(self, index_B: Tensor | slice) -> KeyValueCache:
        """Return these rows, in this order; a row may occur twice."""
        index_B = torch.arange(self.batch_size, device=self.filled_B.device)[index_B]
        return replace(self._move(1, index_B), filled_B=self.filled_B[index_B])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save: copies of the states kept, without free slots."""
        k, v = self.buffer.slots(self.end - self.n_kept, self.end)
        return {"k_NHBKM": k.clone(), "v_NHBMK": v.clone(), "filled_B": self.filled_B}

    def restore(self, tensors: dict[str, Tensor]) -> KeyValueCache:
        """Return the memory saved by `tensors`, with the lengths of this one."""
        buffer = Buffer(tensors["k_NHBKM"], tensors["v_NHBMK"], tensors["k_NHBKM"].size(-1))
        n_kept = min(buffer.used, self.mem_len)
        filled_B = tensors["filled_B"].clamp(max=n_kept)
        is_even = read_on_cpu((filled_B == n_kept).all())
        state = {"n_kept": n_kept, "filled_B": filled_B, "is_even": is_even, "terms_N": ()}
        return replace(self, buffer=buffer, end=buffer.used, **state)

    def _move(self, tgt_len: int, index_B: Tensor | None = None) -> KeyValueCache:
        k, v = self.buffer.slots(self.end - self.n_kept, self.end)
        if index_B is not None:
            k, v = k.index_select(2, index_B), v.index_select(2, index_B)
        # At least half of the slots stay free, so that the buffer is rarely copied.
        capacity = self._choose_capacity(tgt_len)
        n_slot = capacity + max(capacity, 2 * tgt_len, MIN_SEGMENT)
        # A tensor made under inference_mode could not be written to outside of it.
        with torch.inference_mode(False):
            k_NHBKC = k.new_empty(*k.shape[:-1], n_slot)
            v_NHBCK = v.new_empty(*k.shape[:3], n_slot, k.size(3))
        k_NHBKC[..., : self.n_kept], v_NHBCK[..., : self.n_kept, :] = k, v
        return replace(self, buffer=Buffer(k_NHBKC, v_NHBCK, self.n_kept), end=self.n_kept)

    def reserve_slots(self, tgt_len: int) -> KeyValueCache:
        """Return the same states with slots for a segment after them."""
        if self.end + tgt_len <= self.buffer.v_NHBCK.size(3):
            with RESERVING:
                # Another continuation of this cache may have written beyond its end.
                if self.buffer.used == self.end:
                    self.buffer.used += tgt_len
                    return self
        return self._move(tgt_len)

    def prepare_terms(self, tgt_len: int, positions: nn.Module) -> KeyValueCache:
        """Return the same states with the distance terms of a segment of this length."""
        if self.terms_N and self.terms_N[0].n_distance >= self._count_terms(self.n_kept, tgt_len):
            return self
        # At least MIN_SEGMENT tokens: rounding depends on the count, and a text may continue.
        count = self._count_terms(self._choose_capacity(tgt_len), max(tgt_len, MIN_SEGMENT))
        distance_E = torch.arange(count - 1, -1, -1, device=self.filled_B.device)
        terms_N = positions(distance_E.clamp(min=0, max=self.clamp_len))
        values = self.buffer.v_NHBCK
        return replace(self, terms_N=tuple(lay_out_terms(terms, values) for terms in terms_N))

    def _choose_capacity(self, tgt_len: int) -> int:
        """Return mem_len or, if it is large, a power of two that is enough after the segment."""
        return min(self.mem_len, max(FIRST_CAPACITY, 1 << (self.n_kept + tgt_len - 1).bit_length()))

    def _count_terms(self, n_kept: int, tgt_len: int) -> int:
        # Terms beyond clamp_len are equal; the farthest L stand for all of them.
        count = n_kept + tgt_len + 1
        return count if self.clamp_len is None else min(count, self.clamp_len + tgt_len)

    def layers(self, tgt_len: int) -> list[CachedLayer]:
        """Return the visible states of each layer, with slots for the segment."""
        self.buffer.used = self.end + tgt_len
        slots = self.buffer.slots(self.end - self.n_kept, self.buffer.used)
        count = self._count_terms(self.n_kept, tgt_len)
        terms_N = [terms.nearest(count) for terms in self.terms_N]
        return list(zip(*slots, terms_N, strict=True))

    def attention_mask(self, tgt_len: int, doc_pos_BL: Tensor | None = None) -> Mask:
        """Return which of the S states each query attends to: a band if all rows are equal."""
        farthest = farthest_state(self.same_length, self.mem_len)
        n_state = self.n_kept + tgt_len
        mask_BLS = attention_mask(self.filled_B, self.n_kept, tgt_len, farthest, doc_pos_BL)
        is_band = self.is_even
        dtype = self.buffer.k_NHBKC.dtype
        if is_band and doc_pos_BL is not None:
            token_L = torch.arange(tgt_len, device=doc_pos_BL.device)
            is_band = read_on_cpu((doc_pos_BL >= token_L + self.n_kept).all())
        if not is_band:
            return Mask(mask_BLS, dtype)
        n_far = 0 if farthest is None else max(n_state - 1 - farthest, 0)
        return Mask(mask_BLS, dtype, ((0, n_far), (self.n_kept + 1, n_state)))

    def update(self, tgt_len: int, mask: Mask, n_reread: int = 0) -> KeyValueCache:
        """Return the cache after a segment, without the last n_reread tokens."""
        n_kept = min(self.n_kept + tgt_len - n_reread, self.mem_len)
        self.buffer.used = end = self.end + tgt_len - n_reread
        is_even = True
        filled_B = torch.full_like(self.filled_B, n_kept)
        # Of a band, all rows have the same states.
        if not mask.has_ranges:
            filled_B = count_filled(self.filled_B, mask.mask_BLS, n_reread, self.mem_len)
            is_even = read_on_cpu((filled_B == n_kept).all())
        return replace(self, end=end, n_kept=n_kept, filled_B=filled_B, is_even=is_even)


def read_on_cpu(flag: Tensor) -> bool:
    """Return a flag's value on a CPU; elsewhere False, because reading it would wait."""
    return flag.is_cpu and bool(flag)


Reader = CachedReader | PlainReader | TransformerXL


def holds_keys(memory: object) -> bool:
    """Return True if a memory has keys and values, which a layer has of its mem_len last tokens."""
    return isinstance(memory, KeyValueCache)


def make_reader(net: Network, uses_cache: bool = True) -> Reader:
    """Return a network as evaluation calls it, with cached keys and values if it has them."""
    if not (isinstance(net, TransformerXL) and net.reads_states):
        return PlainReader(net)
    return CachedReader(net) if uses_cache and has_constant_keys(net) else net


def pack_weights(net: TransformerXL, weights: Weights) -> TransformerXL:
    """Return the network after packing its layers' weights for a CPU, for inference only.

    With bf16, the products of its layers, and cached keys and values, are in bfloat16; sums of
    layers, norms, embeddings and softmax stay in float32. A packed network can no longer be
    trained, saved or moved to another device.

    Raises:
        ValueError: the device does not support them.
    """
    require(weights in ("float32", "bf16"), "weights", weights, "one of float32, bf16")
    if weights == "float32" and not is_transformer_xl(net):
        return net
    require_transformer_xl(net, "weights", weights)
    is_cpu = net.device.type == "cpu"
    is_float32 = is_cpu and net.compute_dtype == torch.float32
    if weights == "float32" and not (is_float32 and is_onednn_faster()):
        return net
    is_supported = is_cpu and torch.backends.mkldnn.is_available()
    if weights == "bf16":
        # Private: no public function tells.
        is_supported = is_supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(is_supported, "weights", weights, f"float32 on this {net.device.type}")
    require(is_float32, "weights", weights, "a network in float32")
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, PackedLinear(module, dtype))
    return net


def find_device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device
