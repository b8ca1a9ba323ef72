"""Nats, counted so that any split gives the same mean."""

import math

import pytest
import torch

from txl_lightning.evaluation import MeanNats, readings


def test_any_split_gives_the_same_mean():
    nats_BL = torch.rand(4, 25, dtype=torch.float64)
    for sizes in ([25], [1] * 25, [24, 1], [7, 7, 7, 4]):
        metric = MeanNats()
        for part in nats_BL.split(sizes, dim=1):
            metric.update(part, torch.zeros_like(part))
        assert metric.compute().item() == pytest.approx(nats_BL.mean().item(), abs=1e-14)


def test_ranks_are_summed_not_averaged():
    parts = [torch.full((3,), 2.0), torch.full((1,), 6.0)]
    metrics = [MeanNats() for _ in parts]
    for metric, part in zip(metrics, parts, strict=True):
        metric.update(part, torch.zeros_like(part))
    states = {name: torch.stack([getattr(m, name) for m in metrics]) for name in ("nats", "count")}
    reduced = {name: metrics[0]._reductions[name](states[name]) for name in states}
    assert (reduced["nats"] / reduced["count"]).item() == 3.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_counts_on_when_its_owner_becomes_half_precision(dtype):
    owner = torch.nn.ModuleDict({"nats": MeanNats()})
    owner["nats"].update(torch.full((300,), 2.5), torch.zeros(300))
    owner.to(dtype)
    owner["nats"].update(torch.full((300,), 2.5), torch.zeros(300))
    assert owner["nats"].compute().item() == 2.5
    assert owner["nats"].count.item() == 600
    owner["nats"].reset()
    assert owner["nats"].count.dtype == torch.float64


def test_readings_are_the_fields_units():
    values = readings(math.log(2) * 3, "byte")
    assert values["bits_per_byte"] == pytest.approx(3)
    assert values["perplexity"] == pytest.approx(8)
    assert math.isfinite(readings(1e9, "byte")["perplexity"])
