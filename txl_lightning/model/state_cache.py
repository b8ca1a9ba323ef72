"""The continuous cache (Grave, Joulin and Usunier 2017): past states, and the token after each.

    p(w) = (1 - weight) p_network(w) + weight p_cache(w)
    p_cache(w) ~ the sum of exp(theta cos(h_t, h_i)) over the slots i whose next token is w

The paper has the product h_t.h_i; with the cosine, theta means the same in any network.

B rows   L segment   D width   C slots of a buffer   V vocabulary
Q queries computed at once   S slots from the first to the last that they see
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .cache import Slots
from .parts import accumulator_dtype

SHIFT = 12.0
"""Subtracted from exponents, which are -75 to 75: a float32 holds exp(63) a billion times."""
QUERIES = 128  # most queries of a row that are computed at once
ROOM = 1024  # least number of free slots in a new buffer


@dataclass(frozen=True)
class StateCache:
    """The last cache_len slots of each row: the state before a token, and that token.

    A token sees the slots of its own document up to the one with itself. The cache is a value:
    later caches share its buffer, but write only to later slots.
    """

    cache_len: int
    theta: float
    weight: float
    slots: Slots | None = None
    end: int = 0
    n_read: int = 0
    """Tokens read in each row."""
    last_BD: Tensor | None = None
    """Key of the state after the last token; its next token is not known yet."""

    @property
    def n_kept(self) -> int:
        return min(self.n_read, self.cache_len)

    def append(self, h_BLD: Tensor, tokens_BL: Tensor) -> StateCache:
        """Return the cache after a segment, of whose tokens h_BLD are the states."""
        dtype = torch.promote_types(h_BLD.dtype, torch.float32)
        n_new = h_BLD.size(1)
        if not n_new:
            return self
        key_BLD = F.normalize(h_BLD.detach().to(dtype), dim=-1)
        # Before the first token there is no state; no token sees that slot.
        last_BD = torch.zeros_like(key_BLD[:, 0]) if self.last_BD is None else self.last_BD
        before_BLD = torch.cat([last_BD[:, None], key_BLD[:, :-1]], dim=1)
        cache = self._reserve(n_new)
        # One head: a key is a state, and its value a token.
        next_BL = tokens_BL.to(key_BLD.device, torch.int32)
        cache.slots.write(0, cache.end, before_BLD[:, :, None], next_BL[:, :, None, None])
        n_read = self.n_read + n_new
        return replace(cache, end=cache.end + n_new, n_read=n_read, last_BD=key_BLD[:, -1].clone())

    def _reserve(self, n_new: int) -> StateCache:
        """Return the same cache, whose slots have room for new ones, which are taken."""
        if self.slots and self.slots.take(self.end, n_new):
            return self
        capacity = self.n_kept + n_new + max(self.n_kept // 4, ROOM)
        slots = self.slots.copy(capacity, self.kept) if self.slots else Slots(capacity, 1)
        slots.take(self.n_kept, n_new)
        return replace(self, slots=slots, end=self.n_kept)

    @property
    def kept(self) -> slice:
        """Slots of the tokens kept."""
        return slice(self.end - self.n_kept, self.end)

    @property
    def key_BCD(self) -> Tensor:
        return self.slots.layers[0][0][:, :, 0]

    @property
    def next_BC(self) -> Tensor:
        return self.slots.layers[0][1][:, :, 0, 0]

    def rows(self, index_B: Tensor | slice) -> StateCache:
        """Return these rows, in this order; a row may occur twice."""
        if self.slots is None:
            return self
        index_B = torch.arange(len(self.last_BD), device=self.last_BD.device)[index_B]
        slots = self.slots.copy(self.n_kept, self.kept, index_B)
        return replace(self, slots=slots, end=self.n_kept, last_BD=self.last_BD[index_B])

    def to(self, *args: Any, **kwargs: Any) -> StateCache:
        """Return the cache on another device, in its own precision."""
        if self.last_BD is None:
            return self
        device = self.last_BD.to(*args, **kwargs).device
        return self.restore({name: each.to(device) for name, each in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save: copies of the slots kept, without free ones."""
        counts = {"n_read": torch.tensor(self.n_read)}
        if self.slots is None:
            return counts
        key_BDC = self.key_BCD[:, self.kept].mT.clone()
        next_BC = self.next_BC[:, self.kept].clone()
        return counts | {"key_BDC": key_BDC, "next_BC": next_BC, "last_BD": self.last_BD}

    def restore(self, tensors: dict[str, Tensor]) -> StateCache:
        """Return the cache saved by `tensors`, with the settings of this one."""
        n_read = int(tensors["n_read"])
        if not n_read:
            return replace(self, slots=None, end=0, n_read=0, last_BD=None)
        end = tensors["next_BC"].size(1)
        slots = Slots(end, 1)
        slots.written = [(tensors["key_BDC"].mT[:, :, None], tensors["next_BC"][:, :, None, None])]
        slots.used = end
        return replace(self, slots=slots, end=end, n_read=n_read, last_BD=tensors["last_BD"])

    def count_seen(self, n_query: int, doc_pos_BL: Tensor | None = None) -> Tensor:
        """Return how many slots each of the last L tokens sees: seen_BL, in host memory."""
        # A token sees as many slots as tokens of its document precede it; the last is its own.
        seen_L = torch.arange(self.n_read - n_query, self.n_read).clamp(max=self.cache_len)
        seen_BL = seen_L.expand(len(self.last_BD), -1)
        return seen_BL if doc_pos_BL is None else seen_BL.minimum(doc_pos_BL[:, -n_query:].cpu())

    def find_seeing(self, n_query: int, doc_pos_BL: Tensor | None = None) -> Tensor:
        """Return which of the last L tokens see a slot, on the device: is_seen_BL."""
        return (self.count_seen(n_query, doc_pos_BL) > 0).to(self.last_BD.device)

    def mix_nats(
        self, nats_BL: Tensor, targets_BL: Tensor, doc_pos_BL: Tensor | None = None
    ) -> Tensor:
        """Return nats_BL of the mixture, 0 where IGNORED, from the nats of the network alone."""
        n_query = targets_BL.size(1)
        if not n_query:
            return nats_BL
        cache_BL = self.score(targets_BL, doc_pos_BL)
        is_seen_BL = self.find_seeing(n_query, doc_pos_BL)
        mixed_BL = -mix_logp(-nats_BL, cache_BL, self.weight, is_seen_BL)
        return mixed_BL.where(targets_BL.to(mixed_BL.device) >= 0, 0.0)

    def score(self, targets_BL: Tensor, doc_pos_BL: Tensor | None = None) -> Tensor:
        """Return log p_cache of the targets after the last L tokens read; nan if none is seen."""
        logp_BL = self.last_BD.new_empty(targets_BL.shape)
        n_query = targets_BL.size(1)
        seen_BL = self.count_seen(n_query, doc_pos_BL)
        for row in range(len(seen_BL)):
            for first in range(0, n_query, QUERIES):
                queries = slice(first, first + QUERIES)
                weight_QS, next_S = self._weigh(row, queries, seen_BL)
                total_Q = weight_QS.sum(dim=-1)
                hit_Q = sum_matches(weight_QS, next_S, targets_BL[row, queries])
                logp_BL[row, queries] = hit_Q.log() - total_Q.log()
        return logp_BL

    def mix(self, logits_BV: Tensor, doc_pos_B1: Tensor | None = None) -> Tensor:
        """Return logits of the token after the last one read, from the network's logits.

        Their zero point is the network's, on which the repetition penalty depends.
        """
        logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
        zero_B1 = logits_BV.logsumexp(dim=-1, keepdim=True)
        # In float32, a sum of a million equal numbers, one after the other, is wrong.
        cache_BV = torch.zeros_like(logits_BV, dtype=accumulator_dtype(logits_BV.device))
        seen_B1 = self.count_seen(1, doc_pos_B1)
        for row in range(len(seen_B1)):
            weight_1S, next_S = self._weigh(row, slice(1), seen_B1)
            cache_BV[row].index_add_(0, next_S, weight_1S[0].to(cache_BV))
        cache_BV = (cache_BV / cache_BV.sum(dim=-1, keepdim=True)).log()
        is_seen_B1 = self.find_seeing(1, doc_pos_B1)
        return mix_logp(logits_BV - zero_B1, cache_BV, self.weight, is_seen_B1) + zero_B1

    def _weigh(self, row: int, queries: slice, seen_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight_QS ~ exp(theta cos) of some of the last L tokens, 0 for slots that are not
        seen, and next_S."""
        n_query = seen_BL.size(1)
        own_Q1 = torch.arange(self.end - n_query, self.end)[queries, None]
        begin_Q1 = own_Q1 + 1 - seen_BL[row, queries, None]
        start = int(begin_Q1.min())
        stop = int(own_Q1[-1]) + 1
        known_LD = self.key_BCD[row, self.end - n_query + 1 : self.end]
        query_QD = torch.cat([known_LD, self.last_BD[row, None]])[queries] * self.theta
        # No maximum is subtracted: `Adaptation` keeps theta at most 75.
        shift_1 = query_QD.new_full((1,), -SHIFT)
        weight_QS = torch.addmm(shift_1, query_QD, self.key_BCD[row, start:stop].T).exp_()
        # Slots after a query's own, and slots before its first. In both steps, few weights are
        # written: a mask of all slots takes a tenth of the time of the product.
        weight_QS.tril_(stop - start - len(own_Q1))
        is_before_QX = torch.arange(start, int(begin_Q1.max())) < begin_Q1
        weight_QS[:, : is_before_QX.size(1)].masked_fill_(is_before_QX.to(weight_QS.device), 0)
        return weight_QS, self.next_BC[row, start:stop]


def sum_matches(weight_QS: Tensor, next_S: Tensor, target_Q: Tensor) -> Tensor:
    """Return the sum of each query's weights at the slots whose next token is its target."""
    if not weight_QS.is_cpu:
        return weight_QS.where(next_S == target_Q.to(next_S)[:, None], 0).sum(dim=-1)
    # Of 20,000 slots, comparing all pairs takes three times as long.
    weights = weight_QS.numpy()
    tokens = next_S.numpy()
    targets = target_Q.tolist()
    slots = {target: np.flatnonzero(tokens == target) for target in set(targets)}
    return torch.tensor([weights[q].take(slots[each]).sum() for q, each in enumerate(targets)])


def mix_logp(logp: Tensor, cache_logp: Tensor, weight: float | Tensor, is_seen: Tensor) -> Tensor:
    """Return log((1 - weight) p + weight p_cache); log p where the cache sees no state."""
    share = torch.as_tensor(weight, dtype=torch.float64)
    mixed = torch.logaddexp(logp + (1 - share).log(), cache_logp + share.log())
    return torch.where(is_seen, mixed, logp)
