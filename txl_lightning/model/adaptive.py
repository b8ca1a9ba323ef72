"""Embedding and softmax, plain or in clusters: rarer tokens have narrower embeddings.

Adaptive input embeddings (Baevski and Auli 2019) and adaptive softmax (Grave et al. 2017), as in
the paper for WikiText-103 and One Billion Word. Ids are sorted by frequency.

B rows   L segment   Y tokens of any rows   D width   E width of a cluster's embeddings
V vocabulary   X clusters except the first
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import require
from .config import TransformerXLConfig
from .nats import at_least_float32, nats_of_logits, nats_of_states
from .parts import Linear, is_changed, linear

# Types of stored ids, which torch takes for indices only in some places.
STORED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
STORED += (torch.int8, torch.int16, torch.int32)


def as_indices(ids: Tensor) -> Tensor:
    """Return ids in a type that torch takes as indices; a vocabulary gives them in a small one."""
    return ids.long() if ids.dtype in STORED else ids


def embedding_and_head(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return the embedding and the softmax: plain, projected, or in clusters."""
    if config.cutoffs:
        adaptive = AdaptiveEmbedding(config)
        return adaptive, AdaptiveSoftmax(config, adaptive)
    if config.has_projections:
        narrow = AdaptiveEmbedding(config)
        return narrow, Softmax(config, narrow.tables[0], output_projections(config, narrow)[0])
    table = nn.Embedding(config.n_token, config.d_model)
    return table, Softmax(config, table, nn.Identity())


def ids_of_clusters(config: TransformerXLConfig) -> list[range]:
    """Return each cluster's ids, most frequent tokens first; ValueError if the last is empty."""
    bounds = [0, *config.cutoffs]
    smaller = f"smaller than the vocabulary, {config.n_token}"
    require(bounds[-1] < config.n_token, "cutoffs", list(config.cutoffs), smaller)
    return [range(start, stop) for start, stop in pairwise([*bounds, config.n_token])]


class AdaptiveEmbedding(nn.Module):
    """Embeddings with a width per cluster, projected to the width of the model.

    As in the original, a single table as wide as the model has no projection; others all have one.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        # A table for each cluster, or one for all.
        self.ids = ids_of_clusters(config) if config.n_table > 1 else [range(config.n_token)]
        widths = [config.embed_width // config.div_val**i for i in range(len(self.ids))]
        self.tables = nn.ModuleList(map(nn.Embedding, map(len, self.ids), widths))
        projected = widths if config.has_projections else []
        self.projections = nn.ModuleList(
            Linear(width, config.d_model, bias=False) for width in projected
        )

    def forward(self, tokens_BL: Tensor) -> Tensor:
        # Every table looks up every token, so that shapes do not depend on ids.
        h_BLD = self._embed(0, tokens_BL)
        for i in range(1, len(self.tables)):
            is_in_table_BL1 = (tokens_BL >= self.ids[i].start)[..., None]
            h_BLD = torch.where(is_in_table_BL1, self._embed(i, tokens_BL), h_BLD)
        return h_BLD

    def _embed(self, i: int, tokens_BL: Tensor) -> Tensor:
        row_BL = tokens_BL - self.ids[i].start
        # Ids of other tables are clamped; ids outside the vocabulary still raise an error.
        if i > 0:
            row_BL = row_BL.clamp(min=0)
        if i + 1 < len(self.tables):
            row_BL = row_BL.clamp(max=len(self.ids[i]) - 1)
        vector_BLE = self.tables[i](row_BL)
        return self.projections[i](vector_BLE) if self.projections else vector_BLE


class Softmax(nn.Module):
    """The plain softmax, after a projection `down`; tied, it shares the weights of `table`."""

    reads_targets = False

    def __init__(self, config: TransformerXLConfig, table: nn.Embedding, down: nn.Module) -> None:
        super().__init__()
        self.chunk_size = config.loss_chunk_size
        self.down = down
        self.out = Linear(config.embed_width, config.n_token)
        if config.tie_weight:
            self.out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        return linear(self.down(h_BLD), self.out.weight, self.out.bias)

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL, at least float32; targets may be on the host."""
        if is_changed(self) or type(self).forward is not Softmax.forward:
            return PlainSoftmax(self).nats(h_BLD, targets_BL)
        h_YE = self.down(h_BLD.flatten(0, -2))
        target_Y = as_indices(targets_BL.flatten()).to(h_YE.device, non_blocking=True)
        nats_Y = nats_of_states(h_YE, self.out.weight, self.out.bias, target_Y, self.chunk_size)
        return nats_Y.view(targets_BL.shape)


class PlainSoftmax(nn.Sequential):
    """The softmax of the logits that its modules return; without any, of its input."""

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL; targets may be on the host."""
        target_Y = as_indices(targets_BL.flatten()).to(h_BLD.device, non_blocking=True)
        return nats_of_logits(self(h_BLD.flatten(0, -2)), target_Y).view(targets_BL.shape)


class AdaptiveSoftmax(nn.Module):
    """Softmax over the first cluster and the other clusters, then within a cluster.

    Entry i of `cluster` is the score of the whole cluster i + 1.
    """

    reads_targets = True
    """True: the shapes of `nats` depend on the targets, so that a compiled one would be recompiled,
    and targets on a GPU are waited for: it takes those on the host too."""

    def __init__(self, config: TransformerXLConfig, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.chunk_size = config.loss_chunk_size
        self.ids = ids_of_clusters(config)
        self.cluster = Linear(config.embed_width, len(self.ids) - 1)
        shapes = [(table.embedding_dim, table.num_embeddings) for table in embedding.tables]
        self.outs = nn.ModuleList(Linear(*shape) for shape in shapes)
        self.downs = nn.ModuleList(output_projections(config, embedding))
        if config.tie_weight:
            for out, table in zip(self.outs, embedding.tables, strict=True):
                out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Return log-probabilities of the whole vocabulary, logp_BLV; they sum to one."""
        first, *tails = (
            at_least_float32(each).log_softmax(-1) for each in self.compute_logits(h_BLD)
        )
        token_BLV, *cluster_X = first.tensor_split([-i for i in range(len(tails), 0, -1)], -1)
        tails = [tail_BLV + logp_BL1 for tail_BLV, logp_BL1 in zip(tails, cluster_X, strict=True)]
        return torch.cat([token_BLV, *tails], dim=-1)

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL, at least float32; targets may be on the host."""
        if is_changed(self):
            # A hook acts on the whole vocabulary.
            return PlainSoftmax(self).nats(h_BLD, targets_BL)
        h_YD = h_BLD.flatten(0, -2)
        target_Y = as_indices(targets_BL).cpu().numpy().ravel()
        send = partial(send_to, h_YD.device)
        parts = self.split_tables()
        cluster_Y = sum(target_Y >= ids.start for ids in self.ids[1:])
        # The first softmax is over the frequent tokens and the other clusters.
        first_Y = np.where(cluster_Y == 0, target_Y, len(self.ids[0]) - 1 + cluster_Y)
        h_YE = self.downs[0](h_YD)
        more_YC = self.cluster(h_YE)
        nats_Y = nats_of_states(h_YE, *parts[0], send(first_Y), self.chunk_size, more_YC)
        for i in range(1, len(parts)):
            index_Y = np.flatnonzero(cluster_Y == i)
            row_Y = send(target_Y[index_Y] - self.ids[i].start)
            index_Y = send(index_Y)
            h_YE = self.downs[i](h_YD[index_Y])
            tail_Y = nats_of_states(h_YE, *parts[i], row_Y, self.chunk_size)
            nats_Y = nats_Y.index_add(0, index_Y, tail_Y)
        return nats_Y.view(targets_BL.shape)

    def compute_logits(self, h_BLD: Tensor) -> Iterator[Tensor]:
        """Yield the logits of each cluster's tokens; after the first ones, those of clusters."""
        for i, (down, part) in enumerate(zip(self.downs, self.split_tables(), strict=True)):
            h_BLE = down(h_BLD)
            logits_BLV = linear(h_BLE, *part)
            yield logits_BLV if i else torch.cat([logits_BLV, self.cluster(h_BLE)], dim=-1)

    def split_tables(self) -> list[tuple[Tensor, Tensor]]:
        """Return the weight and the bias of each cluster's tokens."""
        sizes = [len(ids) for ids in self.ids]
        cuts = [sizes] if len(self.outs) == 1 else [[size] for size in sizes]
        # A matrix is split once, because the gradient of every slice has the full size.
        return [
            part
            for out, cut in zip(self.outs, cuts, strict=True)
            for part in zip(out.weight.split(cut), out.bias.split(cut), strict=True)
        ]


class Projection(nn.Module):
    """Projection from hidden to embedding width, with the weight layout of the embedding's."""

    def __init__(self, weight_DE: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight_DE

    def forward(self, h_BLD: Tensor) -> Tensor:
        return linear(h_BLD, self.weight.t())


def output_projections(
    config: TransformerXLConfig, embedding: AdaptiveEmbedding
) -> list[nn.Module]:
    """Return each cluster's projection, shared with the embedding where tie_projs is true."""
    ties = config.tie_projs or (False,) * (len(config.cutoffs) + 1)
    if not config.has_projections:
        return [nn.Identity() for _ in ties]
    weights = [embedding.projections[min(i, config.n_table - 1)].weight for i in range(len(ties))]
    return [
        Projection(weight if tie else nn.Parameter(torch.zeros_like(weight)))
        for weight, tie in zip(weights, ties, strict=True)
    ]


def send_to(device: torch.device, numbers: np.ndarray) -> Tensor:
    """Copy numbers to a device without waiting for it."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)
