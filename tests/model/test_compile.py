"""torch.compile makes one graph of the network, also while the memory fills."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from txl_lightning import Memory, TransformerXL
from txl_lightning.model.positions import SCHEMES

ROWS = 3
TGT_LEN = 4
SEGMENTS = 6
TRACED_KERNELS = ["reference", "sdpa"]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(net: TransformerXL, memory: Memory, documents: bool) -> Iterator[list[Tensor]]:
    """Yield nats, every gradient and the memory after each segment."""
    draw = torch.Generator().manual_seed(5)
    for segment in range(SEGMENTS):
        tokens_BL = torch.randint(net.config.n_token, (ROWS, TGT_LEN), generator=draw)
        # The second row's text begins with the third segment.
        doc_pos_BL = torch.arange(TGT_LEN).repeat(ROWS, 1) + TGT_LEN * segment
        doc_pos_BL[1, :] %= 2 * TGT_LEN
        arguments = memory, doc_pos_BL if documents else None
        nats_BL, memory = net.loss(tokens_BL, tokens_BL, *arguments)
        gradients = torch.autograd.grad(nats_BL.mean(), list(net.parameters()))
        yield [nats_BL.detach(), *gradients, memory.h_NBMD]


CASES = [
    *(({"kernel": kernel}, {}) for kernel in ["auto", *TRACED_KERNELS]),
    *(({"positions": name, "clamp_len": 5}, {}) for name in sorted(SCHEMES)),
    ({"norm": "pre"}, {}),
    ({"memory_source": "same_layer"}, {}),
    ({"same_length": "mem_len", "clamp_len": 3}, {}),
    ({"loss_chunk_size": 5}, {}),
    ({"d_embed": 4}, {}),
    ({"mem_len": 0}, {"documents": False}),
    # With an adaptive softmax, everything except the loss.
    ({"cutoffs": (3, 6), "div_val": 2}, {"method": "hidden", "backend": "aot_eager"}),
    ({"kernel": "sdpa"}, {"dtype": torch.bfloat16}),
    *(({"kernel": kernel}, {"dtype": torch.float32, "half": True}) for kernel in TRACED_KERNELS),
    # Also the backward pass.
    *(({"kernel": kernel}, {"backend": "aot_eager"}) for kernel in TRACED_KERNELS),
]


@pytest.mark.parametrize(("changes", "how"), CASES, ids=str)
def test_one_graph_serves_a_memory_that_fills(make_net, changes, how):
    net = make_net(n_layer=1, **changes).train()
    method = how.get("method", "loss")
    net = net.to(how.get("dtype", torch.float64))
    documents = how.get("documents", True)
    counter = CompileCounterWithBackend(how.get("backend", "eager"))
    with torch.autocast("cpu", torch.bfloat16, enabled=how.get("half", False)):
        empty = net.empty_memory(ROWS)
        expected = list(train(net, empty, documents))
        setattr(net, method, torch.compile(getattr(net, method), backend=counter, fullgraph=True))
        for segment, actual in zip(expected, train(net, empty, documents), strict=True):
            torch.testing.assert_close(actual, segment)
    assert counter.frame_count == 1
