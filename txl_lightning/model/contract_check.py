"""Check that a network of your own fulfils what its losses cannot show (docs/own_network.md).

B rows   L tokens in the segment   V vocabulary
"""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..errors import require
from .config import EvalLengths, find_network
from .contract import AnyMemory, Network, keep_gradient, stop_gradient
from .contract_calls import (
    FAULTS,
    BrokenContract,
    CheckedNetwork,
    check_empty_memory,
    naming,
    require_equal,
    require_memory,
    require_true,
    turn_off_dropout,
)
from .contract_logits import (
    LONG,
    check_hidden,
    check_long_segment,
    check_loss,
    check_order,
    check_repeats,
)
from .contract_training import (
    check_precision,
    check_stopped_tensors,
    check_tokens_read_again,
    compare_modes,
    is_random,
)

BEFORE = "logits change with tokens before the document (doc_pos_BL)"


def check_network(net: Network, tgt_len: int = 8, device: str | torch.device = "cpu") -> None:
    """Raise ValueError if a network looks ahead, mixes rows, or remembers or scores wrong tokens.

    A copy is checked on a device, in float64 and with random weights. Its memory must hold tgt_len
    tokens. Give more tokens than a chunk or a window of it has.
    """
    require(tgt_len >= 2, "tgt_len", tgt_len, "at least 2")
    net = find_network(net)
    mem_len = net.config.mem_len
    require(mem_len != 0, "mem_len", mem_len, "1 or more: the memory of a network is checked")
    try:
        check_calls(randomize_copy(net).to(device), tgt_len)
    except (*FAULTS, BrokenContract) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"network: {text}; docs/own_network.md has the contract") from error


def check_calls(net: Network, tgt_len: int) -> None:
    unit_len = getattr(net.config, "unit_len", 1)
    # A segment may end within a unit, as a prompt does.
    lengths = {tgt_len} if unit_len == 1 else {tgt_len, unit_len, unit_len + 1}
    checked = CheckedNetwork(net)
    trained = CheckedNetwork(turn_off_dropout(deepcopy(net).train()))
    tokens_BL = draw_tokens(net, max(tgt_len, unit_len))
    is_fixed = not is_random(checked, tokens_BL)
    require_true(is_fixed, "in evaluation, two equal calls differ: the network is random")
    with naming("in training mode"):
        check_repeats(trained, tokens_BL)
    for length in sorted(lengths):
        check_copy(checked, draw_tokens(net, length))
    check_long_segment(checked, draw_tokens(net, LONG))
    check_hidden(checked, tokens_BL)
    check_gradients(checked, tokens_BL)
    check_training_mode(net, tokens_BL)
    with naming("in training mode"):
        check_training(trained, checked, tokens_BL)
    check_precision(net, tokens_BL)


@torch.no_grad()
def randomize_copy(net: Network) -> Network:
    random = torch.Generator().manual_seed(0)
    # Gradients are checked of weights that are frozen, too.
    net = deepcopy(net).cpu().double().eval().requires_grad_(True)
    for parameter in net.parameters():
        # Some initial weights are zero, and hide what they multiply.
        parameter += 0.3 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
    return net


def draw_tokens(net: Network, tgt_len: int) -> Tensor:
    """Return two segments of three rows."""
    random = torch.Generator().manual_seed(1)
    tokens_BL = torch.randint(net.config.n_token, (3, 2 * tgt_len), generator=random)
    return tokens_BL.to(next(net.parameters()).device)


@torch.no_grad()
def check_copy(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    half = tokens_BL.size(1) // 2
    check_empty_memory(net)
    check_repeats(net, tokens_BL)
    whole_BLV, _ = net(tokens_BL)
    check_order(net, tokens_BL, whole_BLV)
    require_equal(net(tokens_BL[1:2])[0], whole_BLV[1:2], "logits change with other rows")
    memory = check_segments(net, tokens_BL, whole_BLV)
    check_memory(net, tokens_BL[:, half:], memory, whole_BLV[:, half:])
    check_lengths(net, tokens_BL, memory)
    check_reread(net, tokens_BL, whole_BLV)
    check_documents(net, tokens_BL, whole_BLV)
    check_targets(net, tokens_BL, whole_BLV)
    check_loss(net, tokens_BL[:, half:], memory)
    check_no_memory(net, tokens_BL)


def check_segments(net: CheckedNetwork, tokens_BL: Tensor, whole_BLV: Tensor) -> AnyMemory:
    """Compare two segments with one of both, and, of a network with units, two units."""
    half = tokens_BL.size(1) // 2
    first_BLV, memory = net(tokens_BL[:, :half])
    second_BLV, _ = net(tokens_BL[:, half:], memory)
    problem = f"two segments of {half} tokens have other logits than one with both"
    require_equal(torch.cat([first_BLV, second_BLV], 1), whole_BLV, problem)
    return memory


def check_memory(
    net: CheckedNetwork, tokens_BL: Tensor, memory: AnyMemory, expected_BLV: Tensor
) -> None:
    """Read a segment after a memory that the methods of a memory have copied."""
    rows_B = torch.tensor([2, 0], device=tokens_BL.device)
    use = EvalLengths().resolve(net.config)
    copies = [
        ("rows", rows_B, lambda: memory.rows(rows_B)),
        ("restore", slice(None), lambda: net.empty_memory(1).restore(memory.tensors())),
        ("restore", slice(None), lambda: net.empty_memory(3).restore(memory.tensors())),
        ("to", slice(None), lambda: memory.to(tokens_BL.device)),
        ("resize", slice(None), lambda: memory.resize(use)),
    ]
    for name, rows, copy in copies:
        problem = f"memory.{name} gives {'other rows' if name == 'rows' else 'another memory'}"
        with naming(f"memory.{name}"):
            copied = copy()
            require_memory(copied, "it")
        with naming(f"after memory.{name}"):
            read_BLV, _ = net(tokens_BL[rows], copied)
        require_equal(read_BLV, expected_BLV[rows], problem)
        has_rows = copied.batch_size == len(read_BLV)
        require_true(has_rows, f"memory.{name} gives another batch_size")


def check_lengths(net: CheckedNetwork, tokens_BL: Tensor, memory: AnyMemory) -> None:
    """Compare a memory of other lengths with that of a network which read with them."""
    first_BL = tokens_BL[:, : tokens_BL.size(1) // 2]
    first_BLV, _ = net(first_BL)
    config = net.config
    none = EvalLengths(mem_len=0)
    with naming("memory.resize"):
        resized = memory.resize(none.resolve(config))
    read = read_two(net, tokens_BL, resized)
    expected = [net(each, net.empty_memory(3, none))[0] for each in tokens_BL.chunk(2, 1)[::-1]]
    require_equal(read[0], expected[0], "memory.resize leaves something where mem_len is 0")
    problem = "memory.resize to mem_len 0 keeps the old length: the next segment fills memory"
    require_equal(read[1], expected[1], problem)
    lengths = {"longer": config.mem_len + 1, "shorter": max(first_BL.size(1) // 2, 1)}
    for name, mem_len in lengths.items():
        other = EvalLengths(mem_len=mem_len)
        try:
            with naming(f"memory.resize to a {name} mem_len"):
                resized = memory.resize(other.resolve(config))
            empty = net.empty_memory(len(first_BL), other)
        except ValueError:
            # The network may refuse a length that it cannot have.
            continue
        other_BLV, kept = net(first_BL, empty)
        # With a window of mem_len, what was read depends on it, too.
        if torch.allclose(other_BLV, first_BLV):
            problem = f"memory.resize to a {name} mem_len gives another memory"
            both = [torch.cat(read_two(net, tokens_BL, each), 1) for each in (resized, kept)]
            require_equal(*both, problem)


def read_two(net: CheckedNetwork, tokens_BL: Tensor, memory: AnyMemory) -> list[Tensor]:
    """Return the logits of the second segment after a memory, and those of the first after it."""
    logits = []
    for text_BL in reversed(tokens_BL.chunk(2, dim=1)):
        with naming("after memory.resize"):
            logits_BLV, memory = net(text_BL, memory)
        logits.append(logits_BLV)
    return logits


def check_reread(net: CheckedNetwork, tokens_BL: Tensor, whole_BLV: Tensor) -> None:
    half = tokens_BL.size(1) // 2
    for n_reread in (half // 2, half):
        _, memory = net(tokens_BL[:, :half])
        end = half + n_reread
        _, memory = net(tokens_BL[:, half:end], memory, None, n_reread)
        second_BLV, _ = net(tokens_BL[:, half:], memory)
        require_equal(second_BLV, whole_BLV[:, half:], "memory has tokens of n_reread")


def check_no_memory(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Check that nothing is carried where mem_len is 0, in evaluation or in training."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    doc_pos_BL = torch.arange(tokens_BL.size(1), device=tokens_BL.device).expand_as(tokens_BL)
    memories = {"evaluation": (net, net.empty_memory(3, EvalLengths(mem_len=0)))}
    forgetful = replace(net.config, mem_len=0).build()
    # A network that was changed after it was built is none that its config builds.
    if type(forgetful) is type(net.net):
        forgetful = forgetful.to(next(net.net.parameters())).train()
        forgetful.load_state_dict(net.net.state_dict())
        forgetful = CheckedNetwork(forgetful)
        memories["training"] = forgetful, forgetful.empty_memory(3)
    for name, (reader, memory) in memories.items():
        problem = f"in {name}, memory has tokens where mem_len is 0"
        # Training says how old a document is.
        for doc_pos in ((None, None), doc_pos_BL.chunk(2, dim=1)):
            _, after = reader(first_BL, memory, doc_pos[0])
            alone_BLV, _ = reader(second_BL, memory, doc_pos[1])
            require_equal(reader(second_BL, after, doc_pos[1])[0], alone_BLV, problem)


def check_training(trained: CheckedNetwork, net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Check calls in training mode, without dropout."""
    if is_random(trained, tokens_BL):
        check_random_calls(trained, tokens_BL)
    else:
        compare_modes(trained, net, tokens_BL)
    check_gradients(trained, tokens_BL)


@torch.no_grad()
def check_random_calls(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Check what can be compared if calls of the same sizes have the same random numbers."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    check_order(net, tokens_BL, net(tokens_BL)[0])
    check_tokens_read_again(net, tokens_BL)
    _, *logits = read_documents(net, tokens_BL)
    require_equal(*logits, BEFORE)
    _, memory = net(first_BL)
    check_loss(net, second_BL, memory)


def check_gradients(net: CheckedNetwork, tokens_BL: Tensor) -> None:
    """Check that a gradient reaches the segment before only, and always, where training lets it."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    nats_BL, memory = net.loss(first_BL, first_BL, keep_gradient(net.empty_memory(3)))
    nats_BL.sum().backward()
    has_gradient = any(each.requires_grad for each in memory.tensors().values())
    is_right = has_gradient or not hasattr(memory, "keep_gradient")
    require_true(is_right, "memory has no gradient after keep_gradient")
    try:
        stopped = find_gradients(net, net.loss(second_BL, second_BL, stop_gradient(memory))[0])
    except RuntimeError as error:
        # The backward pass of the first segment has freed what another one needs.
        problem = "a gradient reaches the segment before, though memory has none"
        raise BrokenContract(problem) from error
    if has_gradient:
        check_kept_gradient(net, tokens_BL, stopped)


def check_kept_gradient(net: CheckedNetwork, tokens_BL: Tensor, stopped: Tensor) -> None:
    """Compare the gradient of a second segment with that of one segment of both."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    _, memory = net.loss(first_BL, first_BL, keep_gradient(net.empty_memory(3)))
    nats_BL, after = net.loss(second_BL, second_BL, memory)
    kept = find_gradients(net, nats_BL)
    is_right = not torch.allclose(kept, stopped)
    require_true(is_right, "memory passes no gradient to the segment before")
    has_gradient = any(each.requires_grad for each in after.tensors().values())
    require_true(has_gradient, "memory has no gradient after the second segment")
    check_stopped_tensors(net, second_BL, memory)
    # A tensor without gradient says that it stops there.
    states = [each for each in memory.tensors().values() if each.is_floating_point()]
    if all(each.requires_grad for each in states):
        whole_BL, _ = net.loss(tokens_BL, second_BL)
        # In training, some networks are random: longer segments have other numbers.
        if not torch.allclose(whole_BL, nats_BL, rtol=1e-4, atol=1e-4):
            return
        whole = find_gradients(net, whole_BL)
        is_right = bool((kept - whole).norm() <= 1e-3 * whole.norm())
        require_true(is_right, "two segments have another gradient than one with both")


def find_gradients(net: CheckedNetwork, nats_BL: Tensor) -> Tensor:
    """Return the gradients of all weights in one tensor."""
    weights = [*net.net.parameters()]
    grads = torch.autograd.grad(nats_BL.sum(), weights, materialize_grads=True)
    return torch.cat([grad.flatten() for grad in grads])


@torch.no_grad()
def check_training_mode(net: Network, tokens_BL: Tensor) -> None:
    """Check that memory with an effect has one in training, too, where some networks drop it."""
    first_BL, second_BL = tokens_BL.chunk(2, dim=1)
    has_effect = []
    for reader in (net, deepcopy(net).train()):
        logits = []
        for before_BL in (first_BL, (first_BL + 1) % net.config.n_token):
            _, memory = reader(before_BL)
            # The same units are dropped both times.
            with torch.random.fork_rng():
                torch.manual_seed(0)
                logits.append(reader(second_BL, memory)[0])
        has_effect.append(not torch.allclose(*logits))
    is_right = has_effect[1] or not has_effect[0]
    require_true(is_right, "in training mode, memory has no effect")


def check_targets(net: CheckedNetwork, tokens_BL: Tensor, whole_BLV: Tensor) -> None:
    targets_BL = tokens_BL[:, 1:].clone()
    for problem in ("loss is not that of the logits", "loss scores targets of -100"):
        nats_BL, _ = net.loss(tokens_BL[:, :-1], targets_BL)
        expected_BL = cross_entropy(whole_BLV[:, :-1].mT, targets_BL, reduction="none")
        require_equal(nats_BL, expected_BL, problem)
        last_BL, _ = net.loss(tokens_BL[:, :-1], targets_BL[:, -2:])
        require_equal(last_BL, expected_BL[:, -2:], f"{problem}, of targets of the last tokens")
        targets_BL[1:, ::2] = -100


def check_documents(net: CheckedNetwork, tokens_BL: Tensor, whole_BLV: Tensor) -> None:
    tgt_len = tokens_BL.size(1) // 2
    second_BLV, *logits = read_documents(net, tokens_BL)
    require_equal(second_BLV[1:], whole_BLV[1:, tgt_len:], "doc_pos_BL ends a document too early")
    require_equal(*logits, BEFORE)


def read_documents(net: CheckedNetwork, tokens_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Begin a document within the second segment of the first row; in other rows it goes on.

    Return the logits of the second segment, and those of that document after two texts.
    """
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
    return second_BLV, *logits
