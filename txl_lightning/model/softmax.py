"""The softmax over the vocabulary, and its loss a few tokens at a time.

B rows   L segment   Y tokens of any rows   D width   E width of embeddings   V vocabulary
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .config import TransformerXLConfig

IGNORED = -100
"""A target that is not scored: its nats are 0, and no gradient comes from it."""


class Softmax(nn.Module):
    """The plain softmax; its matrix is the embedding's when tied.

    Args:
        config: sizes.
        table: embeddings, to share its matrix with.
        down: from the hidden states' width to theirs.
    """

    def __init__(self, config: TransformerXLConfig, table: nn.Embedding, down: nn.Module) -> None:
        super().__init__()
        self.has_fixed_shapes = True
        self.loss_chunk = config.loss_chunk
        self.down = down
        self.out = nn.Linear(config.embed_width, config.n_token)
        if config.tie_weight:
            self.out.weight = table.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Unnormalised log-probabilities, logits_BLV."""
        return self.out(self.down(h_BLD))

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """-log p of each target, nats_BL; half-precision logits are widened first."""
        h_YD, target_Y = h_BLD.flatten(0, -2), targets_BL.flatten()
        return nats_by_chunk(self, h_YD, target_Y, self.loss_chunk).view_as(targets_BL)


class Down(nn.Module):
    """From the width of the hidden states to that of embeddings, by a matrix laid out as theirs.

    Args:
        weight_DE: a projection of embeddings, to be shared; left out, one of its own.
    """

    def __init__(self, d_model: int, width: int, weight_DE: nn.Parameter | None = None) -> None:
        super().__init__()
        own = torch.zeros(d_model, width)
        self.weight = nn.Parameter(own) if weight_DE is None else weight_DE

    def forward(self, h_BLD: Tensor) -> Tensor:
        return F.linear(h_BLD, self.weight.t())


def wide(logits: Tensor) -> Tensor:
    """At least float32, because half precision cannot hold a sum over the vocabulary."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def nats_by_chunk(
    scores: Callable[[Tensor], Tensor], h_YD: Tensor, target_Y: Tensor, chunk: int | None
) -> Tensor:
    """-log p of each target, nats_Y, by unnormalised log-probabilities `scores(h_YD)`.

    No more than those of `chunk` tokens are ever held: the gradients compute them again.
    """
    if chunk is None or chunk >= len(target_Y):
        return nats(scores, h_YD, target_Y)
    parts = zip(h_YD.split(chunk), target_Y.split(chunk), strict=True)
    again = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(nats, scores, *part, **again) for part in parts])


def nats(scores: Callable[[Tensor], Tensor], h_YD: Tensor, target_Y: Tensor) -> Tensor:
    """-log p of each target, nats_Y."""
    score_YV = wide(scores(h_YD))
    return F.cross_entropy(score_YV, target_Y, reduction="none", ignore_index=IGNORED)
