"""What is tried next and what is ended early."""

import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from txl_lightning.sweeps import engine, trials
from txl_lightning.sweeps.trials import Sweep, Trial

PARAMETERS = {
    "model.optim.lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
    "model.net.mem_len": {"values": [0, 16, 64]},
    "data.tgt_len": {"distribution": "int_uniform", "min": 4, "max": 64},
    "data.order": {"value": "ordered"},
}


def config(method: str, **changes) -> dict:
    metric = {"name": "val/nats", "goal": "minimize"}
    given = {"method": method, "metric": metric, "parameters": PARAMETERS}
    return engine.library().SweepConfig(given | changes)


def carried_out(search, seed: int, count: int, begun: tuple[Trial, ...] = ()) -> tuple[Trial, ...]:
    """Trials whose value is a function of their parameters; the third fails."""
    found = list(begun)
    while len(found) < count:
        parameters = engine.propose(search, seed, found)
        value = abs(np.log10(parameters["model.optim.lr"]) + 2) + parameters["data.tgt_len"] / 100
        failed = len(found) == 2
        trial = Trial(len(found) + 1, parameters, "failed" if failed else "finished")
        found.append(trial if failed else replace(trial, history=(value + 1, value)))
    return tuple(found)


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_what_is_tried_after_it_was_saved_and_read_is_what_would_have_been(method, tmp_path):
    search = config(method)
    whole = carried_out(search, 3, 8)
    trials.save(Sweep({}, 3, whole[:4]), tmp_path)
    random.seed(99)
    np.random.seed(99)
    again = carried_out(search, 3, 8, trials.load(tmp_path).trials)
    assert again == whole
    assert len({trial.parameters["model.optim.lr"] for trial in whole}) == 8
    assert carried_out(search, 4, 8) != whole


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_values_are_plain_and_within_what_the_file_allows(method):
    for trial in carried_out(config(method), 1, 6):
        lr, mem_len, tgt_len, order = (trial.parameters[name] for name in PARAMETERS)
        assert [type(each) for each in (lr, mem_len, tgt_len, order)] == [float, int, int, str]
        assert 1e-4 <= lr <= 1e-1
        assert mem_len in (0, 16, 64)
        assert 4 <= tgt_len <= 64
        assert order == "ordered"


def test_to_propose_changes_no_draw_of_others():
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    engine.propose(config("random"), 1, [])
    assert (random.random(), np.random.random()) == expected


def test_bayes_comes_nearer_than_chance():
    """Of many parameters one matters, whose best is 0.01."""
    lrs = [
        np.mean([abs(np.log10(t.parameters["model.optim.lr"]) + 2) for t in found[6:]])
        for found in (carried_out(config(method), 1, 14) for method in ("bayes", "random"))
    ]
    assert lrs[0] < lrs[1]


def test_a_grid_has_every_combination_once_and_then_no_more():
    parameters = {"a": {"values": [1, "null"]}, "b": {"values": [0.1, 0.2, 0.3]}}
    search, found = config("grid", parameters=parameters), []
    while (each := engine.propose(search, 1, found)) is not None:
        found.append(Trial(len(found) + 1, each, "failed"))
    pairs = {(trial.parameters["a"], trial.parameters["b"]) for trial in found}
    assert len(pairs) == len(found) == 6


BAND = {"type": "hyperband", "min_iter": 2, "eta": 2}


@pytest.mark.parametrize(
    ("goal", "history", "hopeless"),
    [
        ("minimize", (9.0,), False),
        ("minimize", (9.0, 9.0), True),
        ("minimize", (9.0, 1.0), False),
        ("maximize", (1.0, 1.0), True),
        ("maximize", (1.0, 9.0), False),
    ],
)
def test_hyperband_ends_what_is_worse_than_half_of_the_others(goal, history, hopeless):
    search = config("random", metric={"name": "val/nats", "goal": goal}, early_terminate=BAND)
    others = [Trial(n + 1, {}, "finished", (5.0, 4.0 + n / 10, 3.0)) for n in range(3)]
    running = Trial(4, {}, "running", history)
    assert engine.is_hopeless(search, others, running) is hopeless


def test_the_first_trial_is_never_hopeless():
    search = config("random", early_terminate=BAND)
    assert not engine.is_hopeless(search, [], Trial(1, {}, "running", (9.0, 9.0, 9.0, 9.0)))


def test_where_the_engine_is_missing_both_commands_are_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sweeps", None)
    with pytest.raises(ValueError, match="sweep: the package sweeps is missing; pip install") as e:
        engine.library()
    assert "txl-lightning[sweeps]" in str(e.value)
    assert "--no-deps sweeps==0.3.0" in str(e.value)
