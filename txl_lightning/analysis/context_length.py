"""RECL, the relative effective context length (Dai et al. 2019, Appendix C).

How much context helps a model, relative to a group of models at the same positions.

I models of the group   C context lengths   P positions (targets)   W = c + 1 tokens of a window
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..errors import require, require_finite_nats
from ..model import (
    EvalLengths,
    Network,
    eval_mode,
    find_device,
    find_network,
    is_absolute,
)
from ..model.reading import Reader, read_segments
from ..tables import Rows

Nats = Mapping[str, np.ndarray]  # nats_CP of each model by its name
THRESHOLD = 0.01  # smallest gain that counts (1 % in the paper)
SEGMENT = 128
SCORES = 1 << 24  # largest number of attention scores of a layer in memory


def compute_recl(
    nats: Nats, control: Nats, contexts: Sequence[int], shares: Sequence[float]
) -> tuple[Rows, Rows]:
    """Return rows with each model's RECL, and rows with the gains it is derived from.

    If even the last gain is above the threshold, RECL is a lower bound, and `found` is False.
    For each r in `shares`, only the hardest fraction r of positions counts. `control` has the nats
    without the first context, if the added tokens are unrelated: as gains are never negative, these
    gain too. `recl_net` is computed from gains minus control gains.
    """
    nats_CIP, control_CIP = (np.stack(list(each.values()), axis=1) for each in (nats, control))
    short_CIP = nats_CIP[:-1]
    recls = []
    steps = []
    for r in shares:
        gains_CI, control_gains_CI = (
            np.stack([compute_gain(*pair, r) for pair in zip(short_CIP, longer_CIP, strict=True)])
            for longer_CIP in (nats_CIP[1:], control_CIP)
        )
        for model, gain_C, control_C in zip(nats, gains_CI.T, control_gains_CI.T, strict=True):
            keys = {"model": model, "r": r}
            recl, is_found = find_end(gain_C, contexts)
            recl_net, _ = find_end(gain_C - control_C, contexts)
            recls.append(keys | {"recl": recl, "found": is_found, "recl_net": recl_net})
            gains = zip(pairwise(contexts), gain_C.tolist(), control_C.tolist(), strict=True)
            for (short, longer), gain, unrelated in gains:
                context = {"context": short, "longer": longer}
                steps.append(keys | context | {"gain": gain, "control": unrelated})
    return recls, steps


def find_end(gain_C: np.ndarray, contexts: Sequence[int]) -> tuple[int, bool]:
    """Return the first context with a gain below the threshold, True; or the last one, False."""
    small = np.flatnonzero(gain_C < THRESHOLD)
    return (contexts[small[0]], True) if len(small) else (contexts[-1], False)


def compute_gain(short_IP: np.ndarray, long_IP: np.ndarray, r: float) -> np.ndarray:
    """Return gain_I: g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c).

    f_i(c, c') is the mean of min(b(c, t), l_i(c', t)) over the hardest positions t. b(c, t) are the
    lowest nats of the group with the short context: only an improvement over all models counts.
    """
    b_P = short_IP.min(axis=0)
    hardest = np.argsort(-b_P, kind="stable")[: max(1, round(r * len(b_P)))]
    before = b_P[hardest].mean()
    after_I = np.minimum(b_P, long_IP)[:, hardest].mean(axis=1)
    return 1 - np.exp(after_I - before)


def spread_targets(n_token: int, longest: int, count: int) -> np.ndarray:
    """Return target_P, indexes evenly over a text with the longest context before each."""
    spare = n_token - longest
    require(spare >= 1, "max_context", longest, f"less than the {n_token} tokens of the text")
    return longest + np.linspace(0, spare - 1, min(count, spare)).astype(np.int64)


@torch.no_grad()
def score_context(
    model: Network,
    tokens: np.ndarray,
    target_P: np.ndarray,
    context: int,
    tgt_len: int = SEGMENT,
    mem_len: int | None = None,
    unrelated: int = 0,
) -> np.ndarray:
    """Return nats_P: -log p(x_t | the `context` tokens before it) of the targets at target_P.

    Each target is predicted from its own window of exactly `context` tokens, read from an empty
    memory in segments of tgt_len, the first of them shorter. mem_len states are kept between
    segments; None keeps the whole window, and tgt_len then has no effect. The first `unrelated`
    tokens of each window are replaced by those half the text away.
    """
    model = find_network(model)
    # Absolute positions depend on the segment; for relative ones, segments do not matter if the
    # whole window is visible.
    at_once = mem_len is None and is_absolute(model)
    segment = context if at_once else min(context, tgt_len)
    mem_len = context if mem_len is None else mem_len
    n_score = getattr(model.config, "n_head", 1) * segment * (segment + mem_len)
    parts = []
    with eval_mode(model):
        for target_p in np.array_split(target_P, -(-len(target_P) // max(1, SCORES // n_score))):
            index_PW = target_p[:, None] + np.arange(-context, 1)
            index_PW[:, :unrelated] += len(tokens) // 2
            window_PW = tokens[index_PW % len(tokens)].astype(np.int64)
            parts.append(score_windows(model, torch.from_numpy(window_PW), segment, mem_len))
    nats_P = torch.cat(parts).double()
    require_finite_nats(bool(nats_P.isfinite().all()))
    return nats_P.cpu().numpy()


def score_windows(model: Network, window_PW: Tensor, segment: int, mem_len: int) -> Tensor:
    """Return nats_P of each window's last token, predicted from the others."""
    reader = Reader(model)
    window_PW = window_PW.to(find_device(model))
    memory = reader.empty_memory(len(window_PW), EvalLengths(mem_len))
    context = window_PW.size(1) - 1
    # The first segment is the short one, so that targets are at the end of a full one.
    ends = range((context - 1) % segment + 1, context, segment)
    segments = read_segments(reader, window_PW, memory, [0, *ends, context])
    [(h_PLD, _)] = deque(segments, maxlen=1)
    return reader.head.nats(h_PLD[:, -1:], window_PW[:, -1:])[:, 0]
