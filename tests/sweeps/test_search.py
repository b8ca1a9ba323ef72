"""W&B's file, Optuna's proposals, and pruning."""

import math

import optuna
import pytest
import yaml

from txl_lightning.sweeps import search

METRIC = {"name": "val/loss", "goal": "minimize"}
LR = {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1}
PARAMETERS = {
    "lr": LR,
    "mem_len": {"values": [0, 16, 64]},
    "tgt_len": {"distribution": "int_uniform", "min": 4, "max": 64},
    "order": {"value": "ordered"},
}
BAND = {"type": "hyperband", "min_iter": 2, "eta": 2}
RIGHT = {
    "method": "random",
    "metric": METRIC,
    "parameters": {"lr": {"min": 0.001, "max": 0.01}},
    "command": ["${interpreter}", "${args}"],
}


def make_config(method: str = "random", parameters: dict = PARAMETERS, **changes) -> dict:
    config = {**RIGHT, "method": method, "parameters": parameters, **changes}
    search.check_config(config)
    return config


def propose(config: dict, folder, count: int, seed: int = 1) -> list[dict]:
    """Ask for trials until the folder has `count`; the third of them fails."""
    folder.mkdir(exist_ok=True)
    study = search.open_study(config, folder, seed)
    while len(study.trials) < count:
        trial = study.ask()
        proposal = search.suggest_parameters(study, trial, config)
        trial.set_user_attr("parameters", proposal)
        if trial.number == 2:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            loss = abs(math.log10(proposal.get("lr", 1)) + 2) + proposal.get("tgt_len", 0)
            study.tell(trial, loss)
    return [trial.user_attrs["parameters"] for trial in study.trials]


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_reopened_study_continues_with_the_same_proposals(method, tmp_path):
    file = make_config(method)
    whole = propose(file, tmp_path / "whole", 8, seed=3)
    propose(file, tmp_path / "halves", 4, seed=3)
    assert propose(file, tmp_path / "halves", 8, seed=3) == whole
    assert len({each["lr"] for each in whole}) == 8
    assert propose(file, tmp_path / "other", 8, seed=4) != whole
    for each in whole:
        assert [type(value) for value in each.values()] == [float, int, int, str]
        assert 1e-4 <= each["lr"] <= 1e-1
        assert each["mem_len"] in (0, 16, 64)
        assert 4 <= each["tgt_len"] <= 64


def test_grid_has_every_combination_once_in_order(tmp_path):
    parameters = {"a": {"values": [1, "null", [2, 3]]}, "b": {"min": 4, "max": 5}}
    file = make_config("grid", parameters)
    expected = [{"a": a, "b": b} for a in (1, "null", "[2, 3]") for b in (4, 5)]
    assert propose(file, tmp_path, 4) == expected[:4]
    assert propose(file, tmp_path, search.count_points(file)) == expected


def test_a_full_disk_leaves_half_a_line_of_the_journal(tmp_path):
    file = make_config("grid", {"a": {"values": [1, 2, 3]}})
    path = tmp_path / "journal.log"
    propose(file, tmp_path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"wor')
    assert propose(file, tmp_path, 3) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ({"min": 2.0, "max": 3.0}, 2, 3),
        ({"distribution": "uniform", "min": 1, "max": 9}, 1, 9),
        ({"distribution": "log_uniform_values", "min": 1, "max": 9}, 1, 9),
    ],
)
def test_distributions_of_numbers_stay_within_their_range(spec, low, high, tmp_path):
    values = [each["x"] for each in propose(make_config(parameters={"x": spec}), tmp_path, 12)]
    assert all(low <= value <= high for value in values)
    assert {type(value) for value in values} == {float}
    assert len(set(values)) > 2


@pytest.mark.parametrize(("goal", "good"), [("minimize", 1.0), ("maximize", 9.0)])
def test_hyperband_prunes_trials_worse_than_half_of_the_others(goal, good, tmp_path):
    metric = {"name": "val/loss", "goal": goal}
    bad = 10 - good
    study = search.open_study(make_config(early_terminate=BAND, metric=metric), tmp_path, 1)

    def is_pruned(*values: float) -> bool:
        trial = study.ask()
        for step, value in enumerate(values, 1):
            trial.report(value, step)
        decision = trial.should_prune()
        study.tell(trial, values[-1])
        return decision

    for other in (4.0, 4.1, 4.2):
        is_pruned(other, other)
    assert [is_pruned(bad), is_pruned(bad, bad), is_pruned(bad, good)] == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "gridd"}, "method: invalid gridd; expected one of grid, random, bayes"),
        ({"command": None}, "command: invalid None; expected a list"),
        ({"metric": {"nme": "x"}}, "metric.nme: unknown key; expected one of method"),
        ({"metric": {"name": "x", "goal": "less"}}, "metric.goal: invalid less"),
        ({"metric": {"name": "x", "target": 1}}, "metric.target: unknown key; expected one of"),
        ({"metrc": 1}, "metrc: unknown key; expected one of method, metric.name"),
        ({"run_cap": "8"}, "run_cap: invalid 8; expected 1 or more"),
        ({"parameters": {}}, "parameters: invalid {}"),
        ({"parameters": {"x": {"valuess": [1]}}}, "parameters.x: invalid {'valuess': [1]}"),
        ({"parameters": {"x": {"min": "1e-4", "max": 1.0}}}, "1e-4 is a text, 1.0e-4 a number"),
        ({"parameters": {"x": {"distribution": "beta", "min": 2}}}, "parameters.x: invalid"),
        ({"parameters": {"x": {"min": 2, "max": 1}}}, "parameters.x: invalid {'max': 1, 'min': 2}"),
        ({"parameters": {"x": LR | {"min": 0}}}, "parameters.x: invalid"),
        ({"parameters": {"x": {"parameters": {"lr": {"value": 1}}}}}, "parameters.x: invalid"),
        ({"method": "grid"}, "parameters.lr: invalid"),
        (
            {"command": ["fit", "--a.b=1"], "parameters": {"config": {"value": '{"a": {"b": 2}}'}}},
            "expected a value in one place: --a.b in command counts before a config",
        ),
        ({"early_terminate": {"type": "hyperband"}}, "early_terminate: invalid {'type'"),
        ({"early_terminate": {**BAND, "eta": 2.5}}, "early_terminate: invalid {'eta': 2.5"),
        ({"early_terminate": {**BAND, "s": 1}}, "early_terminate.s: unknown key"),
        ("method: [grid\n", "expected ',' or ']'"),
        ("[" * 100_000, "aliases and more than 100 levels"),
        ("", "file: invalid None; expected keys and values"),
        ("- a", "file: invalid ['a']; expected keys and values"),
        ("method: grid\nmethod: random", "method: given in line 1, and again in line 2"),
    ],
)
def test_wrong_file_is_refused_in_one_line_with_file_and_key(tmp_path, changes, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(changes if isinstance(changes, str) else yaml.safe_dump({**RIGHT, **changes}))
    with pytest.raises(ValueError, match=r"wrong\.yaml: [^\n]*$") as error:
        search.load_sweep_file(str(path))
    assert message in str(error.value)


@pytest.mark.parametrize("change", [None, ("random", "ran\x07dom"), (":0", ":99")])
def test_journal_that_is_damaged_or_of_another_kind_is_refused(tmp_path, change):
    path = tmp_path / "journal.log"
    search.open_study(make_config(), tmp_path, 1)
    path.write_text(path.read_text().replace(*change) if change else "step,loss\n1,2\n")
    with pytest.raises(ValueError, match=r"out: invalid .*journal\.log; expected the journal"):
        search.open_study(make_config(), tmp_path, 1)


@pytest.mark.parametrize(
    ("changes", "seed", "key"),
    [
        ({"parameters": {"lr": {"value": 0.5}}}, 1, "parameters"),
        ({"method": "bayes"}, 1, "method"),
        ({}, 2, "seed"),
    ],
)
def test_a_changed_sweep_is_refused_in_the_folder_of_a_sweep(changes, seed, key, tmp_path):
    propose(make_config(), tmp_path, 1)
    other = make_config(**changes)
    with pytest.raises(ValueError, match=f"^{key}: invalid .* with which the sweep in"):
        search.open_study(other, tmp_path, seed)
