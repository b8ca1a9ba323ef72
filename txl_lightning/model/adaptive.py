"""Large vocabularies: frequent tokens in the first cluster, the others in narrower ones.

Adaptive input embeddings (Baevski and Auli 2019) and adaptive softmax (Grave et al. 2017), as the
paper has them for WikiText-103 and One Billion Word. Ids go by frequency.

B rows   L segment   Y tokens of any rows   D width   E width of a cluster's embeddings
V vocabulary   X clusters but the first
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require
from .config import TransformerXLConfig
from .softmax import Down, nats_by_chunk, wide


@dataclass(frozen=True)
class Cluster:
    """Tokens `start` to `stop`, whose embeddings are rows `row` and following of a table."""

    start: int
    stop: int
    table: int
    row: int

    def has(self, ids: Tensor) -> Tensor:
        """Which ids are of this cluster."""
        return (ids >= self.start) & (ids < self.stop)


@dataclass(frozen=True)
class Table:
    """Embeddings of one width, of the tokens from `start` on."""

    start: int
    size: int
    width: int


def clusters(config: TransformerXLConfig) -> list[Cluster]:
    """The clusters, most frequent tokens first.

    Raises:
        ValueError: a cluster would be empty.
    """
    last = config.cutoffs[-1] if config.cutoffs else 0
    smaller = f"smaller than the vocabulary, {config.n_token}"
    require(last < config.n_token, "cutoffs", list(config.cutoffs), smaller)
    bounds = [0, *config.cutoffs, config.n_token]
    if config.n_table == 1:
        return [Cluster(start, stop, 0, start) for start, stop in pairwise(bounds)]
    return [Cluster(start, stop, i, 0) for i, (start, stop) in enumerate(pairwise(bounds))]


def tables(config: TransformerXLConfig) -> list[Table]:
    """Those of `config.n_table`."""
    each = [
        Table(cluster.start, cluster.stop - cluster.start, config.embed_width // config.div_val**i)
        for i, cluster in enumerate(clusters(config))
    ]
    return each if config.n_table > 1 else [Table(0, config.n_token, config.embed_width)]


class AdaptiveEmbedding(nn.Module):
    """Vectors of each cluster's own width, projected to the width of the model.

    As in the original, one table that is as wide as the model has no projection; several have one
    each, also the first.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        parts = tables(config)
        self.starts = [part.start for part in parts]
        self.tables = nn.ModuleList(nn.Embedding(part.size, part.width) for part in parts)
        self.projections = nn.ModuleList(
            nn.Linear(part.width, config.d_model, bias=False) for part in projected(config)
        )

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """h_BLD. Every table is asked for every token, so that shapes do not depend on ids."""
        h_BLD = self.vectors(0, self.within(0, tokens_BL))
        for i in range(1, len(self.tables)):
            part_BLD = self.vectors(i, self.within(i, tokens_BL))
            h_BLD = torch.where((tokens_BL >= self.starts[i])[..., None], part_BLD, h_BLD)
        return h_BLD

    def within(self, i: int, tokens_BL: Tensor) -> Tensor:
        """Rows of a table; ids of other tables are given any, and those of none stay errors."""
        low = 0 if i > 0 else None
        high = self.tables[i].num_embeddings - 1 if i + 1 < len(self.tables) else None
        row_BL = tokens_BL - self.starts[i]
        return row_BL if low is high is None else row_BL.clamp(low, high)

    def vectors(self, i: int, row_BL: Tensor) -> Tensor:
        """A table's vectors, as wide as the model."""
        vector_BLE = self.tables[i](row_BL)
        return self.projections[i](vector_BLE) if self.projections else vector_BLE


def projected(config: TransformerXLConfig) -> list[Table]:
    """The tables that have a projection."""
    return tables(config) if config.has_projections else []


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of the first cluster's tokens, and of each other cluster times its own.

    Entry i of `cluster` belongs to cluster i + 1.
    """

    def __init__(self, config: TransformerXLConfig, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.has_fixed_shapes = False
        self.loss_chunk = config.loss_chunk
        self.clusters = clusters(config)
        self.sizes = [
            [c.stop - c.start for c in self.clusters if c.table == number]
            for number in range(len(tables(config)))
        ]
        self.cluster = nn.Linear(config.embed_width, len(self.clusters) - 1)
        self.outs = nn.ModuleList(nn.Linear(part.width, part.size) for part in tables(config))
        self.downs = nn.ModuleList(downs(config, embedding))
        if config.tie_weight:
            for out, table in zip(self.outs, embedding.tables, strict=True):
                out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Log-probabilities of the whole vocabulary, logp_BLV; they sum to one."""
        frequent, *others = self.scores()
        logp_BLV = wide(frequent(h_BLD)).log_softmax(-1)
        token_BLV, *cluster_N = logp_BLV.tensor_split([-i for i in range(len(others), 0, -1)], -1)
        tails = [
            wide(tail(h_BLD)).log_softmax(-1) + logp_BL1
            for tail, logp_BL1 in zip(others, cluster_N, strict=True)
        ]
        return torch.cat([token_BLV, *tails], dim=-1)

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """-log p of each target, nats_BL, in the order of the targets."""
        h_YD, target_Y = h_BLD.flatten(0, -2), targets_BL.flatten()
        frequent, *others = self.scores()
        nats_Y = nats_by_chunk(frequent, h_YD, self.first(target_Y), self.loss_chunk)
        for cluster, tail in zip(self.clusters[1:], others, strict=True):
            at = cluster.has(target_Y).nonzero().squeeze(1)
            inside_Y = nats_by_chunk(tail, h_YD[at], target_Y[at] - cluster.start, self.loss_chunk)
            nats_Y = nats_Y.index_add(0, at, inside_Y)
        return nats_Y.view_as(targets_BL)

    def first(self, target_Y: Tensor) -> Tensor:
        """What the first softmax is to choose: a frequent token, or a cluster after them."""
        for i, cluster in enumerate(self.clusters[1:]):
            target_Y = target_Y.where(~cluster.has(target_Y), self.clusters[0].stop + i)
        return target_Y

    def scores(self) -> list[Callable[[Tensor], Tensor]]:
        """What scores the tokens of each cluster; of the first, and the others as a whole."""
        # A matrix is cut once, because the gradient of every cut has the size of the whole.
        parts = [
            part
            for out, sizes in zip(self.outs, self.sizes, strict=True)
            for part in zip(out.weight.split(sizes), out.bias.split(sizes), strict=True)
        ]
        first, *tails = [
            partial(score, down, weight_VE, bias_V)
            for down, (weight_VE, bias_V) in zip(self.downs, parts, strict=True)
        ]
        return [lambda h_YD: torch.cat([first(h_YD), self.others(h_YD)], dim=-1), *tails]

    def others(self, h_YD: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the clusters after the first."""
        return self.cluster(self.downs[0](h_YD))


def score(down: nn.Module, weight_VE: Tensor, bias_V: Tensor, h_YD: Tensor) -> Tensor:
    """Unnormalised log-probabilities of some tokens."""
    return F.linear(down(h_YD), weight_VE, bias_V)


def downs(config: TransformerXLConfig, embedding: AdaptiveEmbedding) -> list[nn.Module]:
    """What each cluster's softmax projects with: the embedding's matrix where tie_projs says so."""
    parts, shared = projected(config), embedding.projections
    if not parts:
        return [nn.Identity() for _ in clusters(config)]
    tied = config.tie_projs or (False,) * len(clusters(config))
    return [
        Down(
            config.d_model,
            parts[cluster.table].width,
            shared[cluster.table].weight if tie else None,
        )
        for cluster, tie in zip(clusters(config), tied, strict=True)
    ]
