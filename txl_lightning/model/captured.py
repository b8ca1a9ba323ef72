"""A network whose segments are read by CUDA graphs. None of this has run on a GPU yet.

Captured is `TransformerXL.hidden`. The softmax follows outside: the shapes of an adaptive one
depend on its targets.

B rows   L segment   D width
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import require
from .config import require_transformer_xl
from .contract import Network
from .graph import CudaGraph
from .memory import Memory
from .parts import has_hooks
from .positions import SCHEMES
from .reading import Reader
from .transformer_xl import TransformerXL


def require_capturable(
    net: Network, device: torch.device, key: str, conflicts: Mapping[str, Any]
) -> None:
    """Refuse the setting of a key where graphs could not compute what a network does.

    Args:
        device: the network's device, then.
        conflicts: what is in conflict with graphs, and whether it is there.
    """
    CudaGraph.require_device(device, key)
    require_transformer_xl(net, key, "true")
    # A replay calls no Python, so a hook would run once, and a branch on values never again.
    is_plain = net.reads_states and not any(map(has_hooks, net.modules()))
    scheme = net.config.positions
    of_network = {
        "hooks or methods of your own in the network": not is_plain,
        f"model.net.positions {scheme}": scheme not in SCHEMES,
    }
    for what, conflicts_now in {**of_network, **conflicts}.items():
        require(not conflicts_now, key, "true", f"false with {what}")


class CapturedReading:
    """The graph of a forward pass for segments of one shape, with the tensors that it reads.

    Args:
        net: its weights are read where they are; `find_state` tells when they have moved.
        inputs: tokens_BL, doc_pos_BL and the tensors of the memory.
        memory: any one with the same lengths.
    """

    def __init__(
        self, net: TransformerXL, inputs: Sequence[Tensor], memory: Memory, n_reread: int
    ) -> None:
        self.net = net
        self.memory = memory
        self.n_reread = n_reread
        self.inputs = [each.clone() for each in inputs]
        # Casts of weights that autocast keeps would be those of an earlier step.
        device = inputs[0].device
        is_kept = torch.is_autocast_enabled(device.type)
        assert not (is_kept and torch.is_autocast_cache_enabled()), "autocast with a cache"
        # Warming up must not change the dropout of this segment.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.capture()

    def capture(self) -> None:
        CudaGraph.warm_up(self.compute_forward)
        self.forward = CudaGraph(self.compute_forward)

    def compute_forward(self) -> list[Tensor]:
        """Return h_BLD and the tensors of the next memory, without history."""
        h_BLD, after = self.compute()
        return [h_BLD.detach(), *after.tensors().values()]

    def compute(self) -> tuple[Tensor, Memory]:
        """Return h_BLD and the next memory of the segment in `inputs`."""
        tokens_BL, doc_pos_BL, *states = self.inputs
        before = self.memory.restore(dict(zip(self.memory.tensors(), states, strict=True)))
        return self.net.hidden(tokens_BL, before, doc_pos_BL, self.n_reread)

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of the tensors of the next memory; h_BLD is in the graph's outputs."""
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        self.forward.replay()
        # Not through autograd: in the next segment, a memory with history would replay the backward
        # pass of this one again, over values that are gone.
        return [each.clone() for each in self.forward.outputs[1:]]

    def read(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return h_BLD and the tensors of the next memory; all are copies."""
        states = self.replay(inputs)
        return self.forward.outputs[0].clone(), states


class CapturedNetwork:
    """A network as training calls it: the longest segments until now are read by graphs.

    Shorter ones, such as the last of a pass over the text, are computed as usual, so that only one
    segment's graphs need memory. A copy captures anew.

    Args:
        make_graphs: what is captured of a segment; by default, its forward pass alone.
    """

    def __init__(
        self, net: TransformerXL, make_graphs: type[CapturedReading] = CapturedReading
    ) -> None:
        self.net = net
        self.make_graphs = make_graphs
        self.segment: CapturedReading | None = None
        self.state: Any = None
        self.shape: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"segment": None}

    @property
    def head(self) -> nn.Module:
        return self.net.head

    def loss(self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any) -> tuple[Tensor, Memory]:
        """Return nats_BL and the next memory, as `TransformerXL.loss` does."""
        h_BLD, memory = self.hidden(tokens_BL, *inputs)
        n_context = tokens_BL.size(1) - targets_BL.size(1)
        return self.head.nats(h_BLD[:, n_context:], targets_BL), memory

    def hidden(
        self, tokens_BL: Tensor, memory: Memory, doc_pos_BL: Tensor, n_reread: int = 0
    ) -> tuple[Tensor, Memory]:
        """Return h_BLD and the next memory, as `TransformerXL.hidden` does."""
        inputs = [tokens_BL, doc_pos_BL, *memory.tensors().values()]
        shape = [*((each.shape, each.dtype) for each in inputs), n_reread]
        shape += [memory.clamp_len, memory.same_length]
        state = find_state(self.net)
        if self.state != state:
            self.segment = None
        is_longest = self.segment is None or tokens_BL.numel() > self.segment.inputs[0].numel()
        if is_longest:
            # First, because its memory is needed.
            self.segment = None
            self.segment = self.make_graphs(self.net, inputs, memory, n_reread)
            self.shape = shape
            self.state = state
        if shape != self.shape:
            return self.net.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        h_BLD, states = self.segment.read(inputs)
        return h_BLD, memory.restore(dict(zip(memory.tensors(), states, strict=True)))


class CapturedReader(Reader):
    """A network as evaluation calls it, by graphs: it does not adapt, and keeps states.

    Keys and values would have another shape in each segment until the memory is full.
    """

    def __init__(self, net: TransformerXL) -> None:
        super().__init__(net, keeps_keys=False)
        self.captured = CapturedNetwork(net)

    def read(self, *inputs: Any) -> tuple[Tensor, Memory]:
        return self.captured.hidden(*inputs)

    def loss(self, *inputs: Any) -> tuple[Tensor, Memory]:
        """Return nats_BL of the targets, and the next memory, as `Reader.loss` does."""
        return self.captured.loss(*inputs)


def find_state(net: nn.Module) -> list[Any]:
    """Return what graphs of a network depend on besides their inputs and the values of weights."""
    weights = [(weight.data_ptr(), weight.requires_grad) for weight in net.parameters()]
    return [weights, [module.training for module in net.modules()]]
