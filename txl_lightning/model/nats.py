"""Nats of targets, -log p: by logits, or by states and the table that gives the logits.

The logits of a large vocabulary are the largest tensor of a step. So they become their own
gradients, in place, and are converted to float32 a few rows at a time.

Y tokens   X those of a chunk   V vocabulary   E width of the table   C scores of other clusters
W = V, rounded up to what a device multiplies fast
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .parts import linear, multiply, weight_gradient
from .precision import compute_dtype, widen

CACHED_LOGITS = 1 << 18  # logits that a CPU converts to float32, and sums, at once
WIDE_LOGITS = 1 << 28  # and another device


def nats_of_states(
    h_YE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    target_Y: Tensor,
    chunk_size: int | None = None,
    more_YC: Tensor | None = None,
) -> Tensor:
    """Return nats_Y, at least float32, by the logits [h W^T + b, more] after each state.

    Args:
        target_Y: columns of the logits; those of -100 have 0 nats, without gradient.
        chunk_size: tokens whose logits are in memory at once, and computed again for gradients;
            None: those of all, computed once.
    """
    size = chunk_size or max(len(target_Y), 1)
    if torch.compiler.is_compiling():
        return score_compiled(h_YE, weight_VE, bias_V, more_YC, target_Y, size)
    inputs = [each for each in (h_YE, weight_VE, bias_V, more_YC) if each is not None]
    needs_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    is_whole = size >= len(target_Y)
    # Multiplying states saves time only where they are narrower than logits.
    is_narrow = needs_gradient and len(weight_VE) >= 2 * weight_VE.size(1)
    if more_YC is None and is_whole and not is_narrow:
        return nats_of_logits(linear(h_YE, weight_VE, bias_V), target_Y)
    keeps = needs_gradient and is_whole
    return NatsOfStates.apply(h_YE, weight_VE, bias_V, more_YC, target_Y, size, keeps)


class NatsOfStates(torch.autograd.Function):
    """Nats by the logits [h W^T + b, more]; if `keeps`, their gradients are kept in their place.

    Gradients of nats multiply states, which are narrower than logits.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *given, target_Y, chunk_size, keeps = inputs
        h_YE, weight_VE, bias_V, more_YC = given
        dtype = compute_dtype(weight_VE)
        # Once for all chunks.
        operands = widen(h_YE, dtype), widen(weight_VE, dtype, 2), widen(bias_V, dtype)
        parts = [
            score_chunk(*operands, more_YC, target_Y, rows, len(bias_V), keeps)
            for rows in split_rows(len(target_Y), chunk_size)
        ]
        nats, *kept = zip(*parts, strict=True)
        ctx.save_for_backward(*given, target_Y, *operands, *(each[0] for each in kept))
        ctx.chunk_size = chunk_size
        return join_parts(nats)

    @staticmethod
    def backward(ctx: Any, d_nats_Y: Tensor) -> tuple[Tensor | None, ...]:
        *given, target_Y, h_YE, weight_WE, bias_W, kept_YW, kept_YC = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *differentiate_nats(given, target_Y, d_nats_Y, h_YE.dtype), None, None, None
        _, weight_VE, bias_V, more_YC = given
        n_token, width = weight_VE.shape
        d_h = []
        d_more = []
        d_weight_WE = d_bias_W = None
        d_nats_Y1 = d_nats_Y.masked_fill(target_Y < 0, 0).unsqueeze(1)
        for rows in split_rows(len(target_Y), ctx.chunk_size):
            d_XW = kept_YW
            d_XC = kept_YC
            if d_XW is None:
                inputs = (h_YE, weight_WE, bias_W, more_YC, target_Y, rows)
                _, d_XW, d_XC = score_chunk(*inputs, n_token, keeps=True)
            d_nats_X1 = d_nats_Y1[rows]
            d_h.append((multiply(d_XW, weight_WE.t()) * d_nats_X1).to(given[0].dtype))
            if d_XC is not None:
                d_more.append((d_XC * d_nats_X1).to(more_YC.dtype))
            if ctx.needs_input_grad[1]:
                scaled_XE = (h_YE[rows] * d_nats_X1).to(h_YE.dtype)
                d_weight_WE = add_part(d_weight_WE, weight_gradient(d_XW, scaled_XE), weight_VE)
            if ctx.needs_input_grad[2]:
                sum_1W = d_nats_X1.to(d_XW.dtype).t() @ d_XW
                d_bias_W = add_part(d_bias_W, sum_1W[0], bias_V)
        d_weight_VE = None if d_weight_WE is None else d_weight_WE[:n_token, :width]
        d_bias_V = None if d_bias_W is None else d_bias_W[:n_token]
        d_h_YE = join_parts(d_h)[:, :width]
        return d_h_YE, d_weight_VE, d_bias_V, join_parts(d_more), None, None, None


def score_chunk(
    h_YE: Tensor,
    weight_WE: Tensor,
    bias_W: Tensor,
    more_YC: Tensor | None,
    target_Y: Tensor,
    rows: slice,
    n_token: int,
    keeps: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return nats_X of some rows; if `keeps`, also their gradients by the logits, or None."""
    logits_XW = multiply(h_YE[rows], weight_WE, bias_W)
    more_XC = None if more_YC is None else more_YC[rows].clone()
    target_X = target_Y[rows]
    nats = []
    for part in split_rows(len(target_X), count_rows(logits_XW)):
        more = None if more_XC is None else more_XC[part]
        nats.append(score_logits(logits_XW[part, :n_token], more, target_X[part], keeps))
    return join_parts(nats), *((logits_XW, more_XC) if keeps else (None, None))


def score_logits(
    logits_XV: Tensor, more_XC: Tensor | None, target_X: Tensor, keeps: bool
) -> Tensor:
    """Return nats_X; if `keeps`, overwrite both by the gradients of nats."""
    both = logits_XV if more_XC is None else torch.cat([logits_XV, more_XC], dim=-1)
    nats_X, p_XV = score_on_cpu(both, target_X) if both.is_cpu else score_elsewhere(both, target_X)
    if keeps:
        # The softmax, less 1 at the target; exact where it is almost 1.
        p_XV.scatter_(1, target_X[:, None].clamp(min=0), nats_X.neg().expm1()[:, None])
        logits_XV.copy_(p_XV[:, : logits_XV.size(1)])
        if more_XC is not None:
            more_XC.copy_(p_XV[:, logits_XV.size(1) :])
    return nats_X


def score_on_cpu(logits_XV: Tensor, target_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return nats_X and the softmax; an exponential takes longer here than reading twice."""
    wide_XV = at_least_float32(logits_XV)
    target_score_X1 = wide_XV.gather(1, target_X[:, None].clamp(min=0))
    below_top_X = wide_XV.amax(dim=-1) - target_score_X1[:, 0]
    p_XV = wide_XV.softmax(dim=-1)
    # -log p without underflow: the most likely token's p is at least 1 / V.
    nats_X = below_top_X - p_XV.amax(dim=-1).log()
    return nats_X.masked_fill_(target_X < 0, 0), p_XV


def score_elsewhere(logits_XV: Tensor, target_X: Tensor) -> tuple[Tensor, Tensor]:
    """Return nats_X and the softmax, by few operations, which convert while they read."""
    dtype = torch.promote_types(logits_XV.dtype, torch.float32)
    logp_XV = logits_XV.log_softmax(dim=-1, dtype=dtype)
    nats_X = F.nll_loss(logp_XV, target_X, reduction="none")
    return nats_X, logp_XV.exp_()


def join_parts(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the rows of all parts; None of no parts."""
    return torch.cat(parts) if len(parts) > 1 else next(iter(parts), None)


def add_part(total: Tensor | None, part: Tensor, like: Tensor) -> Tensor:
    """Return a sum in the precision of a weight, of which the parts have a lower one."""
    return part.to(like.dtype) if total is None else total.add_(part)


def differentiate_nats(
    inputs: Sequence[Tensor], target_Y: Tensor, d_nats_Y: Tensor, dtype: torch.dtype
) -> list[Tensor | None]:
    """Return gradients of the inputs that have gradients themselves, for create_graph."""
    # Views: h may have come from the table.
    inputs = [None if each is None else each.view_as(each) for each in inputs]
    nats_Y = score_plainly(*inputs, target_Y, dtype)
    learned = [each for each in inputs if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(nats_Y, learned, d_nats_Y, create_graph=True))
    is_learned = [each is not None and each.requires_grad for each in inputs]
    return [next(found) if learns else None for learns in is_learned]


def score_plainly(
    h_YE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_YC: Tensor | None,
    target_Y: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return nats_Y by torch's own operations; products are in a precision."""
    logits_YV = F.linear(*(each.to(dtype) for each in (h_YE, weight_VE, bias_V)))
    both_YV = logits_YV if more_YC is None else torch.cat([logits_YV, more_YC], dim=-1)
    return F.cross_entropy(at_least_float32(both_YV), target_Y, reduction="none")


def score_compiled(
    h_YE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_YC: Tensor | None,
    target_Y: Tensor,
    size: int,
) -> Tensor:
    """Return nats_Y where torch.compile joins operations itself, by chunks of `size` tokens."""
    nats = []
    dtype = compute_dtype(weight_VE)
    for start in range(0, max(len(target_Y), 1), size):
        rows = slice(start, start + size)
        more_XC = None if more_YC is None else more_YC[rows]
        inputs = h_YE[rows], weight_VE, bias_V, more_XC, target_Y[rows], dtype
        if size >= len(target_Y):
            return score_plainly(*inputs)
        options = {"use_reentrant": False, "preserve_rng_state": False}
        nats.append(checkpoint(score_plainly, *inputs, **options))
    return torch.cat(nats)


def nats_of_logits(logits_YV: Tensor, target_Y: Tensor) -> Tensor:
    """Return nats_Y; 0, without gradient, of targets of -100, as `cross_entropy` defines."""
    # Elsewhere, and compiled, one kernel converts and sums.
    if logits_YV.is_cpu and logits_YV.itemsize <= 4 and not torch.compiler.is_compiling():
        return NatsByRows.apply(logits_YV, target_Y)
    return F.cross_entropy(at_least_float32(logits_YV), target_Y, reduction="none")


class NatsByRows(torch.autograd.Function):
    """Nats of logits in float32 or half precision: some rows at a time stay in a CPU's caches."""

    @staticmethod
    def forward(ctx: Any, logits_YV: Tensor, target_Y: Tensor) -> Tensor:
        ctx.save_for_backward(logits_YV, target_Y)
        parts = split_rows(len(logits_YV), count_rows(logits_YV))
        return torch.cat([score_on_cpu(logits_YV[rows], target_Y[rows])[0] for rows in parts])

    @staticmethod
    def backward(ctx: Any, d_nats_Y: Tensor) -> tuple[Tensor, None]:
        logits_YV, target_Y = ctx.saved_tensors
        if torch.is_grad_enabled():
            # With create_graph, by operations that have a gradient.
            nats_Y = F.cross_entropy(logits_YV.float(), target_Y, reduction="none")
            [d_YV] = torch.autograd.grad(nats_Y, logits_YV, d_nats_Y, create_graph=True)
            return d_YV, None
        d_YV = torch.empty_like(logits_YV)
        index_Y1 = target_Y[:, None].clamp(min=0)
        scale_Y1 = d_nats_Y.masked_fill(target_Y < 0, 0)[:, None]
        for rows in split_rows(len(logits_YV), count_rows(logits_YV)):
            # The softmax, less 1 at the target.
            d_XV = logits_YV[rows].softmax(dim=-1, dtype=torch.float32).mul_(scale_Y1[rows])
            d_YV[rows] = d_XV.scatter_add_(1, index_Y1[rows], -scale_Y1[rows])
        return d_YV, None


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half precision to float32: sums over the vocabulary need it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def count_rows(logits_YV: Tensor) -> int:
    """Return how many rows are converted to float32 at once."""
    n_logit = CACHED_LOGITS if logits_YV.is_cpu else WIDE_LOGITS
    return max(n_logit // logits_YV.size(-1), 1)


def split_rows(n_row: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` rows; an empty one of none."""
    for start in range(0, max(n_row, 1), size):
        yield slice(start, min(start + size, n_row))
