"""What trials have shown, as a table and a picture."""

import json

import pytest

from txl_lightning.sweeps import engine, logged, pictures, results
from txl_lightning.sweeps.file import SweepFile
from txl_lightning.sweeps.trials import Sweep, Trial

LR = {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0}
METRIC = {"name": "val/bits_per_byte", "goal": "minimize"}


def file(parameters: dict, method: str = "random") -> SweepFile:
    given = {"method": method, "metric": METRIC, "parameters": parameters, "name": "one"}
    return SweepFile("one.yaml", engine.library().SweepConfig(given))


def trial(number: int, state: str, *history: float, **parameters) -> Trial:
    values = {name.replace("__", "."): value for name, value in parameters.items()}
    return Trial(number, values, state, history, steps=10, seconds=2.0, reason=None)


def test_what_failed_or_goes_on_stands_last_whatever_it_has_logged(tmp_path):
    trials = (
        trial(1, "failed", 0.1, model__optim__lr=0.1),
        trial(2, "finished", 3.0, 2.0, 2.5, model__optim__lr=0.2),
        trial(3, "stopped", 4.0, model__optim__lr=0.3),
        trial(4, "finished", 1.5, model__optim__lr=0.4),
        trial(5, "interrupted", 0.2, model__optim__lr=0.5),
        trial(6, "finished", model__optim__lr=0.6),
    )
    rows = results.table(Sweep({}, 1, trials), file({"model.optim.lr": LR}))
    assert [row["trial"] for row in rows] == [4, 2, 3, 1, 5, 6]
    assert (rows[1]["value"], rows[1]["last"]) == (2.0, 2.5)
    head, best, *_ = results.lines(rows, ["model.optim.lr"])
    assert head.split() == ["trial", "state", "value", "lr", "steps", "seconds"]
    assert best.split() == ["4", "finished", "1.5000", "0.4", "10", "2"]


def test_keys_that_change_together_are_columns_of_their_own(tmp_path):
    values = [json.dumps({"data": {"tgt_len": n, "order": o}}) for n, o in ((9, "x"), (10, "y"))]
    sweep = Sweep({}, 1, tuple(trial(n + 1, "finished", n, config=v) for n, v in enumerate(values)))
    rows = results.table(sweep, file({"config": {"values": values}}, "grid"))
    assert [(row["data.tgt_len"], row["data.order"]) for row in rows] == [(9, "x"), (10, "y")]
    assert "config" not in rows[0]


def test_a_picture_takes_any_kind_of_value(tmp_path):
    parameters = {
        "lr": LR,
        "n": {"distribution": "int_uniform", "min": 0, "max": 9},
        "q": {"distribution": "q_log_uniform_values", "min": 0.1, "max": 9.0, "q": 1.0},
        "flag": {"values": [True, False]},
        "mixed": {"values": [4, "null", 2, "a word"]},
    }
    kinds = [(0.001, 3, 0.0, True, 4), (0.1, 5, 2.0, False, "null"), (0.5, 9, 4.0, True, 2)]
    kinds.append((0.9, 0, 1.0, False, "a word"))
    trials = [
        trial(n + 1, "finished", 1.0 + n, **dict(zip(parameters, values, strict=True)))
        for n, values in enumerate(kinds)
    ]
    trials.append(trial(5, "stopped", 90.0, lr=0.1, n=1, q=3.0, flag=True, mixed=2))
    search = file(parameters)
    results.write(Sweep(search.search, 1, tuple(trials)), search, tmp_path)
    assert (tmp_path / "results.png").stat().st_size > 10_000


def test_numbers_of_a_list_stand_in_their_order_before_words():
    axis = pictures.Axis("mem_len", False, False)
    assert axis.kinds([64, "null", 0, 16, 64]) == [0, 16, 64, "null"]
    assert axis.places([64, "null", 0, 64]) == [1.0, 2.0, 0.0, 1.0]


def test_what_matters_is_more_important():
    axes = [pictures.Axis("lr", True, True), pictures.Axis("n", True, False)]
    rows = [{"lr": 10.0**-n, "n": (n * 7) % 5, "value": float(n)} for n in range(1, 9)]
    (_, lr, rank), (_, n, _) = pictures.importance(rows, axes)
    assert lr > n
    assert lr + n == pytest.approx(1)
    assert rank == pytest.approx(-1)


def test_short_names_are_last_words_that_no_other_key_has():
    assert pictures.short(["model.optim.lr", "model.optim.muon_lr"]) == {
        "model.optim.lr": "lr",
        "model.optim.muon_lr": "muon_lr",
    }
    assert pictures.short(["data.a.x", "data.b.x"])["data.a.x"] == "data.a.x"


def test_of_several_runs_of_a_trial_the_later_counts_and_a_cut_line_does_not(tmp_path):
    for number, text in {
        2: "step,val/nats,train/tokens_seen\n20,2.5,\n30,nan,\n40,2.0,640\n50,1.2",
        10: "step,val/nats\n20,2.4\n60,1.5\n",
        0: "step,train/nats\n5,3.0\n",
    }.items():
        folder = tmp_path / f"version_{number}"
        folder.mkdir()
        (folder / "metrics.csv").write_text(text)
    found = logged.read(tmp_path, "val/nats")
    assert found.values == (2.4, 2.0, 1.5)
    assert (found.steps, found.tokens) == (61, 640)
    assert set(found.columns) == {"step", "train/nats", "val/nats", "train/tokens_seen"}


def test_the_last_error_of_a_log_is_what_it_says_or_else_its_last_line(tmp_path):
    log = tmp_path / "log.txt"
    assert logged.complaint(log) == ""
    log.write_text("one\nerror: first\nerror: second\nafter\n\n")
    assert logged.complaint(log) == "error: second"
    log.write_text("Traceback\n  line\nKeyError: 3\n")
    assert logged.complaint(log) == "KeyError: 3"


def test_a_trials_best_checkpoint_is_that_of_its_last_run_which_has_one(tmp_path):
    assert logged.checkpoint(tmp_path) is None
    for name in ("version_0/checkpoints/best.ckpt", "version_1/checkpoints/last.ckpt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert logged.checkpoint(tmp_path) == tmp_path / "version_0" / "checkpoints" / "best.ckpt"
