"""Check that a network of your own fulfils what its losses cannot show (docs/own_network.md).

B rows   L tokens in the segment   V vocabulary
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from .config import find_network
from .contract import Network


def check_network(net: Network, tgt_len: int = 8) -> None:
    """Raise ValueError if a network looks ahead, mixes rows, or remembers or scores wrong tokens.

    A copy is checked, in float64 and with random weights. Its memory must hold tgt_len tokens.
    """
    net = find_network(net)
    try:
        check_copy(net, tgt_len)
    except RuntimeError as error:
        raise describe_problem(error) from error


@torch.no_grad()
def check_copy(net: Network, tgt_len: int) -> None:
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
    check_targets(net, tokens_BL, whole_BLV)
    n_reread = tgt_len // 2
    _, memory = net(tokens_BL[:, : tgt_len + n_reread], None, None, n_reread)
    second_BLV, _ = net(tokens_BL[:, tgt_len:], memory)
    require_equal(second_BLV, whole_BLV[:, tgt_len:], "memory has tokens of n_reread")
    check_documents(net, tokens_BL, whole_BLV)
    check_gradients(net, tokens_BL)


@torch.enable_grad()
def check_gradients(net: Network, tokens_BL: torch.Tensor) -> None:
    _, memory = net(tokens_BL)
    for name, tensor in memory.tensors().items():
        if tensor.requires_grad:
            raise describe_problem(f"{name} of the memory has a gradient; detach it")


def check_targets(net: Network, tokens_BL: torch.Tensor, whole_BLV: torch.Tensor) -> None:
    targets_BL = tokens_BL[:, 1:].clone()
    for problem in ("loss is not that of the logits", "loss scores targets of -100"):
        nats_BL, _ = net.loss(tokens_BL[:, :-1], targets_BL)
        expected_BL = cross_entropy(whole_BLV[:, :-1].mT, targets_BL, reduction="none")
        require_equal(nats_BL, expected_BL, problem)
        targets_BL[1:, ::2] = -100


def check_documents(net: Network, tokens_BL: torch.Tensor, whole_BLV: torch.Tensor) -> None:
    """Begin a document within the second segment of the first row; in other rows it goes on."""
    tgt_len = tokens_BL.size(1) // 2
    start = tgt_len + tgt_len // 2
    doc_pos_BL = torch.arange(3 * tgt_len).repeat(3, 1)
    doc_pos_BL[0, start:] -= start
    before_BL = tokens_BL.clone()
    before_BL[0, :start] = (before_BL[0, :start] + 1) % net.config.n_token
    logits = []
    for text_BL in (tokens_BL, before_BL):
        _, memory = net(text_BL[:, :tgt_len])
        second_BLV, memory = net(text_BL[:, tgt_len:], memory, doc_pos_BL[:, tgt_len : 2 * tgt_len])
        third_BLV, _ = net(tokens_BL[:, :tgt_len], memory, doc_pos_BL[:, 2 * tgt_len :])
        logits.append(torch.cat([second_BLV[:1, start - tgt_len :], third_BLV[:1]], 1))
    require_equal(second_BLV[1:], whole_BLV[1:, tgt_len:], "doc_pos_BL ends a document too early")
    require_equal(*logits, "logits change with tokens before the document (doc_pos_BL)")


def require_equal(actual: torch.Tensor, expected: torch.Tensor, problem: str) -> None:
    # Some networks compute in float32 in any case.
    if not torch.allclose(actual.double(), expected.double(), rtol=1e-4, atol=1e-4):
        raise describe_problem(problem)


def describe_problem(problem: object) -> ValueError:
    text = " ".join(str(problem).split())
    return ValueError(f"network: {text}; docs/own_network.md has the contract")
