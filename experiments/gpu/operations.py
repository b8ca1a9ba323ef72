"""Operations of a training step, and the share of a card's peak that a speed is.

    python -m experiments.gpu.operations

Counted are the products of matrices, two operations for a multiplication and an addition: forward,
and twice as many backward, but without gradients of the memory. Scores count for all states of a
query, those of later tokens too. What is computed again in the backward pass does not count.

B rows   L tokens in the segment   M tokens remembered   S = M + L   T = S + 1
D width of the model   X = H K, the width of all heads   F inner width of the feed-forward
"""

import math
from collections.abc import Callable
from itertools import pairwise

from experiments.gpu.ids import share_before
from experiments.results import format_table
from experiments.speed.cases import Case

PEAK = 989e12
"""Dense products of bfloat16 per second of an NVIDIA H100 SXM or H200, as NVIDIA publishes it."""
SPEEDS = {
    "paper/enwik8_base": (176e3, 301e3),
    "paper/wt103_base": (93.7e3, 125e3),
    "paper/enwik8_large": (64.4e3, 73.1e3),
    "nvidia/wt103_base": (85.6e3, 98.9e3),
}
"""The slowest and fastest tokens/s of sdpa in results/, in the Trainer or in the bare loop."""


Share = Callable[[int, int], float]  # of ids below a bound, of so many in all


def share_of_logs(bound: int, n_token: int) -> float:
    """Return the share of log-uniform ids below a bound: those of the calls until now."""
    return math.log(max(bound, 1)) / math.log(n_token)


def share_of_peak(case: Case, tokens_per_second: float) -> float:
    """Return which share of PEAK a speed is, of words as frequent as in ids.py."""
    return count_operations(case, share_before) / case.tokens * tokens_per_second / PEAK


def count_operations(case: Case, share: Share = share_of_logs) -> float:
    """Return the operations of a training step."""
    layers = case.config.n_layer * (count_projections(case) + count_scores(case))
    return layers + 3 * count_head(case, share)


def count_projections(case: Case) -> float:
    """Return those of a layer's q, k, v, r and o, and of its feed-forward network."""
    config = case.config
    B = case.rows
    L = case.tgt_len
    D = config.d_model
    F = config.inner_width
    X = config.n_head * config.head_width
    S = L + case.mem_len
    T = S + 1
    both = 2 * B * L * D * X
    of_queries = 2 * both + 4 * B * L * D * F
    of_states = 2 * B * S * D * 2 * X
    of_distances = 2 * T * D * X
    # Backward: a product for the weights, and one for the input, which a memory does not have.
    backward = 2 * of_queries + of_states * (1 + L / S) + 2 * of_distances
    return of_queries + of_states + of_distances + backward


def count_scores(case: Case) -> float:
    """Return those of a layer's terms (a) and (c), of (b) and (d), and of the values."""
    config = case.config
    X = config.n_head * config.head_width
    return 3 * 3 * 2 * case.tokens * (case.tgt_len + case.mem_len) * X


def count_head(case: Case, share: Share = share_of_logs) -> float:
    """Return those of the softmax, forward; of clusters by the shares of their ids."""
    n_token = case.config.n_token
    cutoffs = case.config.cutoffs
    tokens = case.rows * case.tgt_len
    edges = [0, *cutoffs, n_token]
    sizes = [end - start for start, end in pairwise(edges)]
    shares = [share(end, n_token) for end in edges]
    shares = [after - before for before, after in pairwise(shares)]
    columns = (
        sizes[0] + len(cutoffs) + sum(n * p for n, p in zip(sizes[1:], shares[1:], strict=True))
    )
    return 2 * tokens * case.config.d_model * columns


def main() -> None:
    # Here, because speed.py asks this file for shares.
    from experiments.gpu.speed import PUBLISHED, load_published

    rows = [["network, rows x tokens", "million operations a token", "tokens/s", "share of peak"]]
    for name in PUBLISHED:
        case = load_published(name, smoke=False)
        each = count_operations(case) / case.tokens
        speeds = SPEEDS[name]
        shares = " to ".join(f"{100 * speed * each / PEAK:.1f}" for speed in speeds)
        shown = " to ".join(f"{speed:,.0f}" for speed in speeds)
        about = f"{name}, {case.rows} x {case.tgt_len}"
        rows.append([about, f"{each / 1e6:.0f}", shown, f"{shares} %"])
    print(format_table(rows), end="")


if __name__ == "__main__":
    main()
