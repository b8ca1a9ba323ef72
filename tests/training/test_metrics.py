"""Nats, counted so that any split gives the same mean."""

import math

import pytest
import torch

from txl_lightning import LanguageModel, TransformerXLConfig
from txl_lightning.data.stream import IGNORED
from txl_lightning.training.segments import MeanNats

CPU = torch.device("cpu")


def test_any_split_into_segments_gives_the_mean_of_scored_targets():
    nats_BL = torch.rand(4, 25, dtype=torch.float64)
    targets_BL = torch.randint(9, (4, 25))
    targets_BL[:, ::3] = IGNORED
    expected = nats_BL[targets_BL != IGNORED].mean().item()
    for sizes in ([25], [1] * 25, [7, 7, 7, 4]):
        metric = MeanNats(CPU)
        for nats, targets in zip(nats_BL.split(sizes, 1), targets_BL.split(sizes, 1), strict=True):
            metric.update(nats.masked_fill(targets == IGNORED, math.nan), targets)
        assert metric.compute().item() == pytest.approx(expected, abs=1e-14)


def test_ranks_are_summed_not_averaged():
    metrics = MeanNats(CPU), MeanNats(CPU)
    for metric, part in zip(metrics, ([2.0] * 3, [6.0]), strict=True):
        metric.update(torch.tensor(part), torch.zeros(len(part)))
    nats, count = (
        metrics[0]._reductions[name](torch.stack([getattr(each, name) for each in metrics]))
        for name in ("nats", "count")
    )
    assert (nats / count).item() == 3.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_stay_float64_when_the_model_becomes_half_precision(dtype):
    model = LanguageModel(TransformerXLConfig(n_token=9, n_layer=1, d_model=8, n_head=2))
    model.get_nats("train").update(torch.full((300,), 2.5), torch.zeros(300))
    model.to(dtype)
    nats = model.get_nats("train")
    nats.update(torch.full((300,), 2.5), torch.zeros(300))
    assert nats.compute().item() == 2.5
    assert nats.count.item() == 600
    nats.reset()
    assert nats.count.dtype == torch.float64
