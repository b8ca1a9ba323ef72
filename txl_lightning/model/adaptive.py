"""Embedding and softmax, plain or in clusters: frequent tokens first, the others in narrower ones.

Adaptive input embeddings (Baevski and Auli 2019) and adaptive softmax (Grave et al. 2017), as the
paper has them for WikiText-103 and One Billion Word. Ids go by frequency.

B rows   L segment   Y tokens of any rows   D width   E width of a cluster's embeddings
V vocabulary   X clusters but the first
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import require
from .config import TransformerXLConfig

IGNORED = -100
"""A target that is not scored: its nats are 0, and no gradient comes from it."""
Scorer = Callable[[Tensor], Tensor]
"""Maps h_YD to unnormalised log-probabilities of some tokens."""


def embedding_and_head(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return the embedding and the softmax: in clusters, or plain, as wide as the model or not."""
    if config.cutoffs:
        adaptive = AdaptiveEmbedding(config)
        return adaptive, AdaptiveSoftmax(config, adaptive)
    if config.has_projections:
        narrow = AdaptiveEmbedding(config)
        return narrow, Softmax(config, narrow.tables[0], output_projections(config, narrow)[0])
    table = nn.Embedding(config.n_token, config.d_model)
    return table, Softmax(config, table, nn.Identity())


@dataclass(frozen=True)
class ClusterSpec:
    """Tokens `start` to `stop`, and the width of their embeddings."""

    start: int
    stop: int
    width: int

    def __len__(self) -> int:
        return self.stop - self.start

    def contains(self, ids: Tensor) -> Tensor:
        return (ids >= self.start) & (ids < self.stop)

    @staticmethod
    def clusters(config: TransformerXLConfig) -> list[ClusterSpec]:
        """Return the clusters, most frequent tokens first; refuse an empty last one."""
        bounds, smaller = [0, *config.cutoffs], f"smaller than the vocabulary, {config.n_token}"
        require(bounds[-1] < config.n_token, "cutoffs", list(config.cutoffs), smaller)
        return [
            ClusterSpec(start, stop, config.embed_width // config.div_val**i)
            for i, (start, stop) in enumerate(pairwise([*bounds, config.n_token]))
        ]

    @staticmethod
    def tables(config: TransformerXLConfig) -> list[ClusterSpec]:
        """Return the tables of embeddings: one for each cluster, or one for all."""
        clusters = ClusterSpec.clusters(config)
        whole = ClusterSpec(0, config.n_token, config.embed_width)
        return clusters if config.n_table > 1 else [whole]


class AdaptiveEmbedding(nn.Module):
    """Vectors of each cluster's own width, projected to the width of the model.

    As in the original, a single table as wide as the model has no projection, several all have one.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        specs = ClusterSpec.tables(config)
        self.starts = [spec.start for spec in specs]
        self.tables = nn.ModuleList(nn.Embedding(len(spec), spec.width) for spec in specs)
        projected = specs if config.has_projections else []
        self.projections = nn.ModuleList(
            nn.Linear(spec.width, config.d_model, bias=False) for spec in projected
        )

    def forward(self, tokens_BL: Tensor) -> Tensor:
        # Every table is asked for every token, so that shapes do not depend on ids.
        h_BLD = self._embed(0, tokens_BL)
        for i in range(1, len(self.tables)):
            is_in_table_BL1 = (tokens_BL >= self.starts[i])[..., None]
            h_BLD = torch.where(is_in_table_BL1, self._embed(i, tokens_BL), h_BLD)
        return h_BLD

    def _embed(self, i: int, tokens_BL: Tensor) -> Tensor:
        # Ids of other tables are given any row; those of no table stay errors.
        low = 0 if i > 0 else None
        high = self.tables[i].num_embeddings - 1 if i + 1 < len(self.tables) else None
        row_BL = tokens_BL - self.starts[i]
        row_BL = row_BL if low is high is None else row_BL.clamp(low, high)
        vector_BLE = self.tables[i](row_BL)
        return self.projections[i](vector_BLE) if self.projections else vector_BLE


class Softmax(nn.Module):
    """The plain softmax, after a projection `down`; its matrix is that of `table` when tied."""

    is_compilable = True

    def __init__(self, config: TransformerXLConfig, table: nn.Embedding, down: nn.Module) -> None:
        super().__init__()
        self.chunk_size = config.loss_chunk_size
        self.down = down
        self.out = nn.Linear(config.embed_width, config.n_token)
        if config.tie_weight:
            self.out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        return self.out(self.down(h_BLD))

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL, at least float32."""
        h_YD, target_Y = h_BLD.flatten(0, -2), targets_BL.flatten()
        return chunked_nats(self, h_YD, target_Y, self.chunk_size).view_as(targets_BL)


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of the first cluster's tokens, and of each other cluster times its own.

    Entry i of `cluster` is the score of cluster i + 1 as a whole.
    """

    is_compilable = False
    """The shapes of `nats` depend on the targets; it would be compiled again and again."""

    def __init__(self, config: TransformerXLConfig, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.chunk_size = config.loss_chunk_size
        self.clusters, tables = ClusterSpec.clusters(config), ClusterSpec.tables(config)
        sizes = [len(cluster) for cluster in self.clusters]
        self.sizes = [sizes] if len(tables) == 1 else [[size] for size in sizes]
        self.cluster = nn.Linear(config.embed_width, len(self.clusters) - 1)
        self.outs = nn.ModuleList(nn.Linear(table.width, len(table)) for table in tables)
        self.downs = nn.ModuleList(output_projections(config, embedding))
        if config.tie_weight:
            for out, table in zip(self.outs, embedding.tables, strict=True):
                out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Return log-probabilities of the whole vocabulary, logp_BLV; they sum to one."""
        first, *tails = self.scorers()
        logp_BLV = at_least_float32(first(h_BLD)).log_softmax(-1)
        token_BLV, *cluster_X = logp_BLV.tensor_split([-i for i in range(len(tails), 0, -1)], -1)
        tail_X = (at_least_float32(tail(h_BLD)).log_softmax(-1) for tail in tails)
        tail_X = [tail + logp_BL1 for tail, logp_BL1 in zip(tail_X, cluster_X, strict=True)]
        return torch.cat([token_BLV, *tail_X], dim=-1)

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL, at least float32."""
        h_YD, target_Y = h_BLD.flatten(0, -2), targets_BL.flatten()
        first, *tails = self.scorers()
        # The first softmax chooses a frequent token, or a cluster after them.
        first_Y = target_Y
        for i, cluster in enumerate(self.clusters[1:]):
            first_Y = first_Y.where(~cluster.contains(target_Y), self.clusters[0].stop + i)
        nats_Y = chunked_nats(first, h_YD, first_Y, self.chunk_size)
        for cluster, tail in zip(self.clusters[1:], tails, strict=True):
            at = cluster.contains(target_Y).nonzero().squeeze(1)
            tail_Y = chunked_nats(tail, h_YD[at], target_Y[at] - cluster.start, self.chunk_size)
            nats_Y = nats_Y.index_add(0, at, tail_Y)
        return nats_Y.view_as(targets_BL)

    def scorers(self) -> list[Scorer]:
        """Return a scorer of each cluster's tokens; the first one's also scores the clusters."""
        # A matrix is cut once, because the gradient of every cut has the size of the whole.
        parts = [
            part
            for out, sizes in zip(self.outs, self.sizes, strict=True)
            for part in zip(out.weight.split(sizes), out.bias.split(sizes), strict=True)
        ]

        def score(i: int, h_YD: Tensor) -> Tensor:
            h_YE = self.downs[i](h_YD)
            logits_YV = F.linear(h_YE, *parts[i])
            return logits_YV if i else torch.cat([logits_YV, self.cluster(h_YE)], dim=-1)

        return [partial(score, i) for i in range(len(parts))]


class Projection(nn.Module):
    """From the width of the hidden states to that of embeddings, by a matrix laid out as theirs."""

    def __init__(self, weight_DE: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight_DE

    def forward(self, h_BLD: Tensor) -> Tensor:
        return F.linear(h_BLD, self.weight.t())


def output_projections(
    config: TransformerXLConfig, embedding: AdaptiveEmbedding
) -> list[nn.Module]:
    """Return each cluster's projection: the embedding's matrix where tie_projs says so."""
    ties = config.tie_projs or (False,) * (len(config.cutoffs) + 1)
    if not config.has_projections:
        return [nn.Identity() for _ in ties]
    projections = []
    for i, tie in enumerate(ties):
        weight_DE = embedding.projections[i if config.n_table > 1 else 0].weight
        projections.append(
            Projection(weight_DE if tie else nn.Parameter(torch.zeros_like(weight_DE)))
        )
    return projections


def at_least_float32(logits: Tensor) -> Tensor:
    """Widen half precision, which cannot hold a sum over the vocabulary."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def chunked_nats(scorer: Scorer, h_YD: Tensor, target_Y: Tensor, chunk_size: int | None) -> Tensor:
    """Return nats_Y with the logits of `chunk_size` tokens at once; gradients make them again."""
    if chunk_size is None or chunk_size >= len(target_Y):
        return nats(scorer, h_YD, target_Y)
    chunks = zip(h_YD.split(chunk_size), target_Y.split(chunk_size), strict=True)
    again = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(nats, scorer, *chunk, **again) for chunk in chunks])


def nats(scorer: Scorer, h_YD: Tensor, target_Y: Tensor) -> Tensor:
    logits_YV = at_least_float32(scorer(h_YD))
    return F.cross_entropy(logits_YV, target_Y, reduction="none", ignore_index=IGNORED)
