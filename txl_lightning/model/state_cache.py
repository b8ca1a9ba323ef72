"""The continuous cache (Grave, Joulin and Usunier 2017): past states, and the token after each.

    p(w) = (1 - weight) p_network(w) + weight p_cache(w)
    p_cache(w) ~ the sum of exp(theta cos(h_t, h_i)) over the slots i whose next token is w

The paper has the product h_t.h_i; with the cosine, theta means the same in any network.

B rows   L segment   D width   C slots of a buffer   V vocabulary
Q queries of a tile   S slots from the first to the last that they see
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .kernels.cached import Workspace

QUERIES = 128  # most queries of a row that are computed at once
ROOM = 1024  # least number of free slots in a new buffer


@dataclass
class Slots:
    """A buffer of keys and of the tokens after them, each written once; `used` are filled."""

    key_BDC: Tensor
    next_BC: Tensor
    used: int = 0


@dataclass(frozen=True)
class StateCache:
    """The last cache_len slots of each row: the state before a token, and that token.

    A token sees the slots of its own document up to the slot with itself. The cache is a value:
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
    workspace: Workspace = field(default_factory=Workspace, compare=False)

    @property
    def n_kept(self) -> int:
        return min(self.n_read, self.cache_len)

    def append(self, h_BLD: Tensor, tokens_BL: Tensor) -> StateCache:
        """Return the cache after a segment, of whose tokens h_BLD are the states."""
        key_BLD = find_keys(h_BLD)
        n_new = key_BLD.size(1)
        # Before the first token there is no state; no token sees that slot.
        last_BD = torch.zeros_like(key_BLD[:, 0]) if self.last_BD is None else self.last_BD
        slots, start = self._reserve(n_new, key_BLD)
        stop = slots.used = start + n_new
        slots.key_BDC[..., start] = last_BD
        slots.key_BDC[..., start + 1 : stop] = key_BLD[:, :-1].mT
        slots.next_BC[:, start:stop] = tokens_BL
        n_read, last_BD = self.n_read + n_new, key_BLD[:, -1].clone()
        return replace(self, slots=slots, end=stop, n_read=n_read, last_BD=last_BD)

    def _reserve(self, n_new: int, like: Tensor) -> tuple[Slots, int]:
        """Return a buffer with room for new slots, and where they start."""
        # Another continuation of this cache may have written beyond its end.
        if self.slots and self.slots.used == self.end <= self.slots.next_BC.size(1) - n_new:
            return self.slots, self.end
        n_slot = self.n_kept + n_new + max(self.n_kept // 4, ROOM)
        B, _, D = like.shape
        # A tensor made under inference_mode could not be written to outside of it.
        with torch.inference_mode(False):
            key_BDC = torch.empty(B, D, n_slot, dtype=like.dtype, device=like.device)
            next_BC = torch.empty(B, n_slot, dtype=torch.int32, device=like.device)
        if self.slots:
            key_BDC[..., : self.n_kept], next_BC[:, : self.n_kept] = self._kept()
        return Slots(key_BDC, next_BC), self.n_kept

    def _kept(self) -> tuple[Tensor, Tensor]:
        kept = slice(self.end - self.n_kept, self.end)
        return self.slots.key_BDC[..., kept], self.slots.next_BC[:, kept]

    def rows(self, index_B: Tensor | slice) -> StateCache:
        """Return these rows, in this order; a row may occur twice."""
        if self.slots is None:
            return self
        key_BDM, next_BM = self._kept()
        slots = Slots(key_BDM[index_B], next_BM[index_B], self.n_kept)
        return replace(self, slots=slots, end=self.n_kept, last_BD=self.last_BD[index_B])

    def score(self, targets_BL: Tensor, doc_pos_BL: Tensor | None = None) -> Tensor:
        """Return log p_cache of the targets after the last L tokens read; nan if none is seen."""
        logp_BL = torch.empty(
            targets_BL.shape, dtype=self.last_BD.dtype, device=self.last_BD.device
        )
        for row, queries, weight_QS, next_S in self._tiles(targets_BL.size(1), doc_pos_BL):
            hit_Q = sum_matches(weight_QS, next_S, targets_BL[row, queries].to(next_S))
            logp_BL[row, queries] = hit_Q.log() - weight_QS.sum(dim=-1).log()
        return logp_BL

    def mix(self, logits_BV: Tensor, doc_pos_B1: Tensor | None = None) -> Tensor:
        """Return log p of the token after the last one read, from the network's logits."""
        logp_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
        mixed_BV = torch.empty_like(logp_BV)
        for row, _, weight_1S, next_S in self._tiles(1, doc_pos_B1):
            p_V = torch.zeros_like(logp_BV[row]).index_add_(0, next_S, weight_1S[0].to(logp_BV))
            cache_V = p_V.log() - weight_1S.sum().log()
            mixed_BV[row] = mix_logp(logp_BV[row], cache_V, self.weight)
        return mixed_BV

    def _keys(self, count: int) -> Tensor:
        """Return the keys of the states after the last tokens read."""
        known_BDL = self.slots.key_BDC[..., self.end - count + 1 : self.end]
        return torch.cat([known_BDL.mT, self.last_BD[:, None]], dim=1)

    def _tiles(
        self, count: int, doc_pos_BL: Tensor | None
    ) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """Yield row, queries, weight_QS = exp(theta cos), 0 for slots that are not seen, next_S."""
        query_BLD = self._keys(count) * self.theta
        (B, L, _), device = query_BLD.shape, query_BLD.device
        # A token at position n of its document sees n slots; the last is its own, at `own`.
        seen_BL = torch.arange(self.n_read - L, self.n_read).clamp(max=self.cache_len).expand(B, L)
        if doc_pos_BL is not None:
            seen_BL = torch.minimum(seen_BL, doc_pos_BL[:, -L:].cpu())
        own_L = torch.arange(self.end - L, self.end)
        for row, seen_L in enumerate(seen_BL):
            for first in range(0, L, QUERIES):
                queries = slice(first, first + QUERIES)
                own_Q, begin_Q = own_L[queries], (own_L - seen_L)[queries] + 1
                start, stop = int(begin_Q.min()), int(own_Q[-1]) + 1
                key_DS = self.slots.key_BDC[row, :, start:stop]
                shape = len(own_Q), stop - start
                weight_QS = self.workspace.get("weights", shape, query_BLD)
                torch.mm(query_BLD[row, queries], key_DS, out=weight_QS).exp_()
                n_left, n_right = int(begin_Q.max()) - start, stop - 1 - int(own_Q[0])
                slot_S = torch.arange(start, stop, device=device)
                begin_Q1, own_Q1 = begin_Q[:, None].to(device), own_Q[:, None].to(device)
                weight_QS[:, :n_left] *= slot_S[:n_left] >= begin_Q1
                n_right = min(n_right, shape[1])
                right = slice(shape[1] - n_right, None)
                weight_QS[:, right] *= slot_S[right] <= own_Q1
                yield row, queries, weight_QS, self.slots.next_BC[row, start:stop]


def find_keys(h_BLD: Tensor) -> Tensor:
    """Return states of length 1, at least in float32."""
    dtype = torch.promote_types(h_BLD.dtype, torch.float32)
    return F.normalize(h_BLD.detach().to(dtype), dim=-1)


def sum_matches(weight_QS: Tensor, next_S: Tensor, target_Q: Tensor) -> Tensor:
    """Return the sum of each query's weights at the slots whose next token is its target."""
    if not weight_QS.is_cpu:
        return weight_QS.where(next_S == target_Q[:, None], 0).sum(dim=-1)
    # On a CPU, comparing all Q x S pairs takes three times as long.
    weights, tokens, targets = weight_QS.numpy(), next_S.numpy(), target_Q.tolist()
    slots = {target: np.flatnonzero(tokens == target) for target in set(targets)}
    sums = [weights[q].take(slots[target]).sum() for q, target in enumerate(targets)]
    return torch.from_numpy(np.array(sums))


def mix_logp(logp: Tensor, cache_logp: Tensor, weight: float | Tensor) -> Tensor:
    """Return log((1 - weight) p + weight p_cache); log p where p_cache is nan."""
    weight = torch.as_tensor(weight, dtype=torch.float64)
    network, cache = (-weight).log1p().to(logp), weight.log().to(logp)
    return torch.where(
        cache_logp.isnan(), logp, torch.logaddexp(logp + network, cache_logp + cache)
    )
