"""Attention distance: how far back the heads of a trained model attend.

B rows   L queries   S = M + L visible states   H heads   K head width   N layers
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.stream import Segment, Stream
from ..errors import require
from ..model import Memory, TransformerXL, accumulator_dtype, eval_mode
from ..model.kernels import reference, sdpa
from ..model.memory import split_keys_values
from ..model.reading import read_segment

QUANTILES = {"nearest_tenth": 0.1, "median": 0.5, "farthest_tenth": 0.9}


@dataclass
class HeadSums:
    """Sums of a layer's attention weights by distance; each query adds 1 per head."""

    distance_HS: Tensor | float = 0.0
    memory_H: Tensor | float = 0.0

    def add(self, weight_BHLS: Tensor) -> None:
        """Count the queries of a segment; the first S - L states are memory."""
        H, L, S = weight_BHLS.shape[1:]
        state_S = torch.arange(S, device=weight_BHLS.device)
        distance_LS = (state_S[S - L :, None] - state_S).clamp(min=0)
        weight_HLS = weight_BHLS.sum(dim=0, dtype=accumulator_dtype(weight_BHLS.device))
        new_HS = weight_HLS.new_zeros(H, S)
        self.distance_HS += new_HS.index_add(1, distance_LS.flatten(), weight_HLS.flatten(1))
        self.memory_H += weight_HLS[..., : S - L].sum(dim=(1, 2))


def measure_attention_distance(
    model: TransformerXL, tokens: np.ndarray, *, batch_size: int, tgt_len: int
) -> list[dict[str, Any]]:
    """Return a row for each head of each layer: its attention distance over a text, in tokens.

    The text is read in whole segments, and queries are counted once the memory is full.
    """
    stream = Stream.from_tokens(tokens, batch_size, tgt_len)
    n_warmup = -(-model.config.mem_len // tgt_len)
    n_whole = stream.n_target // tgt_len
    least = batch_size * ((n_warmup + 1) * tgt_len + 1)
    expected = f"at least {least} for {batch_size} rows of {tgt_len} with a full memory"
    require(n_whole > n_warmup, "tokens", len(tokens), expected)
    segments = map(stream.segment, range(n_whole))
    memory = model.empty_memory(batch_size)
    return summarize_heads(sum_attention(model, segments, memory, n_warmup))


def summarize_heads(sums: Sequence[HeadSums]) -> list[dict[str, Any]]:
    """Return rows of layer, head, distance (0: the query itself) and fraction on the memory."""
    rows = []
    for layer, layer_sums in enumerate(sums, start=1):
        for head, sum_S in enumerate(layer_sums.distance_HS.cpu().numpy()):
            on_memory = float(layer_sums.memory_H[head] / sum_S.sum())
            row = {"layer": layer, "head": head + 1, **summarize_distances(sum_S)}
            rows.append(row | {"on_memory": on_memory})
    return rows


def summarize_distances(sum_S: np.ndarray) -> dict[str, float]:
    reached_S = sum_S.cumsum() / sum_S.sum()
    # A quantile that is reached exactly may be missed by the rounding of the sum.
    quantiles = {name: int(np.argmax(reached_S > q - 1e-9)) for name, q in QUANTILES.items()}
    return {"mean": float(sum_S @ np.arange(len(sum_S)) / sum_S.sum())} | quantiles


@torch.no_grad()
def sum_attention(
    model: TransformerXL, segments: Iterable[Segment], memory: Memory, n_warmup: int
) -> list[HeadSums]:
    """Return each layer's sums over segments of equal length, after n_warmup fill the memory."""
    with eval_mode(model), ExitStack() as stack:
        for index, segment in enumerate(segments):
            if index == n_warmup:
                sums = stack.enter_context(record_attention(model))
            _, memory = read_segment(model, segment.to(model.device), memory)
    return sums


@contextmanager
def record_attention(model: TransformerXL) -> Iterator[list[HeadSums]]:
    """Sum the attention weights of every layer during forward passes, without changing them."""
    kernels = [layer.attention.attend for layer in model.layers]
    sums = [HeadSums() for _ in kernels]

    def attend(layer: int, *inputs: Any) -> Tensor:
        q_BLHK, kv, terms, mask, _ = inputs
        k_BSHK, _ = split_keys_values(kv)
        terms = terms.complete(k_BSHK.size(1))
        content_BHLS = reference.score_content(q_BLHK, k_BSHK, terms) / q_BLHK.size(-1) ** 0.5
        _, distance_BHLS = sdpa.make_operands(q_BLHK, terms, mask.mask_BLS)
        sums[layer].add((content_BHLS + distance_BHLS).softmax(dim=-1))
        return kernels[layer](*inputs)

    try:
        for n, layer in enumerate(model.layers):
            layer.attention.attend = partial(attend, n)
        yield sums
    finally:
        for layer, kernel in zip(model.layers, kernels, strict=True):
            layer.attention.attend = kernel
