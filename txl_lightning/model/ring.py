"""Decoding: keys and values in a ring, in which each new token takes the place of the oldest.

A ring has the layout of the products of one query, which are faster than those of a part of a
buffer. Its shapes are constant, so that a token can be one CUDA graph. It is changed in place, and
belongs to one `Decoder`; memories stay values.

B rows   H heads   K head width   R slots of the ring   E distances   M in memory   N layers
X = H * B matrices of a batched product   D width
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import require
from .adaptation import Adaptation
from .cache import FIRST_CAPACITY, KeyValueCache, read_on_cpu
from .contract import AnyMemory, Network, find_device
from .graph import CudaGraph
from .kernels import KERNELS
from .memory import Attend, Reading, farthest_state, require_constant, require_layers
from .parts import has_hooks
from .positions import RELATIVE, DistanceTerms
from .reading import Reader
from .transformer_xl import RelativeAttention, TransformerXL

KEY = "cuda_graph"
MIN_SPARE = 64  # least number of slots for tokens to come, as long as the memory is not full


class RingPast:
    """A ring as one layer reads it for one token: its attention is that of the ring."""

    def __init__(self, ring: Ring, layer: int) -> None:
        self.ring = ring
        self.layer = layer
        self.terms = ring.terms_N[layer]
        self.mask = None
        self.read_BLD: Tensor | None = None

    def states(self, h_B1D: Tensor) -> tuple[Tensor]:
        """Return h alone."""
        self.read_BLD = h_B1D
        return (h_B1D,)

    def extend(self, kv_B12HK: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all slots, after those of the token have got theirs."""
        k_HB1K, v_HB1K = kv_B12HK.permute(2, 3, 0, 1, 4)
        k_HBKR, v_HBRK = self.ring.layers[self.layer]
        k_HBKR.index_copy_(3, self.ring.slot_1, k_HB1K.mT.to(k_HBKR.dtype))
        v_HBRK.index_copy_(2, self.ring.slot_1, v_HB1K.to(v_HBRK.dtype))
        self.ring.new_N[self.layer] = kv_B12HK
        # Others than the queries only where autocast was switched within a text.
        return k_HBKR.to(kv_B12HK.dtype), v_HBRK.to(kv_B12HK.dtype)

    def choose_kernel(self, _: Attend) -> Attend:
        return self.attend

    def attend(
        self,
        q_B1HK: Tensor,
        kv: tuple[Tensor, Tensor],
        terms: DistanceTerms,
        mask: None,
        dropatt: float,
    ) -> Tensor:
        """Return the softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_B1HK."""
        k_XKR, v_XRK = (each.flatten(0, 1) for each in kv)
        q_HBK = q_B1HK[:, 0].transpose(0, 1).contiguous()
        H, B, K = q_HBK.shape
        score_HBR = score_slots(q_HBK, terms, self.ring.index_R)
        score_HBR.add_(self.ring.hidden_BR.to(score_HBR.dtype))
        content_HBK = q_HBK if terms.u_HK is None else q_HBK + terms.u_HK[:, None]
        score_X1R = score_HBR.view(H * B, 1, -1)
        score_X1R.baddbmm_(content_HBK.view(H * B, 1, K), k_XKR, alpha=K**-0.5)
        out_X1K = torch.bmm(score_X1R.softmax(dim=-1), v_XRK)
        return out_X1K.view(H, B, 1, K).permute(1, 2, 0, 3)


def score_slots(q_HBK: Tensor, terms: DistanceTerms, index_R: Tensor) -> Tensor:
    """Return (b) + (d) over sqrt(K) of each slot, whose distance is at an index of the terms."""
    scale = q_HBK.size(-1) ** -0.5
    near_HBK = q_HBK if terms.v_HK is None else q_HBK + terms.v_HK[:, None]
    r_HKE = terms.r_THK.permute(1, 2, 0)
    near_HBE = torch.baddbmm(q_HBK.new_empty(1, 1, 1), near_HBK, r_HKE, beta=0, alpha=scale)
    if terms.b_TH is not None:
        near_HBE.add_(terms.b_TH.t()[:, None], alpha=scale)
    return near_HBE.index_select(2, index_R)


class Ring:
    """Keys and values of the last R tokens, in place; a network reads it as a memory.

    The token at position p is in slot p modulo R. Positions, and what rows see, are tensors, so
    that no shape and no operation depends on them.

    Args:
        net: a network for which `has_ring` is true.
        cache: the states to begin with, at least one.
        n_spare: tokens that can be read at least, before `has_room` is false.
    """

    def __init__(self, net: TransformerXL, cache: KeyValueCache, n_spare: int) -> None:
        self.sizes = cache.sizes
        self.batch_size = cache.batch_size
        self.mem_len = cache.mem_len
        n_before = min(cache.mem_len, cache.n_kept + n_spare)
        self.slot_R = torch.arange(n_before + 1, device=cache.filled_B.device)
        farthest = farthest_state(cache.same_length, cache.mem_len)
        self.farthest = n_before if farthest is None else min(farthest, n_before)
        n_distance = n_before + 1 if cache.clamp_len is None else cache.clamp_len + 1
        terms_N = cache.prepare_terms(net, n_before + 1 - cache.n_kept).terms_N
        self.terms_N = [terms.nearest(n_distance).lay_out() for terms in terms_N]
        # Tensors made under inference_mode could not be written to outside of it.
        with torch.inference_mode(False):
            self.position_1 = torch.zeros_like(self.slot_R[:1])
            self.filled_B = torch.zeros_like(cache.filled_B)
            self.layers = [allocate_ring(k_BMHK, n_before + 1) for k_BMHK, _ in cache.list_kept()]
        self.new_N: list[Tensor | None] = [None] * len(self.layers)
        self.load(cache)

    def load(self, cache: KeyValueCache) -> None:
        """Take the states of a cache, which has no more of them than the ring has slots."""
        self.n_read = cache.n_kept
        self.position_1.fill_(cache.n_kept)
        self.filled_B.copy_(cache.filled_B)
        for (k_HBKR, v_HBRK), (k_BMHK, v_BMHK) in zip(self.layers, cache.list_kept(), strict=True):
            k_HBKR[..., : cache.n_kept] = k_BMHK.permute(2, 0, 3, 1)
            v_HBRK[:, :, : cache.n_kept] = v_BMHK.permute(2, 0, 1, 3)

    @property
    def has_room(self) -> bool:
        """False if the next token would take the place of one that the memory keeps."""
        return self.n_read < len(self.slot_R) or len(self.slot_R) > self.mem_len

    def begin(self, net: nn.Module, tgt_len: int, doc_pos_B1: Tensor | None) -> Reading:
        """Return what each layer asks for the next token; ValueError as of a `KeyValueCache`."""
        assert tgt_len == 1, "a ring reads one token at a time"
        require_constant(net)
        require_layers(net, self.terms_N)
        n_slot = len(self.slot_R)
        self.slot_1 = self.position_1 % n_slot
        distance_R = (self.slot_1 - self.slot_R) % n_slot
        # As in `attention_mask`.
        farthest_B = self.filled_B.clamp(max=self.farthest)
        if doc_pos_B1 is not None:
            farthest_B = torch.minimum(farthest_B, doc_pos_B1[:, 0])
        is_seen_BR = distance_R <= farthest_B[:, None]
        dtype = self.layers[0][0].dtype
        self.hidden_BR = torch.where(is_seen_BR, 0.0, -math.inf).to(dtype)
        # Terms are farthest first; the farthest one stands for all larger distances.
        n_distance = self.terms_N[0].n_distance
        self.index_R = (n_distance - 1 - distance_R).clamp(min=0)
        self.position_1.add_(1)
        self.filled_B.copy_((farthest_B + 1).clamp(max=self.mem_len))
        return Reading([RingPast(self, n) for n in range(len(self.layers))], self.end)

    def end(self, states: Sequence[Tensor], n_reread: int = 0) -> Ring:
        """Return the ring itself, in which the token is."""
        assert not n_reread, "a ring keeps each token"
        return self


def allocate_ring(k_BMHK: Tensor, n_slot: int) -> tuple[Tensor, Tensor]:
    """Return room for keys like these, and their values: k_HBKR and v_HBRK."""
    B, _, H, K = k_BMHK.shape
    # Not empty: zero times infinity is no number.
    return k_BMHK.new_zeros(H, B, K, n_slot), k_BMHK.new_zeros(H, B, n_slot, K)


class Decoder(Reader):
    """A reader that has what it returned last in a ring, if segments are single tokens.

    Given another memory, it fills the ring anew; so it returns what a `Reader` does. On a GPU that
    waits for its host, a ring would cost more operations: 258, not 231, a token of enwik8_base.
    """

    def __init__(self, net: Network, adaptation: Adaptation) -> None:
        super().__init__(net, adaptation)
        is_on_cpu = find_device(self.net).type == "cpu"
        self.has_ring = is_on_cpu and self.has_states and has_ring(self.net)
        self.ring: Ring | None = None
        self.last: KeyValueCache | None = None

    def count_spare(self, n_kept: int) -> int:
        """Return for how many tokens to come a ring has slots, which each of them reads."""
        return max(MIN_SPARE, n_kept // 4)

    def read(
        self, tokens_BL: Tensor, memory: AnyMemory, doc_pos_BL: Tensor | None, n_reread: int
    ) -> tuple[Tensor, AnyMemory]:
        """Return the states h_BLD and the network's memory, as its `hidden` does."""
        is_one = tokens_BL.size(1) == 1 and not n_reread
        has_states = isinstance(memory, KeyValueCache) and memory.n_kept and memory.batch_size
        if not (self.has_ring and is_one and has_states):
            return super().read(tokens_BL, memory, doc_pos_BL, n_reread)
        if memory is not self.last or not self.ring.has_room:
            # There is none if the next one cannot be made.
            self.last = None
            self.ring = None
            self.ring = Ring(self.net, memory, self.count_spare(memory.n_kept))
        # What is interrupted has changed the ring.
        self.last = None
        h_B1D, new_N, filled_B = self.read_token(tokens_BL, memory, doc_pos_BL)
        self.ring.n_read += 1
        is_even = memory.is_even and doc_pos_BL is None
        self.last = append_token(memory, new_N, filled_B, is_even)
        return h_B1D, self.last

    def read_token(
        self, tokens_B1: Tensor, memory: KeyValueCache, doc_pos_B1: Tensor | None
    ) -> tuple[Tensor, Sequence[Tensor], Tensor]:
        """Return h_B1D, kv_B12HK of each layer, and filled_B; the ring has read the memory."""
        h_B1D, ring = self.net.hidden(tokens_B1, self.ring, doc_pos_B1)
        return h_B1D, ring.new_N, ring.filled_B.clone()


class CapturedDecoder(Decoder):
    """A decoder on a GPU, which computes each token by one CUDA graph. It has not run on a GPU yet.

    Segments of several tokens, and the softmax, are computed as usual.

    Raises:
        ValueError: there is no GPU, or the network conflicts with graphs.
    """

    def __init__(self, net: Network, adaptation: Adaptation) -> None:
        super().__init__(net, adaptation)
        CudaGraph.require_device(find_device(self.net), KEY)
        # A replay calls no Python, so a hook would run once.
        self.has_ring = self.has_states and has_ring(self.net)
        is_plain = self.has_ring and not any(map(has_hooks, self.net.modules()))
        what = "a kernel, positions, hooks or methods of your own in the network"
        require(is_plain, KEY, "true", f"false with {what}")
        self.weights = [*self.net.parameters()]
        self.state: list[Any] = []
        self.graph: CudaGraph | None = None
        self.inputs: list[Tensor | None] = []

    def count_spare(self, n_kept: int) -> int:
        """Return enough: each size of a ring would need a graph of its own."""
        return max(FIRST_CAPACITY, n_kept)

    def read_token(
        self, tokens_B1: Tensor, memory: KeyValueCache, doc_pos_B1: Tensor | None
    ) -> tuple[Tensor, Sequence[Tensor], Tensor]:
        """Return h_B1D, kv_B12HK of each layer, and filled_B; the ring has read the memory."""
        inputs = [tokens_B1, doc_pos_B1]
        state = [self.ring, doc_pos_B1 is None, [weight.data_ptr() for weight in self.weights]]
        if self.state != state:
            self.capture(inputs, memory)
            self.state = state
        for kept, given in zip(self.inputs, inputs, strict=True):
            if given is not None:
                kept.copy_(given)
        self.graph.replay()
        # The next replay overwrites them.
        h_B1D, new_NB12HK, filled_B = (each.clone() for each in self.graph.outputs)
        return h_B1D, new_NB12HK.unbind(), filled_B

    def capture(self, inputs: Sequence[Tensor | None], memory: KeyValueCache) -> None:
        """Make the graph of a token like this one."""
        # Casts of weights that autocast keeps would be freed before the graph reads them.
        is_cast = torch.is_autocast_enabled(inputs[0].device.type)
        require(not is_cast, KEY, "true", "false under autocast")
        # First, because its memory is needed.
        self.graph = None
        self.inputs = [None if each is None else each.clone() for each in inputs]
        CudaGraph.warm_up(self.compute)
        self.graph = CudaGraph(self.compute)
        # Warming up has changed the ring.
        self.ring.load(memory)

    def compute(self) -> list[Tensor]:
        tokens_B1, doc_pos_B1 = self.inputs
        h_B1D, ring = self.net.hidden(tokens_B1, self.ring, doc_pos_B1)
        return [h_B1D, torch.stack(ring.new_N), ring.filled_B]


def make_decoder(net: Network, adaptation: Adaptation, cuda_graph: bool = False) -> Decoder:
    """Return a reader of single tokens, by CUDA graphs or not; ValueError if it cannot be."""
    return (CapturedDecoder if cuda_graph else Decoder)(net, adaptation)


def has_ring(net: nn.Module) -> bool:
    """Return True if each layer has the attention of this package, in whatever implementation."""
    if not isinstance(net, TransformerXL) or type(net.positions) not in RELATIVE:
        return False
    # Compiled layers would be compiled again for a ring.
    if "run_layer" in vars(net):
        return False
    attention = [getattr(layer, "attention", None) for layer in net.layers]
    return all(
        type(each) is RelativeAttention and each.attend is KERNELS["auto"] for each in attention
    )


def append_token(
    cache: KeyValueCache, new_N: Sequence[Tensor], filled_B: Tensor, is_even: bool
) -> KeyValueCache:
    """Return the cache after a token with kv_B12HK in each layer."""
    cache = cache.reserve_slots(1)
    cache.slots.add_later(cache.end, [kv_B12HK.unbind(2) for kv_B12HK in new_N])
    n_kept = min(cache.n_kept + 1, cache.mem_len)
    is_even = is_even or read_on_cpu((filled_B == n_kept).all())
    state = {"n_kept": n_kept, "filled_B": filled_B, "is_even": is_even}
    return replace(cache, end=cache.end + 1, **state)
