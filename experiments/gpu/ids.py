"""Word ids as frequent as the words of a real corpus.

An adaptive softmax takes more time for rarer words, and how much decides a network's speed.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

EDGES = (0, 1, 10, 100, 1_000, 10_000, 20_000)
SHARES = (0.05515, 0.23289, 0.21801, 0.19162, 0.23047, 0.04696, 0.0249)
"""Of the 2,051,910 words of WikiText-2's training text, ids from each edge to the next one.

Its vocabulary ends at 33,278. The last share is spread over all rarer ids of a larger one, so that
the rarest have at least this share in WikiText-103.
"""


def draw_words(n_token: int, shape: tuple[int, ...]) -> Tensor:
    """Draw ids with these shares, log-uniform between two edges, on the CPU."""
    edges = [edge for edge in EDGES if edge < n_token] + [n_token]
    shares = torch.tensor(SHARES[: len(edges) - 1])
    part = torch.multinomial(shares, torch.Size(shape).numel(), replacement=True)
    # Of ids from 0 on, logarithms begin at 1.
    logs = (torch.tensor(edges, dtype=torch.float64) + 1).log()
    place = torch.rand(part.shape, dtype=torch.float64)
    log_id = logs[part] + place * (logs[part + 1] - logs[part])
    ids = (log_id.exp() - 1).floor().long()
    limits = torch.tensor(edges)
    return torch.maximum(torch.minimum(ids, limits[part + 1] - 1), limits[part]).view(shape)


def share_before(bound: int, n_token: int) -> float:
    """Return the share of ids below a bound."""
    share = 0.0
    for (start, end), each in zip(pairwise((*EDGES, n_token)), SHARES, strict=True):
        if start < bound:
            part = math.log1p(min(bound, end)) - math.log1p(start)
            share += each * part / (math.log1p(end) - math.log1p(start))
    return share
