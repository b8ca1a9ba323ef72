"""Calls of a network that is checked: a problem names the call, and what it must return.

B rows   L tokens in the segment   V vocabulary
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .config import EvalLengths
from .contract import AnyMemory, Network

FAULTS = (RuntimeError, TypeError, LookupError, AttributeError)
"""Errors that a fault in a network or a memory may raise."""
METHODS = ("tensors", "restore", "rows", "to", "resize")
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class BrokenContract(Exception):
    """A network does something that its contract does not allow."""


class CheckedNetwork:
    """A network whose calls are checked. All begin with the same random numbers.

    So two calls with inputs of the same sizes drop the same units.
    """

    def __init__(self, net: Network, seed: int = 0) -> None:
        self.net = net
        self.config = net.config
        self.seed = seed

    def __call__(self, tokens_BL: Tensor, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        name = describe_call("forward", tokens_BL, *inputs)
        logits_BLV, memory = self.call(name, self.net, tokens_BL, *inputs)
        expected = [*tokens_BL.shape, self.config.n_token]
        shape = [*logits_BLV.shape]
        require_true(shape == expected, f"{name} returns logits {shape}; expected {expected}")
        require_true(not logits_BLV.isnan().any(), f"{name} returns logits that are NaN")
        return logits_BLV, memory

    def loss(self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        name = describe_call("loss", tokens_BL, *inputs, targets_BL=targets_BL)
        return self.call(name, self.net.loss, tokens_BL, targets_BL, *inputs)

    def hidden(self, tokens_BL: Tensor, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        name = describe_call("hidden", tokens_BL, *inputs)
        return self.call(name, self.net.hidden, tokens_BL, *inputs)

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AnyMemory:
        with naming("empty_memory"):
            memory = self.net.empty_memory(batch_size, lengths)
        require_memory(memory, "empty_memory")
        return memory

    def call(self, name: str, function: Callable[..., Any], *inputs: Any) -> tuple[Tensor, Any]:
        """Return what a function returns, which must be a tensor and a memory."""
        given = [each for each in inputs if hasattr(each, "tensors")]
        before = [copy_tensors(each) for each in given]
        with naming(name, ValueError), same_random_numbers(self.seed):
            result = function(*inputs)
        kinds = [type(each).__name__ for each in result] if isinstance(result, tuple) else []
        is_pair = len(kinds) == 2 and isinstance(result[0], Tensor)
        found = f"({', '.join(kinds)})" if kinds else type(result).__name__
        require_true(is_pair, f"{name} returns {found}; expected a tensor and the next memory")
        require_memory(result[1], name)
        for memory, tensors in zip(given, before, strict=True):
            for key, after in memory.tensors().items():
                problem = f"{name} changes {key} of the memory that it is given; return a new one"
                require_true(is_same(after, tensors[key]), problem)
        return result


def describe_call(name: str, tokens_BL: Tensor, *inputs: Any, **named: Tensor) -> str:
    """Return a call with the names of the inputs that it is given."""
    words = ["tokens_BL"]
    for key, targets_BL in named.items():
        n_last = targets_BL.size(1)
        is_all = n_last == tokens_BL.size(1)
        words.append(key if is_all else f"{key} of only the last {n_last} tokens")
    others = zip(("memory", "doc_pos_BL", "n_reread"), inputs, strict=False)
    words += [key for key, value in others if isinstance(value, Tensor) or value]
    return f"{name}({', '.join(words)})"


def copy_tensors(memory: AnyMemory) -> dict[str, Tensor]:
    with naming("memory.tensors"):
        return {name: each.detach().clone() for name, each in memory.tensors().items()}


def is_same(after: Tensor, before: Tensor) -> bool:
    if after.shape != before.shape:
        return False
    return bool(((after == before) | after.isnan() & before.isnan()).all())


def require_memory(memory: AnyMemory, name: str) -> None:
    """Raise BrokenContract if a memory lacks a method."""
    for method in METHODS:
        problem = f"{name} returns a memory ({type(memory).__name__}) without a method {method}"
        require_true(callable(getattr(memory, method, None)), problem)
    problem = f"{name} returns a memory ({type(memory).__name__}) without a batch_size"
    require_true(hasattr(memory, "batch_size"), problem)


def check_empty_memory(net: CheckedNetwork) -> None:
    memory = net.empty_memory(3)
    is_right = memory.batch_size == 3
    require_true(is_right, f"empty_memory(3) has batch_size {memory.batch_size}; expected 3")
    # Those of `RecurrentNetwork` and `UnitNetwork` are forgotten by zeros.
    states = memory.tensors() if hasattr(memory, "state_N") else {}
    for name, tensor in states.items():
        problem = f"empty_state has other numbers than zeros ({name}); return zeros, and add a "
        require_true(not tensor.any(), f"{problem}parameter where a state is read")


@contextmanager
def naming(name: str, *others: type[Exception]) -> Iterator[None]:
    """Put a name before the problems and errors of a block."""
    try:
        yield
    except BrokenContract as problem:
        raise BrokenContract(f"{name}: {problem}") from problem
    except (*FAULTS, *others) as error:
        # A KeyError says no more than the key.
        kind = f"{type(error).__name__} " if isinstance(error, LookupError) else ""
        raise BrokenContract(f"{name}: {kind}{error}") from error


@contextmanager
def same_random_numbers(seed: int) -> Iterator[None]:
    state = random.getstate()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(state)


def turn_off_dropout(net: nn.Module) -> nn.Module:
    """Return the network, changed in place: its modules of torch drop nothing."""
    for module in net.modules():
        if isinstance(module, DROPOUTS):
            module.p = 0.0
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            module.dropout = 0.0
    return net


def require_true(is_right: object, problem: str) -> None:
    if not is_right:
        raise BrokenContract(problem)


def require_equal(actual: Tensor, expected: Tensor, problem: str) -> None:
    is_shaped = actual.shape == expected.shape
    require_true(is_shaped, f"{problem}: shape {[*actual.shape]} in place of {[*expected.shape]}")
    # Some networks compute in float32 in any case.
    is_close = torch.allclose(actual.double(), expected.double(), rtol=1e-4, atol=1e-4)
    require_true(is_close, problem)
