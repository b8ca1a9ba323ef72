"""A training segment as two CUDA graphs: one of its forward pass, one of its backward pass.

A GPU then starts two graphs for a segment in place of a thousand operations, each of which costs
the host some microseconds. Validations in a fit read each segment by one graph. None of this has
run on a GPU yet.

Captured is `TransformerXL.hidden`. The softmax follows outside: the shapes of an adaptive one
depend on its targets, and the loss may be divided, weighted and scaled as usual.

B rows   L segment   D width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import require
from ..model import TransformerXL
from ..model.config import require_transformer_xl
from ..model.graph import CudaGraph
from ..model.memory import Memory
from ..model.parts import has_hooks
from ..model.positions import SCHEMES
from ..model.precision import copy_together
from ..model.reading import Reader

KEY = "model.cuda_graph"


def capture_training(module: Any) -> CapturedNetwork:
    """Return the network of a LanguageModel, to be captured in its first step.

    Raises:
        ValueError: there is no GPU; or a setting, or the network, conflicts with graphs.
    """
    net = module.net
    strategy = module.trainer.strategy
    device = strategy.root_device.type
    require(device == CudaGraph.device, KEY, "true", f"false on a device of type {device}")
    require_transformer_xl(net, KEY, "true")
    # A replay calls no Python, so a hook would run once, and a branch on values never again.
    is_plain = net.reads_states and not any(map(has_hooks, net.modules()))
    scheme = net.config.positions
    data = module.corpus.config if module.corpus else None
    name = type(strategy).__name__
    conflicts = {
        "hooks or methods of your own in the network": not is_plain,
        f"model.net.positions {scheme}": scheme not in SCHEMES,
        # Both set the state of random numbers within a step, which a capture forbids.
        "model.recompute true": module.hparams["recompute"],
        # A gradient into the memory is not captured.
        "model.gradient_segments above 1": module.hparams["gradient_segments"] > 1,
        "data.micro_batches above 1": data and data.micro_batches > 1,
        # Each would have another length.
        "data.segments varlen": data and data.segments == "varlen",
        f"several devices or {name}": not isinstance(strategy, SingleDeviceStrategy),
    }
    for what, conflicts_now in conflicts.items():
        require(not conflicts_now, KEY, "true", f"false with {what}")
    return CapturedNetwork(net)


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
        # Not through autograd: a memory with history would replay the backward pass of a segment
        # again in the next one, over values that are no more there.
        return [each.clone() for each in self.forward.outputs[1:]]

    def read(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return h_BLD and the tensors of the next memory; all are copies."""
        states = self.replay(inputs)
        return self.forward.outputs[0].clone(), states


class CapturedSegment(CapturedReading):
    """The graphs of a forward and a backward pass; arguments as in `CapturedReading`."""

    def capture(self) -> None:
        shape = (*self.inputs[0].shape, self.net.config.d_model)
        device = self.inputs[0].device
        self.d_BLD = torch.zeros(shape, dtype=self.net.compute_dtype, device=device)
        self.weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.n_read = 0
        self.h_BLD: Tensor | None = None
        # It reads every gradient on the host.
        looks = torch.is_anomaly_enabled()
        require(not looks, KEY, "true", "false with trainer.detect_anomaly true")
        CudaGraph.warm_up(lambda: (self.compute_forward(), self.compute_backward()))
        self.forward = CudaGraph(self.compute_forward)
        # The backward pass reads what the forward pass has left in its memory.
        self.backward = CudaGraph(self.compute_backward, self.forward.pool)

    def compute(self) -> tuple[Tensor, Memory]:
        self.h_BLD, after = super().compute()
        return self.h_BLD, after

    def compute_backward(self) -> Sequence[Tensor | None]:
        """Return the gradient of each weight; None where `hidden` does not use it."""
        h_BLD = self.h_BLD
        # Only the capture needs it: the graph keeps the memory of what it has saved.
        self.h_BLD = None
        # As in Lightning's backward pass, which is outside of autocast.
        with torch.autocast(self.d_BLD.device.type, enabled=False):
            return torch.autograd.grad(h_BLD, self.weights, self.d_BLD, allow_unused=True)

    def read(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return h_BLD with gradient, and the tensors of the next memory; all are copies."""
        states = self.replay(inputs)
        self.n_read += 1
        return Replay.apply(self, *self.weights), states

    def find_gradients(self, d_BLD: Tensor) -> list[Tensor | None]:
        """Return copies of the gradients, because the next replay overwrites them."""
        self.d_BLD.copy_(d_BLD)
        self.backward.replay()
        there = [each for each in self.backward.outputs if each is not None]
        copies = iter(copy_together(there, [each.dtype for each in there]))
        return [None if each is None else next(copies) for each in self.backward.outputs]


class Replay(torch.autograd.Function):
    """The states h_BLD of a segment that was read, as a function of the weights."""

    @staticmethod
    def forward(ctx: Any, segment: CapturedSegment, *weights: Tensor) -> Tensor:
        ctx.segment = segment
        ctx.n_read = segment.n_read
        return segment.forward.outputs[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_BLD: Tensor) -> tuple[Tensor | None, ...]:
        is_last = ctx.n_read == ctx.segment.n_read
        assert is_last, "a backward pass follows its own forward pass, and only once"
        ctx.n_read = None
        return None, *ctx.segment.find_gradients(d_BLD)


class CapturedNetwork:
    """A network as training calls it: the longest segments until now are read by graphs.

    Shorter ones, such as the last of a pass over the text, are computed as usual, so that only one
    segment's graphs need memory. A copy captures anew.

    Args:
        make_graphs: what is captured of a segment.
    """

    def __init__(
        self, net: TransformerXL, make_graphs: type[CapturedReading] = CapturedSegment
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
    """A network as a validation within a fit calls it: it does not adapt, and keeps states.

    Keys and values would have another shape in each segment until the memory is full.
    """

    def __init__(self, net: TransformerXL) -> None:
        super().__init__(net, keeps_keys=False)
        self.captured = CapturedNetwork(net, CapturedReading)

    def read(self, *inputs: Any) -> tuple[Tensor, Memory]:
        return self.captured.hidden(*inputs)

    def loss(self, *inputs: Any) -> tuple[Tensor, Memory]:
        """Return nats_BL of the targets, and the next memory, as `Reader.loss` does."""
        return self.captured.loss(*inputs)


def find_state(net: nn.Module) -> list[Any]:
    """Return what graphs of a network depend on besides their inputs and the values of weights."""
    weights = [(weight.data_ptr(), weight.requires_grad) for weight in net.parameters()]
    return [weights, [module.training for module in net.modules()]]
