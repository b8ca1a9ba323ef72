"""Checks of logits and nats by `check_network`: the tokens that they may depend on.

B rows   L tokens in the segment   V vocabulary
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .contract import AnyMemory, has_states
from .contract_calls import BrokenContract, CheckedNetwork, naming, require_equal

LONG = 70
"""Tokens of a segment that is longer than usual chunks and windows of a small network."""


@torch.no_grad()
def check_repeats(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Check that a call has no effect on other calls, apart from the memory that it returns."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    _, memory = net(first_BL)
    expected_BLV, _ = net(second_BL, memory)
    again_BLV, _ = net(second_BL, memory)
    problem = "two equal calls differ: the network is random, or keeps something beside its memory"
    require_equal(again_BLV, expected_BLV, problem)


def check_order(net: CheckedNetwork, tokens_BL: Tensor, whole_BLV: Tensor) -> None:
    n_token = net.config.n_token
    for end in range(1, tokens_BL.size(1)):
        later_BL = (tokens_BL[:, end:] + 1) % n_token
        changed_BLV, _ = net(torch.cat([tokens_BL[:, :end], later_BL], 1))
        require_equal(changed_BLV[:, :end], whole_BLV[:, :end], "logits change with later tokens")
    other_BL = (tokens_BL + 1) % n_token
    other_BL[1] = tokens_BL[1]
    require_equal(net(other_BL)[0][1], whole_BLV[1], "logits change with other rows")


@torch.no_grad()
def check_long_segment(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Change the later tokens of a long segment: in each row but the first, from another one."""
    ends = range(4, LONG, 6)
    rows_BL = tokens_BL[:1, :LONG].repeat(1 + len(ends), 1)
    for row, end in enumerate(ends, start=1):
        rows_BL[row, end:] = (rows_BL[row, end:] + 1) % net.config.n_token
    try:
        first_LV, *changed = net(rows_BL)[0]
    except BrokenContract:
        # A network may refuse so many tokens, as a table of positions does.
        return
    for end, changed_LV in zip(ends, changed, strict=True):
        problem = f"in a segment of {LONG} tokens, logits change with later tokens"
        require_equal(changed_LV[:end], first_LV[:end], problem)


def check_loss(net: CheckedNetwork, tokens_BL: Tensor, memory: AnyMemory) -> None:
    """Compare `loss`, which training calls, with the call of the network for all inputs."""
    half = tokens_BL.size(1)
    doc_pos_BL = torch.arange(half, 2 * half, device=tokens_BL.device).repeat(3, 1)
    doc_pos_BL[0, half // 2 :] -= doc_pos_BL[0, half // 2].clone()
    targets_BL = tokens_BL.roll(-1, dims=1)
    for inputs in ((memory,), (memory, doc_pos_BL), (memory, doc_pos_BL, half // 2)):
        logits_BLV, expected = net(tokens_BL, *inputs)
        nats_BL, after = net.loss(tokens_BL, targets_BL, *inputs)
        expected_BL = cross_entropy(logits_BLV.mT, targets_BL, reduction="none")
        require_equal(nats_BL, expected_BL, "loss after a memory is not that of the logits")
        for name, tensor in expected.tensors().items():
            problem = "loss returns another memory than the call of the network"
            require_equal(after.tensors()[name], tensor, problem)


@torch.no_grad()
def check_hidden(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Compare what a continuous cache reads with a call of the network."""
    if not has_states(net.net):
        return
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    _, memory = net(first_BL)
    expected_BLV, expected = net(second_BL, memory)
    h_BLD, after = net.hidden(second_BL, memory)
    with naming("head, of what hidden returns"):
        logits_BLV = net.net.head(h_BLD)
    problem = "head(h_BLD), of what hidden returns, gives other logits than forward"
    require_equal(logits_BLV, expected_BLV, problem)
    problem = "hidden returns another memory than forward"
    require_equal(net(first_BL, after)[0], net(first_BL, expected)[0], problem)
