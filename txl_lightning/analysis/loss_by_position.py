"""Loss by position in the segment, and by memory length.

B rows   G whole segments of a row   L tokens of a segment   T tokens scored in each row
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError, require, require_finite_nats, require_positive
from ..evaluation.scoring import stream_nats
from ..model import Network

MOST_ROWS = 8
"""Rows that are read in parallel where the text is long enough."""


def average_by_position(nats: Mapping[int, np.ndarray]) -> list[dict[str, Any]]:
    """Return rows of mean nats at each position, from the nats_BGL of each memory length."""
    return [
        {"mem_len": mem_len, "position": position, **average_with_error(nats_N, "nats")}
        for mem_len, nats_BGL in nats.items()
        for position, nats_N in enumerate(nats_BGL.reshape(-1, nats_BGL.shape[-1]).T, start=1)
    ]


def average_by_memory_len(nats: Mapping[int, np.ndarray]) -> list[dict[str, Any]]:
    """Return rows of mean nats, from the nats_BGL of the same tokens for each memory length.

    `saved` is the difference from the first length per segment; standard errors assume
    independent segments.
    """
    rows = []
    first_BG = next(iter(nats.values())).mean(axis=-1)
    for mem_len, nats_BGL in nats.items():
        segment_BG = nats_BGL.mean(axis=-1)
        saved = average_with_error(first_BG - segment_BG, "saved", "saved_")
        row = {"mem_len": mem_len, **average_with_error(segment_BG, "nats"), **saved}
        rows.append(row | {"tokens": nats_BGL.size})
    return rows


def average_with_error(samples: np.ndarray, name: str, prefix: str = "") -> dict[str, float]:
    """Return the mean of samples by this name, and its standard error."""
    error = samples.std(ddof=1) / samples.size**0.5
    return {name: float(samples.mean()), f"{prefix}standard_error": float(error)}


def choose_batch_size(n_token: int, mem_lens: Sequence[int], tgt_len: int) -> int:
    """Return the rows, at most MOST_ROWS, in which so many tokens fill the longest memory."""
    require_positive(tgt_len=tgt_len)
    return max(min(n_token // count_least(mem_lens, tgt_len), MOST_ROWS), 1)


def count_least(mem_lens: Sequence[int], tgt_len: int) -> int:
    """Return the tokens of a row that fill the longest memory, and of the two segments after."""
    return (-(-max(mem_lens) // tgt_len) + 2) * tgt_len + 1


def count_warmup(n_token: int, mem_lens: Sequence[int], *, batch_size: int, tgt_len: int) -> int:
    """Return the segments that fill the longest memory; DataError if too few would follow them."""
    require(min(mem_lens) >= 0, "mem_lens", min(mem_lens), "0 (no memory) or more")
    require_positive(batch_size=batch_size, tgt_len=tgt_len)
    least = batch_size * count_least(mem_lens, tgt_len)
    if n_token < least:
        lengths = f"batch_size {batch_size}, tgt_len {tgt_len} and mem_lens up to {max(mem_lens)}"
        advice = "lower one of them, or give more text (--path, --tokens)"
        found = f"the text that is read has {n_token} tokens"
        raise DataError(f"{found}; {lengths} need {least}; {advice}")
    return -(-max(mem_lens) // tgt_len)


def score_memory_lens(
    model: Network,
    tokens: np.ndarray,
    mem_lens: Sequence[int],
    *,
    batch_size: int,
    tgt_len: int,
    advance: Callable[[int], object] = lambda _: None,
) -> dict[int, np.ndarray]:
    """Return nats_BGL by memory length, all of segments for which the longest memory is full."""
    lengths = sorted(set(mem_lens))
    segments = {"batch_size": batch_size, "tgt_len": tgt_len}
    n_warmup = count_warmup(len(tokens), lengths, **segments)
    nats = {}
    for mem_len in lengths:
        nats_BT = stream_nats(model, tokens, mem_len=mem_len, **segments).double()
        nats_BGL = nats_BT.unfold(1, tgt_len, tgt_len)[:, n_warmup:]
        require_finite_nats(bool(nats_BGL.isfinite().all()))
        nats[mem_len] = nats_BGL.cpu().numpy()
        advance(1)
    return nats
