"""A training segment as two CUDA graphs: one of its forward pass, one of its backward pass.

A GPU then starts two graphs for a segment in place of a thousand operations, each of which costs
the host some microseconds. Validations in a fit read each segment by one graph. None of this has
run on a GPU yet.

The softmax follows outside of the graphs (`model/captured.py`), so that the loss may be divided,
weighted and scaled as usual.

B rows   L segment   D width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import require
from ..model.captured import CapturedNetwork, CapturedReading, require_capturable
from ..model.graph import CudaGraph
from ..model.memory import Memory
from ..model.precision import copy_together

KEY = "model.cuda_graph"


def capture_training(module: Any) -> CapturedNetwork:
    """Return the network of a LanguageModel, to be captured in its first step.

    Raises:
        ValueError: there is no GPU; or a setting, or the network, conflicts with graphs.
    """
    strategy = module.trainer.strategy
    data = module.corpus.config if module.corpus else None
    name = type(strategy).__name__
    conflicts = {
        # Both set the state of random numbers within a step, which a capture forbids.
        "model.recompute true": module.hparams["recompute"],
        # A gradient into the memory is not captured.
        "model.gradient_segments above 1": module.hparams["gradient_segments"] > 1,
        "data.micro_batches above 1": data and data.micro_batches > 1,
        # Each would have another length.
        "data.segments varlen": data and data.segments == "varlen",
        f"several devices or {name}": not isinstance(strategy, SingleDeviceStrategy),
    }
    require_capturable(module.net, strategy.root_device, KEY, conflicts)
    return CapturedNetwork(module.net, CapturedSegment)


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
