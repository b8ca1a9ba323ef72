"""Rates of networks are searched at full length, recorded one by one, and used by what counts."""

import math
from argparse import Namespace

import pytest

from experiments.results import load_records
from experiments.state_bytes import figures, run


@pytest.fixture
def args(tmp_path):
    args = Namespace(fast=False, again=False, out=tmp_path / "results.json", origin={})
    args.settings = {"precision": "bf16-mixed"}
    return args


@pytest.fixture
def trained(monkeypatch):
    """Return the rates that were trained, in turn; 0.024 is the best of Muon, 0.75e-3 of AdamW."""
    rates = []

    def measure(args, net, optimizer, rate):
        rates.append(rate)
        nats = 4 + abs(math.log(rate / {"muon": 24e-3, "adamw": 0.75e-3}[optimizer]))
        nats -= optimizer == "muon"
        curve = {figures.COLUMN: [9.0, nats / 2]}
        fields = {"kind": "rate", "net": net, "optimizer": optimizer, "rate": rate}
        return fields | {"nats": nats, "curve": curve}

    monkeypatch.setattr(run, "measure_rate", measure)
    return rates


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [("muon", [6e-3, 12e-3, 24e-3, 48e-3]), ("adamw", [3e-3, 6e-3, 1.5e-3, 0.75e-3, 0.375e-3])],
)
def test_rates_are_tried_until_the_best_lies_between_worse_ones(args, trained, optimizer, rates):
    run.tune_rate(args, "lstm", optimizer)
    assert trained == pytest.approx(rates)
    assert len(load_records(args.out)) == len(rates)


def test_a_search_that_was_stopped_trains_no_rate_again(args, trained):
    run.common.measure_once(args, "rate lstm muon 0.012", run.measure_rate, "lstm", "muon", 12e-3)
    run.tune_rate(args, "lstm", "muon")
    assert trained == pytest.approx([12e-3, 6e-3, 24e-3, 48e-3])


def test_the_recipe_is_the_best_of_both_optimizers(args, trained):
    for optimizer in run.OPTIMIZERS:
        run.tune_rate(args, "lstm", optimizer)
    best = run.choose_best(load_records(args.out), "lstm")
    assert best == {"optimizer": "muon", "rate": pytest.approx(24e-3)}


def test_a_best_rate_at_the_end_of_a_grid_is_not_called_the_best():
    assert figures.describe_best({3e-3: 1.7, 6e-3: 1.6, 12e-3: 1.8}) == "0.006"
    assert figures.describe_best({6e-3: 1.6, 12e-3: 1.8}) == "not known"
    assert figures.describe_best({6e-3: 1.9, 12e-3: 1.8}) == "not known"


def test_a_table_shows_what_float32_does_at_the_best_rate(args, trained):
    run.tune_rate(args, "lstm", "muon")
    records = load_records(args.out)
    best = run.choose_best(records, "lstm")
    other = {"kind": "precision", "net": "lstm", "curve": {figures.COLUMN: [2]}}
    _, row = figures.list_precisions(records | {"32-true lstm": other | best})
    assert row == ["LSTM", "1.500", "2.000"]
