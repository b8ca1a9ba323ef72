"""Sweeps' files: those that are given, and what is said of a wrong one."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from txl_lightning.sweeps import engine
from txl_lightning.sweeps.command import expanded
from txl_lightning.sweeps.file import flat, problems, read
from txl_lightning.sweeps.trials import Trial
from txl_lightning.training.checks import check_numbers_of
from txl_lightning.training.cli import TxlCLI

GIVEN = sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml"))
RIGHT = {
    "method": "random",
    "metric": {"name": "val/nats"},
    "parameters": {"model.optim.lr": {"min": 0.001, "max": 0.01}},
    "command": ["${interpreter}", "${args}"],
}


@pytest.fixture(scope="module")
def parsed():
    """What fit makes of its arguments; its parser takes long to build."""
    cli = TxlCLI.__new__(TxlCLI)
    with pytest.raises(SystemExit):
        cli.__init__(["fit", "--print_config"])

    @cache
    def parsed(*arguments: str):
        cli.arguments = ["fit", *arguments]
        config = cli.parse().fit
        check_numbers_of(config)
        return config

    return parsed


def proposals(file) -> list[dict]:
    """All of a grid, and some of what is drawn."""
    trials: list[Trial] = []
    while len(trials) < 6 and (parameters := engine.propose(file.config, 1, trials)):
        trials.append(Trial(len(trials) + 1, parameters, "finished", (1.0 + len(trials),)))
    return [trial.parameters for trial in trials]


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_a_given_sweep_is_valid_by_the_schema_of_wandb(path):
    given = yaml.safe_load(path.read_text())
    assert engine.library().schema_violations_from_proposed_config(given) == []
    file = read(str(path))
    assert file.name == path.stem
    assert file.metric.startswith("val/bits_per_")


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_its_trials_are_runs_of_fit_that_log_to_wandb(path, parsed, repository, monkeypatch):
    monkeypatch.chdir(repository)
    file = read(str(path))
    for parameters in proposals(file):
        words = expanded(file.config, parameters, Path("args.json"))
        assert words[2:5] == ["-m", "txl_lightning", "fit"]
        config = parsed(*words[5:])
        for key, value in flat(parameters).items():
            assert config[key] == value
        assert config.trainer.logger.class_path == "lightning.pytorch.loggers.WandbLogger"


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_its_header_shows_both_ways_to_run_it_and_says_what_was_measured(path):
    header = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    name = f"configs/sweeps/{path.name}"
    assert header.startswith("# ")
    assert f"python -m txl_lightning sweep {name}" in header
    assert f"wandb sweep {name}" in header
    assert "wandb agent" in header
    said = " ".join(header.replace("#", " ").split())
    measured = "measured, with what else differs, in experiments/README.md"
    assert any(words in said for words in ("not measured here", "it measures nothing", measured))


def test_what_may_be_seen_and_what_a_step_reads_are_the_same_in_each_trial_of_attention():
    trials = [flat(each) for each in proposals(read(str(GIVEN[0].with_name("attention.yaml"))))]
    assert len(trials) == 6
    for each in trials:
        assert each["model.net.mem_len"] + each["data.tgt_len"] == 192
        assert each["data.tgt_len"] * each["data.batch_size"] == 768


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "gridd"}, "method: 'gridd' is not one of ['bayes', 'random', 'grid'"),
        ({"method": None}, "the file: wants method"),
        ({"command": None}, "command: missing; it must run fit"),
        ({"metric": {"nme": "x"}}, "metric: wants name"),
        ({"method": "custom"}, "method: invalid custom; expected one of grid, random"),
        ({"metric": None}, "metric: missing; it must have the name of a column"),
        ({"metrc": 1}, "the file: metrc is unknown; it must be one of "),
        ({"parameters": {"lr": {"valuess": [1]}}}, "valuess is unknown; it must be one of a, b, d"),
        ({"parameters": {"lr": {"min": "1e-4", "max": 1.0}}}, "1e-4 is a text in YAML, and 0.0001"),
        ({"parameters": {"lr": {"min": 2.0, "max": 1.0}}}, "lr: min 2.0 is not less than max 1.0"),
        ({"parameters": {"model": {"parameters": {"lr": {"value": 1}}}}}, "model.KEY"),
        ({"method": "grid"}, "Parameter model.optim.lr is a disallowed type with grid search"),
        ({"early_terminate": {"type": "hyperband"}}, "early_terminate: wants max_iter or min_iter"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_file_and_the_key(place, changes, said):
    config = {key: value for key, value in (RIGHT | changes).items() if value is not None}
    path = place.folder / "wrong.yaml"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=r"wrong\.yaml: ") as error:
        read(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_yaml_is_one_line_too(place):
    path = place.folder / "wrong.yaml"
    path.write_text("method: [grid\n")
    with pytest.raises(ValueError, match=r"wrong\.yaml: not YAML: ") as error:
        read(str(path))
    assert "\n" not in str(error.value)


def test_a_right_file_has_no_problems():
    assert list(problems(RIGHT)) == []


def test_a_text_of_settings_is_taken_apart_and_a_file_is_not():
    settings = '{"model": {"net": {"mem_len": 3}}, "data": {"tgt_len": 4}}'
    assert flat({"config": settings, "data.tgt_len": 5}) == {
        "model.net.mem_len": 3,
        "data.tgt_len": 5,
    }
    assert flat({"config": "configs/smoke.yaml"}) == {"config": "configs/smoke.yaml"}
