"""Compare calls in training mode with those in evaluation (see `check_network`).

B rows   L tokens in the segment
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from .config import EvalLengths
from .contract import AnyMemory, Network
from .contract_calls import FAULTS, CheckedNetwork, describe_call, require_equal, require_true

SEEDS = range(1, 6)


@torch.no_grad()
def is_random(net: CheckedNetwork, tokens_BL: Tensor) -> bool:
    """Return True if logits after a segment depend on random numbers."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    logits = []
    for seed in (net.seed, *SEEDS):
        reader = CheckedNetwork(net.net, seed)
        _, memory = reader(first_BL)
        logits.append(reader(second_BL, memory)[0])
    return not all(torch.allclose(each, logits[0]) for each in logits)


@torch.no_grad()
def compare_modes(trained: CheckedNetwork, net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Compare the logits, nats and memory of training mode with those of evaluation.

    Args:
        trained: the network in training mode, without dropout.
    """
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    for text_BL, inputs in list_calls(net, first_BL, second_BL):
        expected_BLV, expected = net(text_BL, *inputs)
        logits_BLV, memory = trained(text_BL, *inputs)
        call = describe_call("forward", text_BL, *inputs)
        require_equal(logits_BLV, expected_BLV, f"{call} gives other logits than in evaluation")
        nats_BL, of_loss = trained.loss(text_BL, second_BL, *inputs)
        expected_BL, _ = net.loss(text_BL, second_BL, *inputs)
        call = describe_call("loss", text_BL, *inputs, targets_BL=second_BL)
        require_equal(nats_BL, expected_BL, f"{call} gives other nats than in evaluation")
        # Memories may differ where nothing reads them.
        next_BLV, _ = net(first_BL, expected)
        for after in (memory, of_loss):
            problem = f"{call} returns another memory than in evaluation"
            require_equal(net(first_BL, after)[0], next_BLV, problem)


def list_calls(
    net: CheckedNetwork, first_BL: Tensor, second_BL: Tensor
) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Return tokens and the other inputs of calls, with each input of `loss` but the targets."""
    tgt_len = first_BL.size(1)
    _, memory = net(first_BL)
    doc_pos_BL = tgt_len + torch.arange(tgt_len, device=first_BL.device).repeat(3, 1)
    doc_pos_BL[0, tgt_len // 2 :] -= doc_pos_BL[0, tgt_len // 2].clone()
    yield first_BL, ()
    yield second_BL, (memory,)
    yield second_BL, (memory, doc_pos_BL)
    yield second_BL, (memory, doc_pos_BL, tgt_len // 2)
    yield second_BL, (net.empty_memory(3, EvalLengths(mem_len=0)),)


@torch.no_grad()
def check_tokens_read_again(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Change tokens that are read again: with the same random numbers, memory stays the same."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    n_reread = first_BL.size(1) // 2
    changed_BL = first_BL.clone()
    changed_BL[:, -n_reread:] = (changed_BL[:, -n_reread:] + 1) % net.config.n_token
    logits = []
    for text_BL in (first_BL, changed_BL):
        _, memory = net(text_BL, None, None, n_reread)
        logits.append(net(second_BL, memory)[0])
    require_equal(*logits, "memory has tokens of n_reread")


def check_stopped_tensors(net: CheckedNetwork, tokens_BL: Tensor, memory: AnyMemory) -> None:
    """Check that nothing reads those tensors of a memory that alone have no gradient."""
    tensors = memory.tensors()
    for name, tensor in tensors.items():
        if tensor.requires_grad or not tensor.is_floating_point():
            continue
        leaf = tensor.clone().requires_grad_()
        nats_BL, _ = net.loss(tokens_BL, tokens_BL, memory.restore({**tensors, name: leaf}))
        [gradient] = torch.autograd.grad(nats_BL.sum(), [leaf], materialize_grads=True)
        problem = f"memory has no gradient in {name}, though in others; detach all of them, or none"
        require_true(not gradient.any(), problem)


@torch.no_grad()
def check_precision(net: Network, tokens_BL: Tensor) -> None:
    """Check that nats are in float32 where autocast lowers the precision of products."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    net = deepcopy(net).float()
    try:
        with torch.autocast(tokens_BL.device.type, torch.bfloat16):
            nats_BL, _ = net.loss(first_BL, second_BL)
    except FAULTS:
        # Not every network, or machine, has products of bfloat16.
        return
    is_right = torch.finfo(nats_BL.dtype).bits >= 32
    problem = f"with bf16-mixed, loss returns nats in {nats_BL.dtype}; expected torch.float32"
    require_true(is_right, problem)
