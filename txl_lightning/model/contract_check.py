"""Check that a network of your own fulfils what its losses cannot show (docs/own_network.md).

B rows   L tokens in the segment   V vocabulary
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from .contract import Network


@torch.no_grad()
def check_network(net: Network, tgt_len: int = 8) -> None:
    """Raise ValueError if a network looks ahead, mixes rows, or forgets what its memory holds.

    A copy is checked, in float64 and with random weights. Its memory must hold tgt_len tokens.
    """
    random = torch.Generator().manual_seed(0)
    net = deepcopy(net).cpu().double().eval()
    for parameter in net.parameters():
        # Some initial weights are zero, and hide what they multiply.
        parameter += 0.3 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
    n_token = net.config.n_token
    tokens_BL = torch.randint(n_token, (3, 2 * tgt_len), generator=random)
    whole_BLV, _ = net(tokens_BL)
    for end in range(1, 2 * tgt_len):
        later_BL = (tokens_BL[:, end:] + 1) % n_token
        changed_BLV, _ = net(torch.cat([tokens_BL[:, :end], later_BL], 1))
        require_equal(changed_BLV[:, :end], whole_BLV[:, :end], "logits change with later tokens")
    require_equal(net(tokens_BL[1:2])[0], whole_BLV[1:2], "logits change with other rows")
    first_BLV, memory = net(tokens_BL[:, :tgt_len])
    second_BLV, _ = net(tokens_BL[:, tgt_len:], memory)
    problem = f"two segments of {tgt_len} tokens have other logits than one with both"
    require_equal(torch.cat([first_BLV, second_BLV], 1), whole_BLV, problem)
    second_BLV, _ = net(tokens_BL[[2, 0], tgt_len:], memory.rows(torch.tensor([2, 0])))
    require_equal(second_BLV, whole_BLV[[2, 0], tgt_len:], "memory.rows gives other rows")
    nats_BL, _ = net.loss(tokens_BL[:, :-1], tokens_BL[:, 1:])
    expected_BL = cross_entropy(whole_BLV[:, :-1].mT, tokens_BL[:, 1:], reduction="none")
    require_equal(nats_BL, expected_BL, "loss is not that of the logits")


def require_equal(actual: torch.Tensor, expected: torch.Tensor, problem: str) -> None:
    # Some networks compute in float32 in any case.
    if not torch.allclose(actual.double(), expected.double(), rtol=1e-4, atol=1e-4):
        raise ValueError(f"network: {problem}; docs/own_network.md has the contract")
