"""Optimizers by name, schedules as functions of the step."""

from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from txl_lightning import OptimConfig, TransformerXL, TransformerXLConfig
from txl_lightning.training import optimizers
from txl_lightning.training.lamb import Lamb
from txl_lightning.training.muon import Muon, orthogonalize
from txl_lightning.training.optimizers import (
    AFTER_WARMUP,
    OPTIMIZERS,
    find_lr_factor,
    make_optimizer,
)


def test_every_optimizer_and_schedule_can_be_chosen():
    offered = get_type_hints(OptimConfig)
    assert set(get_args(offered["name"])) == set(OPTIMIZERS)
    assert set(get_args(offered["schedule"])) == {*AFTER_WARMUP, "inverse_sqrt"}


@pytest.mark.parametrize("schedule", [*AFTER_WARMUP, "inverse_sqrt"])
def test_warmup_is_correct_from_the_first_step(schedule):
    config = OptimConfig(schedule=schedule, warmup_steps=5)
    factors = [find_lr_factor(step, config, 20) for step in range(21)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert max(factors) == 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("steps", [2, 4, 30, 150, 199])
def test_warmup_of_more_than_half_a_run_takes_a_tenth_of_it(steps, schedule):
    config = OptimConfig(schedule=schedule, warmup_steps=100)
    same = OptimConfig(schedule=schedule)
    factors = [find_lr_factor(step, config, steps) for step in range(steps + 1)]
    assert max(factors) > 0.99
    assert factors[-1] == pytest.approx(find_lr_factor(steps, same, steps))
    assert factors[0] == pytest.approx(min(10 / steps, 1))


@pytest.mark.parametrize(
    ("schedule", "steps"), [("cosine", 200), ("wsd", 1000), ("constant", -1), ("constant", 30)]
)
def test_any_other_warmup_is_as_given(schedule, steps):
    config = OptimConfig(schedule=schedule, warmup_steps=100)
    assert [find_lr_factor(step, config, steps) for step in (0, 49, 99)] == [0.01, 0.5, 1.0]


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("--trainer.max_steps=4", "more than half of 4 steps; the warm-up takes a tenth of them"),
        ("--trainer.max_epochs=1", "more than half of 21 steps; the warm-up takes a tenth of them"),
        ("--model.optim.schedule=constant", "the run ends within the warm-up, after 4 steps"),
    ],
)
def test_a_warmup_for_which_the_run_is_too_short_is_named(
    accepted, sizes, text_file, words, notice
):
    options = [each for each in sizes if "max_steps" not in each or "epochs" not in words]
    options += [f"--data.path={text_file}", "--data.batch_size=32", words]
    lines = accepted("fit", *options, "--model.optim.warmup_steps=500").err.splitlines()
    assert f"model.optim.warmup_steps 500: {notice}" in lines
    assert "warmup_steps" not in accepted("fit", *options, "--model.optim.warmup_steps=2").err


LINEAR = {"schedule": "linear", "warmup_steps": 2, "min_lr_ratio": 0.5}
SCHEDULES = {
    "cosine": ({}, 10, {0: 1, 5: 0.5, 10: 0}),
    "cosine to a part": ({"warmup_steps": 2, "min_lr_ratio": 0.1}, 10, {10: 0.1, 500: 0.1}),
    "linear": (LINEAR, 12, {step: 1.1 - 0.05 * step for step in range(2, 13)} | {500: 0.5}),
    "wsd": ({"schedule": "wsd", "decay_fraction": 0.4}, 10,
            dict.fromkeys(range(7), 1) | {7: 0.75, 8: 0.5, 9: 0.25, 10: 0, 500: 0}),
    "wsd to a part": ({"schedule": "wsd", "decay_fraction": 0.4, "min_lr_ratio": 0.2}, 10,
                      dict.fromkeys(range(7), 1) | {7: 0.8, 8: 0.6, 9: 0.4, 10: 0.2, 500: 0.2}),
    "wsd without a decay": ({"schedule": "wsd", "decay_fraction": 0.0}, 10,
                            dict.fromkeys(range(11), 1)),
    "inverse_sqrt, the Transformer's": (
        {"schedule": "inverse_sqrt", "warmup_steps": 10}, 40,
        {n: 10**0.5 * min((n + 1) ** -0.5, (n + 1) * 10**-1.5) for n in range(41)}),
    "NVIDIA's base of WikiText-103": (
        {"warmup_steps": 1000, "min_lr_ratio": 0.1}, 40_000,
        {0: 0.001, 1: 0.002, 999: 1, 1000: 1, 20_500: 0.55, 40_000: 0.1}),
    "the paper's large of WikiText-103": (
        {"warmup_steps": 16_000}, 4_000_000,
        {0: 6.25e-5, 1: 1.25e-4, 15_999: 1, 16_000: 1, 2_008_000: 0.5, 4_000_000: 0}),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "steps", "factors"), SCHEDULES.values(), ids=SCHEDULES)
def test_schedule_goes_from_the_peak_to_its_end_and_then_stays_constant(settings, steps, factors):
    config = OptimConfig(**settings)
    assert {step: find_lr_factor(step, config, steps) for step in factors} == pytest.approx(factors)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_schedule_with_an_end_is_refused_in_endless_training(schedule):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
    with pytest.raises(
        ValueError, match=rf"trainer\.max_steps: invalid -1; expected a .* schedule {schedule} ends"
    ):
        optimizers.make_scheduler(OptimConfig(schedule=schedule), optimizer, -1)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_learns_and_decays_only_the_layers_matrices(name):
    sizes = {"n_token": 9, "n_layer": 1, "n_head": 2, "d_model": 8, "tie_weight": False}
    net = TransformerXL(TransformerXLConfig(cutoffs=(3, 6), div_val=2, **sizes))
    optimizer = make_optimizer(OptimConfig(name=name, lr=3e-2, weight_decay=0.1), net)
    decayed, rest = optimizer.param_groups
    inside = [*net.layers.parameters(), *net.positions.r_nets.parameters()]
    assert set(decayed["params"]) == {parameter for parameter in inside if parameter.ndim == 2}
    assert {*decayed["params"], *rest["params"]} == set(net.parameters())
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert decayed.get("orthogonal", False) is (name == "muon")
    assert not rest.get("orthogonal", False)
    tokens = torch.randint(9, (2, 9))
    losses = []
    for _ in range(20):
        nats, _ = net.loss(tokens[:, :-1], tokens[:, 1:])
        losses.append(nats.mean().item())
        optimizer.zero_grad()
        nats.mean().backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(("softmax", "is_tied"), [("lm_head", False), ("out", True)])
def test_weights_of_tokens_neither_decay_nor_are_orthogonalized(softmax, is_tied):
    table = nn.Embedding(9, 4)
    parts = {"tokens": table, "up": nn.Linear(4, 8), softmax: nn.Linear(4, 9)}
    if is_tied:
        parts[softmax].weight = table.weight
    optimizer = make_optimizer(OptimConfig("muon", weight_decay=0.1), nn.ModuleDict(parts))
    decayed, rest = optimizer.param_groups
    assert decayed["params"] == [parts["up"].weight]
    assert len(rest["params"]) == (3 if is_tied else 4)


def test_muon_is_refused_for_a_network_that_gives_it_no_weight():
    net = nn.ModuleDict({"cell": nn.GRUCell(2, 2), "head": nn.Linear(2, 9)})
    with pytest.raises(ValueError, match=r"model\.optim\.name: invalid muon; expected another"):
        make_optimizer(OptimConfig(name="muon"), net)


def take_one_step(name: str, gradient, weight_decay=0.0) -> torch.Tensor:
    """Return a matrix of ones after one step."""
    net = nn.Linear(2, 2, bias=False)
    nn.init.ones_(net.weight)
    config = OptimConfig(name=name, lr=0.5, weight_decay=weight_decay)
    optimizer = make_optimizer(config, nn.ModuleList([net]))
    net.weight.grad = torch.tensor(gradient)
    optimizer.step()
    return net.weight.detach()


def test_decay_is_part_of_the_gradient_or_decoupled():
    gradient = [[-0.4, 0.1], [0.3, -0.7]]
    for name in ("adam", "adagrad", "sgd"):
        decayed = take_one_step(name, gradient, weight_decay=0.5)
        torch.testing.assert_close(decayed, take_one_step(name, [[0.1, 0.6], [0.8, -0.2]]))
    for name in ("adamw", "muon"):
        apart = take_one_step(name, gradient) - 0.5 * 0.2
        torch.testing.assert_close(take_one_step(name, gradient, weight_decay=0.2), apart)


def compute_lamb(weights, gradients, lr, betas, eps, decay):
    """Algorithm 2 of You et al. 2020, with NVIDIA's longest weight and without the correction."""
    mean = square = np.zeros_like(weights)
    for gradient in gradients:
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        update = mean / (np.sqrt(square) + eps) + decay * weights
        length = min(np.sqrt((weights**2).sum()), 10)
        ratio = length / (np.sqrt((update**2).sum()) + eps) if length else 1
        weights = weights - lr * ratio * update
    return weights


@pytest.mark.parametrize(("scale", "decay"), [(0.1, 0.0), (0.1, 0.3), (0.0, 0.3), (100.0, 0.3)])
def test_lamb_takes_the_published_steps(scale, decay):
    start = scale * np.random.randn(4, 3)
    gradients = np.random.randn(5, 4, 3)
    options = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}
    weight = nn.Parameter(torch.tensor(start))
    optimizer = Lamb([weight], **options, weight_decay=decay)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    expected = compute_lamb(start, gradients, **options, decay=decay)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)


def test_lamb_leaves_a_weight_without_a_gradient_unchanged():
    weight = nn.Parameter(torch.ones(2))
    Lamb([weight], weight_decay=0.1).step()
    assert torch.equal(weight, torch.ones(2))


# Where products in bfloat16 are fast, float32 is rounded to bfloat16.
@pytest.mark.parametrize(
    ("shape", "dtype", "near"),
    [
        *((shape, torch.float64, 1e-12) for shape in ((6, 6), (4, 9), (9, 4))),
        ((4, 9), torch.float32, 0.03),
    ],
)
def test_orthogonalized_update_has_singular_values_near_one(shape, dtype, near):
    u, _, v = torch.linalg.svd(torch.randn(3, *shape, dtype=dtype), full_matrices=False)
    s = torch.linspace(1, 10, min(shape), dtype=dtype)
    update = orthogonalize(u * s @ v)
    assert update.dtype == dtype
    values = torch.linalg.svdvals(update)
    assert values.min() > 0.79 - near
    assert values.max() < 1.21 + near
    turned = torch.linalg.svd(update, full_matrices=False)
    torch.testing.assert_close(turned.U @ turned.Vh, u @ v, rtol=0, atol=near)


def test_muon_uses_nesterov_momentum_of_the_running_mean():
    """Nesterov: the update of gradients g1, g2 is made of (1 - m) g2 + m (their running mean)."""
    ones = torch.ones(3, 2, dtype=torch.float64)
    gradients = torch.randn(2, 3, 2).double()
    m = 0.6
    weight = nn.Parameter(ones)
    groups = [{"params": [weight], "orthogonal": True, "weight_decay": 0.0}]
    optimizer = Muon(groups, lr=0.1, momentum=m)
    expected = ones.clone()
    mean = torch.zeros_like(ones)
    for gradient in gradients:
        mean = m * mean + (1 - m) * gradient
        ahead = (1 - m) * gradient + m * mean
        expected -= 0.1 * 0.2 * 3**0.5 * orthogonalize(ahead[None])[0]
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("lr", 0.0, "greater than 0"),
        ("betas", (0.9, 1.0), "at least 0"),
        ("warmup_steps", -1, "at least 0"),
        ("decay_fraction", 2.0, "from 0 to 1"),
    ],
)
def test_invalid_number_is_refused(key, value, expected):
    with pytest.raises(ValueError, match=rf"{key}: invalid .+; expected {expected}"):
        OptimConfig(**{key: value})
