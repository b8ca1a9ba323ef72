"""Adaptive embedding and softmax, compared with slow references, and properties of a softmax."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from txl_lightning import TransformerXLConfig
from txl_lightning.data.stream import IGNORED
from txl_lightning.model import nats
from txl_lightning.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl_lightning.model.nats import nats_of_logits

CUTOFFS = (4, 7, 15)
KINDS = [
    {},
    {"d_embed": 6},
    {"d_embed": 6, "tie_projs": (False, True, True, True)},
    {"div_val": 2},
    {"div_val": 2, "tie_projs": (False, True, True, True), "tie_weight": False},
    {"div_val": 2, "d_embed": 12},
]


def config(**changes):
    sizes = {"n_token": 23, "n_layer": 1, "n_head": 2, "d_model": 8, "cutoffs": CUTOFFS}
    return TransformerXLConfig(**sizes | changes)


def parts(**changes):
    """Return embedding and softmax in float64, with weights that are not small."""
    settings = config(**changes)
    embedding = AdaptiveEmbedding(settings)
    softmax = AdaptiveSoftmax(settings, embedding)
    for parameter in {*embedding.parameters(), *softmax.parameters()}:
        torch.nn.init.normal_(parameter)
    return embedding.double(), softmax.double()


def locate(settings, token):
    """Return a token's cluster, the cluster's first id, the token's table, and its row there."""
    number = sum(token >= cutoff for cutoff in CUTOFFS)
    start = (0, *CUTOFFS)[number]
    table, row = (number, token - start) if settings.n_table > 1 else (0, token)
    return number, start, table, row


def slow_log_probability(softmax, settings, h_D, token):
    """Return log p of one token: log p of its cluster plus log p of it within the cluster."""

    def scores(i):
        start, stop = (0, *CUTOFFS, 23)[i : i + 2]
        _, _, table, first = locate(settings, start)
        rows = slice(first, first + stop - start)
        out = softmax.outs[table]
        down = getattr(softmax.downs[i], "weight", torch.eye(8, dtype=torch.float64))
        return out.weight[rows] @ (down.t() @ h_D) + out.bias[rows], down.t() @ h_D

    number, start, _, _ = locate(settings, token)
    frequent, h_E = scores(0)
    rest = softmax.cluster.weight @ h_E + softmax.cluster.bias
    first = torch.cat([frequent, rest]).log_softmax(0)
    if number == 0:
        return first[token]
    return first[len(frequent) + number - 1] + scores(number)[0].log_softmax(0)[token - start]


@pytest.mark.parametrize(
    ("kind", "token"),
    [({}, -1), ({}, 23), ({"div_val": 2}, -1), ({"cutoffs": (), "d_embed": 3}, 23)],
)
def test_an_id_beyond_the_vocabulary_is_an_error(make_net, kind, token):
    net = make_net(n_token=23, **{"cutoffs": CUTOFFS} | kind)
    with pytest.raises(IndexError):
        net(torch.tensor([[0, token]]))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_the_definition_and_sum_to_one(kind):
    _, softmax = parts(**kind)
    h_1LD = torch.randn(1, 3, 8, dtype=torch.float64)
    logp = softmax(h_1LD)
    assert logp.shape == (1, 3, 23)
    torch.testing.assert_close(logp.exp().sum(-1), torch.ones(1, 3, dtype=torch.float64))
    for place in range(3):
        for token in range(23):
            expected = slow_log_probability(softmax, config(**kind), h_1LD[0, place], token)
            torch.testing.assert_close(logp[0, place, token], expected)


@pytest.mark.parametrize(
    ("kind", "chunk"), [(kind, None) for kind in KINDS] + [(KINDS[2], n) for n in (1, 4, 63)]
)
def test_nats_are_those_of_the_targets_in_their_order_with_every_gradient(kind, chunk):
    embedding, softmax = parts(**kind, loss_chunk_size=chunk)
    targets = torch.randint(23, (3, 5))
    h_BLD = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight_BL = torch.rand(3, 5, dtype=torch.float64)
    leaves = [h_BLD, *{*embedding.parameters(), *softmax.parameters()}]
    slow = -softmax(h_BLD).gather(-1, targets[..., None])[..., 0]
    fast = softmax.nats(h_BLD, targets)
    torch.testing.assert_close(fast, slow)
    slow_gradients = torch.autograd.grad((slow * weight_BL).sum(), leaves, allow_unused=True)
    fast_gradients = torch.autograd.grad((fast * weight_BL).sum(), leaves, allow_unused=True)
    for expected, actual in zip(slow_gradients, fast_gradients, strict=True):
        assert (expected is None) == (actual is None)
        if expected is not None:
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", [KINDS[2], KINDS[4]])
def test_ignored_target_has_no_nats_and_no_gradient_and_absent_cluster_a_gradient_of_zero(kind):
    _, softmax = parts(**kind)
    h = torch.randn(2, 2, 8, dtype=torch.float64, requires_grad=True)
    nats = softmax.nats(h, torch.tensor([[20, IGNORED], [IGNORED, 2]]))
    assert (nats[0, 1], nats[1, 0]) == (0, 0)
    nats.sum().backward()
    assert h.grad.abs().sum(-1).gt(0).tolist() == [[True, False], [False, True]]
    assert all(parameter.grad is not None for parameter in softmax.parameters())
    kept = softmax.nats(h, torch.tensor([[20, 1], [1, 2]]))
    torch.testing.assert_close(nats.diagonal(), kept.diagonal())


@pytest.mark.parametrize("kind", [KINDS[2], KINDS[4]])
def test_in_bfloat16_nats_are_summed_in_float32(kind):
    _, softmax = parts(**kind)
    h = torch.randn(2, 40, 8, dtype=torch.float64)
    targets = torch.randint(23, (2, 40))
    expected = softmax.nats(h, targets)
    actual = softmax.bfloat16().nats(h.bfloat16(), targets)
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().max() < 0.03 * expected.abs().max()


@pytest.mark.parametrize("kind", [{"cutoffs": CUTOFFS, "div_val": 2}, {}])
def test_gradients_of_chunks_are_added_in_float32_under_autocast(make_net, kind):
    head = make_net(n_token=23, loss_chunk_size=4, **kind).head.float()
    h_BLD = torch.randn(2, 256, 8)
    targets = torch.randint(23, (2, 256))
    outs = head.outs if kind else [head.out]
    gradients = []
    for is_half in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            nats_BL = head.nats(h_BLD, targets)
        gradients.append(torch.autograd.grad(nats_BL.mean(), [out.weight for out in outs]))
    for actual, expected in zip(*gradients, strict=True):
        assert (actual - expected).norm() < 0.007 * expected.norm()


@pytest.mark.parametrize("tie", [False, True])
def test_projections_and_tables_are_shared_where_tied(tie):
    embedding, softmax = parts(div_val=2, tie_projs=(False, tie, tie, tie), tie_weight=tie)
    for i, (out, down) in enumerate(zip(softmax.outs, softmax.downs, strict=True)):
        assert (out.weight is embedding.tables[i].weight) == tie
        assert (down.weight is embedding.projections[i].weight) == (tie and i > 0)


@pytest.mark.parametrize(
    "kind", [{}, {"d_embed": 6}, *({"loss_chunk_size": size} for size in (1, 4, 63))], ids=str
)
def test_nats_of_the_plain_softmax_are_those_of_the_definition_with_every_gradient(make_net, kind):
    net = make_net(**kind)
    tokens, targets = torch.randint(11, (2, 3, 5))
    targets[0, 0] = IGNORED
    h_BLD, _ = net.hidden(tokens)
    weight = getattr(net.head.down, "weight", torch.eye(8).double())
    logits = h_BLD @ weight @ net.head.out.weight.t() + net.head.out.bias
    torch.testing.assert_close(net(tokens)[0], logits)
    slow = F.cross_entropy(logits.mT, targets, reduction="none")
    fast = net.loss(tokens, targets)[0]
    parameters = list(net.parameters())
    assert fast[0, 0] == 0
    results = [[nats, *torch.autograd.grad(nats.sum(), parameters)] for nats in (slow, fast)]
    torch.testing.assert_close(results[1], results[0])


class LargestResult(TorchDispatchMode):
    """The largest number of elements that one operation allocates."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor) and not func.is_view:
                self.count = max(self.count, part.numel())
        return result


@pytest.mark.parametrize(("chunk", "at_once"), [(None, 30), (4, 4)])
def test_no_more_logits_than_those_of_a_chunk_are_in_memory(make_net, chunk, at_once):
    net = make_net(n_token=5000, loss_chunk_size=chunk)
    tokens = torch.randint(5000, (2, 15))
    with LargestResult() as training:
        net.loss(tokens, tokens)[0].sum().backward()
    # The gradient of the embedding is the largest tensor that remains.
    assert training.count == max(at_once * 5000, 5000 * 8)
    with torch.inference_mode(), LargestResult() as evaluation:
        net.loss(tokens, tokens)
    assert evaluation.count == at_once * 5000


@pytest.mark.parametrize("cached", [1, 2 * 23, 1 << 18])
def test_nats_of_bfloat16_logits_are_those_of_their_float32_copy(monkeypatch, cached):
    """With one row at a time, or two, or all; the gradient has the precision of the logits."""
    monkeypatch.setattr(nats, "CACHED_LOGITS", cached)
    logits_YV = (5 * torch.randn(7, 23)).bfloat16().requires_grad_()
    target_Y = torch.tensor([0, 22, 5, IGNORED, 5, 1, IGNORED])
    d_Y = torch.randn(7)
    nats_Y = nats_of_logits(logits_YV, target_Y)
    (d_YV,) = torch.autograd.grad(nats_Y, logits_YV, d_Y)
    wide_YV = logits_YV.detach().float().requires_grad_()
    expected_Y = F.cross_entropy(wide_YV, target_Y, reduction="none")
    (expected_YV,) = torch.autograd.grad(expected_Y, wide_YV, d_Y)
    torch.testing.assert_close(nats_Y, expected_Y, rtol=0, atol=2e-6)
    torch.testing.assert_close(d_YV.float(), expected_YV, rtol=2**-6, atol=1e-6)
    assert not d_YV[target_Y == IGNORED].any()


def test_a_second_derivative_of_the_nats_is_that_of_cross_entropy():
    logits_YV = torch.randn(3, 5, requires_grad=True)
    target_Y = torch.tensor([0, IGNORED, 2])
    second = []
    for each in (
        nats_of_logits(logits_YV, target_Y),
        F.cross_entropy(logits_YV, target_Y, reduction="none"),
    ):
        [d_YV] = torch.autograd.grad(each.square().sum(), logits_YV, create_graph=True)
        second += torch.autograd.grad(d_YV.square().sum(), logits_YV)
    torch.testing.assert_close(*second)
