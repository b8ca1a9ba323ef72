"""Layers of a training segment as one CUDA graph, which the host launches at once.

The steps of a small network are many short operations. On an H200 a host needed 1.4 times as long
to launch those of enwik8_base as the GPU to compute them (experiments/gpu).

B rows   L tokens in the segment   D width
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import require
from ..model import TransformerXL
from ..model.contract import AnyMemory, require_transformer_xl

MOST_GRAPHS = 4
"""Shapes that are captured: each graph keeps its activations. Segments of others are not."""


def capture_in_place(net: TransformerXL) -> None:
    """Capture what training calls of a network; its weights keep their names and places."""
    require_transformer_xl(net, "model.cuda_graph", "true")
    is_alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
    require(is_alone, "model.cuda_graph", "true", "false with several processes")
    if not isinstance(vars(net).get("hidden"), CapturedHidden):
        net.hidden = CapturedHidden(net)


class CapturedHidden:
    """`net.hidden`, as a CUDA graph for segments that are trained on a GPU.

    The softmax is outside: an adaptive one reads the targets on the host.
    """

    def __init__(self, net: TransformerXL) -> None:
        self.net = net
        self.graphs: dict[Any, Callable[..., tuple[Tensor, ...]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the network has its own weights, and captures its own graphs.
        return {"net": self.net, "graphs": {}}

    def __call__(
        self,
        tokens_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        if memory is None or not (tokens_BL.is_cuda and torch.is_grad_enabled()):
            return type(self.net).hidden(self.net, tokens_BL, memory, doc_pos_BL, n_reread)
        places = [] if doc_pos_BL is None else [doc_pos_BL]
        inputs = [tokens_BL, *memory.tensors().values(), *places]
        shapes = tuple((x.shape, x.dtype) for x in inputs)
        key = shapes, memory.clamp_len, memory.same_length, n_reread, self.net.training
        if key not in self.graphs:
            if len(self.graphs) == MOST_GRAPHS:
                return type(self.net).hidden(self.net, tokens_BL, memory, doc_pos_BL, n_reread)
            self.graphs[key] = capture(TensorsOnly(self.net, memory, n_reread), inputs)
        h_BLD, *states = self.graphs[key](*inputs)
        # The next segment overwrites them, but a memory is a value.
        copies = [state.clone() for state in states]
        return h_BLD, memory.restore(dict(zip(memory.tensors(), copies, strict=True)))


class TensorsOnly(nn.Module):
    """`net.hidden` with tensors alone as inputs and outputs."""

    def __init__(self, net: TransformerXL, memory: AnyMemory, n_reread: int) -> None:
        super().__init__()
        self.net = net
        self.memory = memory
        self.n_reread = n_reread

    def forward(self, tokens_BL: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        names = list(self.memory.tensors())
        memory = self.memory.restore(dict(zip(names, others, strict=False)))
        places = others[len(names) :]
        inputs = tokens_BL, memory, *(places or [None]), self.n_reread
        h_BLD, memory = type(self.net).hidden(self.net, *inputs)
        return h_BLD, *memory.tensors().values()


def capture(function: TensorsOnly, inputs: list[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Capture forward and backward of a function; random numbers continue as if it had not run."""
    random_state = torch.cuda.get_rng_state()
    function.train(function.net.training)
    autocast = torch.autocast(
        "cuda",
        dtype=torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    )
    with autocast:
        copies = tuple(x.clone() for x in inputs)
        # The embedding's softmax is not a part of it.
        graphed = torch.cuda.make_graphed_callables(function, copies, allow_unused_input=True)
    torch.cuda.set_rng_state(random_state)
    return graphed
