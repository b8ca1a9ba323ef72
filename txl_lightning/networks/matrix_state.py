"""A matrix as state, which decays and is written by outer products, for a whole chunk at once.

S_t = a_t S_{t-1} + v_t k_t^T,  o_t = S_t q_t, which is linear attention with a decay (Dao and Gu
2024, Section 6; Yang et al. 2024, Section 3). In a chunk of C tokens after the state S_0:

    o_t = G_t0 S_0 q_t + sum_{s <= t} G_ts (k_s . q_t) v_s,   G_ts = a_{s+1} ... a_t.

B rows   C tokens in the chunk   T = C + 1: the state before the chunk, and its tokens
H heads   K width of keys   P width of values   X channels   W taps of a convolution
V = W - 1
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .stateful import State


def empty_state(conv_XW: Tensor, sizes: Sequence[int]) -> State:
    """Return a matrix of these sizes, (B, H, P, K), and W - 1 inputs of a convolution: zeros.

    At least in float32, as the matrix is a sum over many tokens.
    """
    dtype = torch.promote_types(conv_XW.dtype, torch.float32)
    n_channel, n_tap = conv_XW.shape
    # Not by new_zeros of the weight, which may be a shard.
    options = {"dtype": dtype, "device": conv_XW.device}
    return {
        "state_BHPK": torch.zeros(sizes, **options),
        "before_BVX": torch.zeros(sizes[0], n_tap - 1, n_channel, **options),
    }


def draw_step_bias(n_head: int) -> Tensor:
    """Return bias_H, whose softplus is between 0.001 and 0.1, uniform in its logarithm.

    With rates of up to 16, half of the heads keep half of a state for 8 tokens or more, at first.
    So do those of the authors of Mamba-2 and of Gated DeltaNet.
    """
    step_H = torch.empty(n_head).uniform_(-3, -1).mul(math.log(10)).exp()
    return step_H.expm1().log()


def draw_taps(n_channel: int, n_tap: int) -> Tensor:
    """Return conv_XW, as torch begins a convolution of each channel."""
    bound = n_tap**-0.5
    return torch.empty(n_channel, n_tap).uniform_(-bound, bound)


def read_in_chunks(
    read_chunk: Callable[..., tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor],
    state_BHPK: Tensor,
    doc_pos_BL: Tensor,
    chunk_len: int,
) -> tuple[Tensor, Tensor]:
    """Return o_BLHP of a segment, and the state after it, some tokens at once.

    Args:
        read_chunk: returns o_BHCP and the next state from the inputs, decay_BHCT and the state.
        inputs: tensors with dimensions B, L, H and perhaps another; the last is log_decay_BLH.
    """
    parts = []
    # In the precision of the state, also under autocast: errors of a state add up.
    with torch.autocast(state_BHPK.device.type, enabled=False):
        wide = [each.to(state_BHPK.dtype).split(chunk_len, dim=1) for each in inputs]
        for *chunk, log_decay_BCH, doc_pos_BC in zip(
            *wide, doc_pos_BL.split(chunk_len, dim=1), strict=True
        ):
            heads_first = [each.transpose(1, 2) for each in chunk]
            decay_BHCT = find_decays(log_decay_BCH, doc_pos_BC)
            o_BHCP, state_BHPK = read_chunk(*heads_first, decay_BHCT, state_BHPK)
            parts.append(o_BHCP.transpose(1, 2))
    return torch.cat(parts, dim=1), state_BHPK


def find_decays(log_decay_BCH: Tensor, doc_pos_BC: Tensor) -> Tensor:
    """Return G_BHCT: the share of what is written at t that is left at each token.

    It is 0 for what is written later, or before the token's document. t = 0 is the state before the
    chunk.
    """
    time_T = torch.arange(doc_pos_BC.size(1) + 1, device=doc_pos_BC.device)
    distance_CT = time_T[1:, None] - time_T
    # A sum for each t, not differences of one: these would keep digits of decays before t.
    step_BHCT = log_decay_BCH.transpose(1, 2)[..., None].where(distance_CT > 0, 0)
    log_BHCT = step_BHCT.cumsum(dim=2)
    is_read_BCT = (distance_CT >= 0) & (distance_CT <= doc_pos_BC[:, :, None])
    # Masked before exp, as a later token's number could overflow.
    return log_BHCT.masked_fill(~is_read_BCT[:, None], -math.inf).exp()


def read_state(
    q_BHCK: Tensor, k_BHCK: Tensor, v_BHCP: Tensor, state_BHPK: Tensor, decay_BHCT: Tensor
) -> Tensor:
    """Return o_BHCP: what each query reads of the state, and of the chunk until its token."""
    of_state_BHCP = q_BHCK @ state_BHPK.mT * decay_BHCT[..., :1]
    score_BHCC = q_BHCK @ k_BHCK.mT * decay_BHCT[..., 1:]
    return of_state_BHCP + score_BHCC @ v_BHCP


def write_state(k_BHCK: Tensor, v_BHCP: Tensor, state_BHPK: Tensor, decay_BHCT: Tensor) -> Tensor:
    """Return state_BHPK after the chunk."""
    left_BHT = decay_BHCT[:, :, -1]
    kept_BHPK = state_BHPK * left_BHT[:, :, :1, None]
    return kept_BHPK + (v_BHCP * left_BHT[:, :, 1:, None]).mT @ k_BHCK


def convolve_causally(
    x_BLX: Tensor, before_BVX: Tensor, weight_XW: Tensor, doc_pos_BL: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each channel's convolution over a document's last W tokens, and the last W - 1 inputs.

    Args:
        before_BVX: the W - 1 inputs before the segment.
        weight_XW: the last tap is that of the token itself.
    """
    n_tap = weight_XW.size(1)
    tgt_len = x_BLX.size(1)
    joined_BLX = torch.cat([before_BVX, x_BLX.to(before_BVX.dtype)], dim=1)
    y_BLX = 0
    for tap in range(n_tap):
        is_read_BL1 = doc_pos_BL[:, :, None] >= n_tap - 1 - tap
        y_BLX = y_BLX + joined_BLX[:, tap : tap + tgt_len] * weight_XW[:, tap] * is_read_BL1
    return y_BLX.to(x_BLX.dtype), joined_BLX[:, tgt_len:]
