"""Loss by the position in the segment, and by the length of memory.

B rows   G whole segments of a row   L tokens of a segment   T tokens scored in each row
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import require
from ..evaluation.scoring import stream_nats
from ..model import TransformerXL


def average_by_position(nats: Mapping[int, np.ndarray]) -> list[dict[str, Any]]:
    """Return rows of mean nats at each position, from the nats_BGL for each length of memory."""
    rows = []
    for mem_len, nats_BGL in nats.items():
        moments_L = zip(*mean_and_error(nats_BGL.reshape(-1, nats_BGL.shape[-1])), strict=True)
        for place, (mean, error) in enumerate(moments_L, start=1):
            row = {"mem_len": mem_len, "position": place, "nats": mean, "standard_error": error}
            rows.append(row)
    return rows


def average_by_memory_len(nats: Mapping[int, np.ndarray]) -> list[dict[str, Any]]:
    """Return rows of mean nats, from the nats_BGL of the same tokens for each length of memory.

    `saved` is the difference from the first length, segment by segment; errors take these as
    independent.
    """
    rows = []
    first_BG = next(iter(nats.values())).mean(axis=-1)
    for mem_len, nats_BGL in nats.items():
        segment_BG = nats_BGL.mean(axis=-1)
        samples_NX = np.stack([segment_BG.ravel(), (first_BG - segment_BG).ravel()], axis=1)
        (mean, saved), (error, saved_error) = mean_and_error(samples_NX)
        row = {"mem_len": mem_len, "nats": mean, "standard_error": error, "saved": saved}
        rows.append(row | {"saved_standard_error": saved_error, "tokens": nats_BGL.size})
    return rows


def score_memory_lens(
    model: TransformerXL,
    tokens: np.ndarray,
    mem_lens: Sequence[int],
    *,
    batch_size: int,
    tgt_len: int,
) -> dict[int, np.ndarray]:
    """Return, for each length of memory, shortest first, the nats_BGL of the same tokens.

    These are all whole segments but the ones that are read while the longest memory fills.
    """
    lengths = sorted(set(mem_lens))
    require(lengths[0] >= 0, "mem_lens", lengths[0], "0 (no memory) or more")
    for key, value in {"batch_size": batch_size, "tgt_len": tgt_len}.items():
        require(value >= 1, key, value, "at least 1")
    n_warmup = -(-lengths[-1] // tgt_len)
    least = batch_size * ((n_warmup + 2) * tgt_len + 1)
    enough = f"{least} or more for {batch_size} rows of {tgt_len} and memories up to {lengths[-1]}"
    require(len(tokens) >= least, "tokens", len(tokens), enough)
    nats = {}
    for mem_len in lengths:
        options = {"batch_size": batch_size, "tgt_len": tgt_len, "mem_len": mem_len}
        nats_BT = stream_nats(model, tokens, **options).double()
        whole_BGL = nats_BT.unfold(1, tgt_len, tgt_len)
        nats[mem_len] = whole_BGL[:, n_warmup:].cpu().numpy()
    return nats


def mean_and_error(samples_NX: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the mean of each column, and its standard error."""
    error_X = samples_NX.std(axis=0, ddof=1) / len(samples_NX) ** 0.5
    return samples_NX.mean(axis=0).tolist(), error_X.tolist()
