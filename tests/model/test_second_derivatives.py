"""Second derivatives are right, or refused by the kernels that have none."""

import pytest
import torch

from txl_lightning import Memory
from txl_lightning.model.kernels import KERNELS

TOKENS = torch.randint(11, (2, 14), generator=torch.Generator().manual_seed(1))
CHANGES = [
    {},
    {"norm": "pre"},
    {"cutoffs": (3, 6), "div_val": 2},
    {"positions": "absolute_sinusoidal"},
]
LOSSES = ("loss", "logits")


def compute_loss(net, kind="loss"):
    """Return a loss of a segment whose memory has states, which do not change with the weights."""
    random = torch.Generator().manual_seed(2)
    memory = net.empty_memory(2)
    h_NBMD = torch.randn(memory.h_NBMD.shape, generator=random, dtype=torch.float64)
    memory = Memory(h_NBMD.to(net.compute_dtype), torch.tensor([6, 4]))
    if kind == "loss":
        return net.loss(TOKENS[:, 6:-1], TOKENS[:, 7:], memory)[0].sum()
    return net(TOKENS[:, 6:-1], memory)[0].tanh().square().sum()


def differentiate(net, kind, create_graph=False):
    return torch.autograd.grad(
        compute_loss(net, kind), [*net.parameters()], create_graph=create_graph
    )


def multiply_by_hessian(net, vector, kind):
    gradient = differentiate(net, kind, create_graph=True)
    product = sum((g * v).sum() for g, v in zip(gradient, vector, strict=True))
    return torch.autograd.grad(product, [*net.parameters()], allow_unused=True)


def estimate_product(net, vector, kind, step=1e-5):
    """Return the product with the Hessian by differences of gradients."""
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            torch._foreach_add_([*net.parameters()], vector, alpha=sign * step)
        sides.append(differentiate(net, kind))
        with torch.no_grad():
            torch._foreach_add_([*net.parameters()], vector, alpha=-sign * step)
    return [(after - before) / (2 * step) for after, before in zip(*sides, strict=True)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_hessian_times_vector_equals_differences_of_gradients(make_net, changes, loss):
    net = make_net(kernel="reference", **changes)
    vector = [torch.randn_like(weight) for weight in net.parameters()]
    # Without a kink near which differences are wrong.
    for layer in net.layers:
        layer.feed_forward.net[1] = torch.nn.Softplus()
    expected = estimate_product(net, vector, loss)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
        narrow = [each.to(dtype) for each in vector]
        actual = multiply_by_hessian(net.to(dtype), narrow, loss)
        norms = [
            sum(p.double().square().sum() for p in parts).sqrt()
            for parts in ([a.double() - e for a, e in zip(actual, expected, strict=True)], expected)
        ]
        assert norms[0] <= tolerance * norms[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["grad", "backward"])
@pytest.mark.parametrize("kernel", sorted({*KERNELS} - {"reference"}))
def test_a_kernel_without_second_derivatives_refuses_them(make_net, kernel, way, dtype):
    net = make_net(kernel=kernel).to(dtype)
    expected = r"has no second derivatives \(create_graph=True\); expected kernel reference"
    loss = compute_loss(net, "logits")
    ways = {
        "grad": lambda: torch.autograd.grad(loss, [*net.parameters()], create_graph=True),
        "backward": lambda: loss.backward(create_graph=True),
    }
    with pytest.raises(RuntimeError, match=expected):
        ways[way]()


def test_a_gradient_penalty_is_right_under_autocast(make_net):
    net = make_net(kernel="reference").float()
    norms = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = compute_loss(net)
        gradient = torch.autograd.grad(loss, [*net.parameters()], create_graph=True)
        penalty = sum(each.square().sum() for each in gradient)
        second = torch.autograd.grad(penalty, [*net.parameters()], allow_unused=True)
        norms.append(torch.cat([each.flatten() for each in second]))
    similarity = torch.cosine_similarity(*norms, dim=0)
    assert similarity > 0.98
