"""Optimisers by name, schedules as functions of the step."""

import pytest
import torch

from txl_lightning import OptimConfig, TransformerXL, TransformerXLConfig
from txl_lightning.training.muon import Muon, orthogonal
from txl_lightning.training.optim import OPTIMIZERS, lr_factor, make_optimizer, make_scheduler


def factors(schedule, steps, **changes):
    config = OptimConfig(schedule=schedule, **changes)
    return [lr_factor(step, config, steps) for step in range(steps + 1)]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "inverse_sqrt", "wsd"])
def test_warm_up_is_right_from_the_first_step(schedule):
    found = factors(schedule, 20, warmup_steps=5)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert max(found) == 1.0


def test_cosine_goes_from_the_peak_to_its_end():
    found = factors("cosine", 10)
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert found[10] == pytest.approx(0.0)
    assert factors("cosine", 10, warmup_steps=2, min_lr_ratio=0.1)[10] == pytest.approx(0.1)


def test_inverse_sqrt_is_the_transformers():
    found = factors("inverse_sqrt", 40, warmup_steps=10)
    for step in range(41):
        noam = min((step + 1) ** -0.5, (step + 1) * 10**-1.5)
        assert found[step] == pytest.approx(noam / 10**-0.5)


def test_wsd_is_stable_and_then_linear():
    found = factors("wsd", 10, decay_fraction=0.4)
    assert found[:7] == [1.0] * 7
    assert found[7:] == pytest.approx([0.75, 0.5, 0.25, 0.0])
    assert factors("wsd", 10, decay_fraction=0.0) == [1.0] * 11


def test_after_the_last_step_a_schedule_stays():
    for schedule in ("cosine", "wsd"):
        config = OptimConfig(schedule=schedule, min_lr_ratio=0.1)
        assert lr_factor(500, config, 10) == pytest.approx(0.1)


def test_a_schedule_without_an_end_is_refused():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
    with pytest.raises(ValueError, match=r"trainer\.max_steps: cosine must know where it ends"):
        make_scheduler(OptimConfig(schedule="cosine"), optimizer, -1)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_learns_and_only_the_layers_matrices_decay(name):
    net = TransformerXL(TransformerXLConfig(n_token=5, n_layer=1, n_head=2, d_model=8))
    optimizer = make_optimizer(OptimConfig(name=name, lr=1e-2, weight_decay=0.1), net)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    inside = [*net.layers.parameters(), *net.positions.r_nets.parameters()]
    assert decayed == {id(p) for p in inside if p.ndim == 2}
    tokens = torch.randint(5, (2, 9))
    losses = []
    for _ in range(20):
        nats, _ = net.nats(tokens[:, :-1], tokens[:, 1:])
        losses.append(nats.mean().item())
        optimizer.zero_grad()
        nats.mean().backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_an_orthogonal_update_has_singular_values_near_one(shape):
    u, _, v = torch.linalg.svd(torch.randn(3, *shape), full_matrices=False)
    s = torch.linspace(1, 10, min(shape))
    found = orthogonal(u * s @ v, 5)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    turned = torch.linalg.svd(found, full_matrices=False)
    torch.testing.assert_close(turned.U @ turned.Vh, u @ v, rtol=0, atol=1e-3)


def test_muon_resumes_where_it_was():
    def start():
        torch.manual_seed(1)
        weights = [torch.nn.Parameter(torch.randn(4, 6)), torch.nn.Parameter(torch.randn(4))]
        groups = [{"params": weights[:1], "orthogonal": True}, {"params": weights[1:]}]
        return weights, Muon(groups, lr=0.1)

    def step(weights, optimizer):
        optimizer.zero_grad()
        sum((w**4).sum() for w in weights).backward()
        optimizer.step()

    whole, optimizer = start()
    for _ in range(4):
        step(whole, optimizer)
    first, optimizer = start()
    for _ in range(2):
        step(first, optimizer)
    resumed, other = start()
    for a, b in zip(resumed, first, strict=True):
        a.data.copy_(b.data)
    other.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        step(resumed, other)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "lr: 0.0 is not possible; it must be greater than 0"),
        ({"betas": (0.9, 1.0)}, "betas: 1.0 is not possible"),
        ({"warmup_steps": -1}, "warmup_steps: -1 is not possible"),
        ({"decay_fraction": 2.0}, "decay_fraction: 2.0 is not possible; it must be from 0 to 1"),
    ],
)
def test_an_impossible_number_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        OptimConfig(**changes)
