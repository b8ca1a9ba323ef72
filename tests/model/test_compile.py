"""torch.compile makes one graph of the network, which stays while memory fills."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from txl_lightning import Memory, TransformerXL
from txl_lightning.model.positions import SCHEMES

ROWS, TGT_LEN, SEGMENTS = 3, 4, 6
TRACED_KERNELS = ["matmul", "reference", "sdpa"]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(net: TransformerXL, loss, memory: Memory, documents: bool) -> Iterator[list[Tensor]]:
    """The nats, every gradient and the memory after each segment."""
    draw = torch.Generator().manual_seed(5)
    for segment in range(SEGMENTS):
        tokens_BL = torch.randint(net.config.n_token, (ROWS, TGT_LEN), generator=draw)
        # The second row's text begins with the third segment.
        doc_pos_BL = torch.arange(TGT_LEN).repeat(ROWS, 1) + TGT_LEN * segment
        doc_pos_BL[1, :] %= 2 * TGT_LEN
        nats_BL, memory = loss(tokens_BL, tokens_BL, memory, doc_pos_BL if documents else None)
        gradients = torch.autograd.grad(nats_BL.mean(), list(net.parameters()))
        yield [nats_BL.detach(), *gradients, memory.h_NBMD]


def check_one_graph(net: TransformerXL, *, backend="eager", half=False, documents=True):
    """Compiled, the network computes the same, in one graph that is made once."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(net.loss, backend=counter, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        empty = net.empty_memory(ROWS)
        expected = list(train(net, net.loss, empty, documents))
        for segment, found in zip(expected, train(net, compiled, empty, documents), strict=True):
            torch.testing.assert_close(found, segment)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "changes",
    [
        *({"kernel": kernel} for kernel in ["auto", *TRACED_KERNELS]),
        *({"positions": name, "clamp_len": 5} for name in sorted(SCHEMES)),
        {"norm": "pre"},
        {"memory_source": "same_layer"},
        {"same_length": "mem_len", "clamp_len": 3},
        {"loss_chunk_size": 5},
        {"d_embed": 4},
    ],
    ids=str,
)
def test_one_graph_serves_a_memory_that_fills(make_net, changes):
    check_one_graph(make_net(n_layer=1, **changes).train())


@pytest.mark.parametrize("kernel", TRACED_KERNELS)
def test_one_graph_serves_autocast(make_net, kernel):
    check_one_graph(make_net(n_layer=1, kernel=kernel).float(), half=True)


@pytest.mark.parametrize("kernel", TRACED_KERNELS)
def test_backward_is_one_graph_too(make_net, kernel):
    check_one_graph(make_net(kernel=kernel, n_layer=1), backend="aot_eager")


def test_one_graph_serves_a_network_without_memory_and_documents(make_net):
    check_one_graph(make_net(mem_len=0, n_layer=1), documents=False)


def test_one_graph_serves_an_adaptive_vocabulary_but_for_its_loss(make_net):
    net = make_net(cutoffs=(3, 6), div_val=2, n_layer=1)
    empty = net.empty_memory(ROWS)
    expected = list(train(net, net.loss, empty, True))
    counter = CompileCounterWithBackend("aot_eager")
    net.hidden = torch.compile(net.hidden, backend=counter, fullgraph=True)
    for segment, found in zip(expected, train(net, net.loss, empty, True), strict=True):
        torch.testing.assert_close(found, segment)
    assert counter.frame_count == 1


def test_one_graph_serves_weights_in_half_precision(make_net):
    check_one_graph(make_net(n_layer=1, kernel="sdpa").bfloat16())
