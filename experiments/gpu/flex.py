"""Attention by PyTorch's FlexAttention, with the signature of the package's kernels: a candidate.

(b) + (d) = (q + v).r of all distances are one product before; FlexAttention adds them to scores.
It has no dropout of attention weights. On a CPU it has no gradient, and outside of torch.compile
it keeps all scores.

B rows   L queries   S visible states   H heads   K head width   W = T or more distances
"""

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from txl_lightning.model.kernels.sdpa import multiply_distances
from txl_lightning.model.memory import KeysValues, Mask, split_keys_values
from txl_lightning.model.positions import DistanceTerms


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    assert not dropatt, "FlexAttention has no dropout"
    return attend_blocks(q_BLHK, kv, terms, make_block_mask(mask.mask_BLS))


def make_block_mask(mask_BLS: Tensor) -> BlockMask:
    """Return which blocks of states are seen in part, and which as a whole; for all layers."""
    B, L, S = mask_BLS.shape

    def is_seen(row: Tensor, head: Tensor, query: Tensor, state: Tensor) -> Tensor:
        return mask_BLS[row, query, state]

    return create_block_mask(is_seen, B, None, L, S, device=mask_BLS.device)


def attend_blocks(q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, seen: BlockMask) -> Tensor:
    """Attend to the states that a block mask has."""
    k_BSHK, value_BSHK = split_keys_values(kv)
    (B, L, H, _) = q_BLHK.shape
    S = k_BSHK.size(1)
    terms = terms.complete(S)
    add_distances = None
    if terms.n_distance:
        near_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK
        near_HYK = near_BLHK.flatten(0, 1).transpose(0, 1)
        bd_HYW = multiply_distances(near_HYK, terms.r_THK, terms.b_TH).expand(H, B * L, -1)
        bd_HBLW = bd_HYW.view(H, B, L, -1)

        def add_distances(
            score: Tensor, row: Tensor, head: Tensor, query: Tensor, state: Tensor
        ) -> Tensor:
            # Of states after a query, which are masked, any number.
            return score + bd_HBLW[head, row, query, (L - query + state).clamp(max=S)]

    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK
    parts = (x_BXHK.transpose(1, 2) for x_BXHK in (query_BLHK, k_BSHK, value_BSHK))
    return flex_attention(*parts, score_mod=add_distances, block_mask=seen).transpose(1, 2)
