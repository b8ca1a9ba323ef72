"""sweep: runs of fit; one is interrupted and one fails."""

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.waiting import wait_until
from txl_lightning.sweeps.search import load_sweep_file, suggest_parameters
from txl_lightning.sweeps.trials import Sweep, flatten_parameters, make_command, read_metric

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml"))
# The second is impossible.
SETTINGS = [
    {"model": {"net": {"mem_len": 8}}, "data": {"tgt_len": 8}},
    {"model": {"net": {"mem_len": 4}}, "data": {"tgt_len": 0}},
]


@pytest.fixture
def search(tmp_path, small) -> Path:
    """A grid of two runs of fit."""
    fixed = ["--trainer.max_steps=100", "--trainer.val_check_interval=20"]
    chosen = ("--model.net.mem_len=", "--data.tgt_len=")
    rest = [word for word in small if not word.startswith(chosen)]
    fit = ["${env}", "${interpreter}", "-m", "txl_lightning", "fit", *rest, *fixed]
    config = {
        "method": "grid",
        "metric": {"name": "val/loss"},
        "parameters": {"config": {"values": [json.dumps(each) for each in SETTINGS]}},
        "command": [*fit, f"--data.data_dir={tmp_path}", "${args}"],
    }
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def interrupt_sweep(folder: Path, processes) -> None:
    """Start the sweep, and stop it when its first trial has validated."""
    command = [sys.executable, "-m", "txl_lightning", "sweep", "search.yaml", "--out=out"]
    process = processes.start(command, cwd=folder)
    metrics = folder / "out" / "000" / "version_0" / "metrics.csv"
    wait_until(lambda: metrics.exists() and "val/" in metrics.read_text(), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 143


@pytest.mark.slow
def test_interrupted_and_failing_runs_of_fit_are_compared(
    accepted, tmp_path, search, repository, monkeypatch, processes
):
    interrupt_sweep(tmp_path, processes)
    monkeypatch.setenv("PYTHONPATH", str(repository))
    output = accepted("sweep", search, "--out=out")
    best, other = json.loads(Path("out", "results.json").read_text())["rows"]
    assert (best["state"], best["model.net.mem_len"], best["validations"]) == ("complete", 8, 5)
    assert (other["state"], other["value"]) == ("fail", None)
    assert other["reason"].startswith("exit code 2: error: data.tgt_len: invalid 0")
    values, _ = read_metric(Path("out", "000"), "val/loss")
    assert len(values) == 5
    assert best["value"] == min(values)
    assert "txl-lightning evaluate out/000/version_0 --split val" in output.out


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_trials_of_shipped_sweeps_are_runs_of_fit(path, accepted, tmp_path, monkeypatch):
    sweep = Sweep(load_sweep_file(str(path)), tmp_path, 1)
    assert sweep.config["name"] == path.stem
    trial = sweep.study.ask()
    parameters = suggest_parameters(sweep.study, trial, sweep.config)
    words = make_command(sweep.config["command"], parameters, tmp_path)
    assert words[2:5] == ["-m", "txl_lightning", "fit"]
    monkeypatch.chdir(path.parents[2])
    config = yaml.safe_load(accepted(*words[4:], "--print_config").out)
    assert config["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    trial.set_user_attr("parameters", parameters)
    for key, expected in flatten_parameters(sweep.study.trials[0]).items():
        value = config
        # A file is in the words alone; its settings are in the config that is printed.
        if key == "config":
            assert f"--config={expected}" in words
            continue
        for word in key.split("."):
            value = value[word]
        if isinstance(value, dict):
            # Settings that change together are one string.
            assert value == value | json.loads(expected)
        else:
            assert value == expected


def test_trials_of_the_attention_sweep_attend_to_and_read_the_same_number_of_tokens():
    path = next(path for path in CONFIGS if path.stem == "attention")
    texts = yaml.safe_load(path.read_text())["parameters"]["config"]["values"]
    for settings in map(json.loads, texts):
        data = settings["data"]
        assert settings["model"]["net"]["mem_len"] + data["tgt_len"] == 192
        assert data["tgt_len"] * data["batch_size"] == 768


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("search.yaml", "--jobs=0"), 2, "jobs: invalid 0; expected at least 1"),
        (("search.yaml", "--count=0"), 2, "count: invalid 0; expected at least 1"),
        (("search.yaml", "--seed=-1"), 2, "seed: invalid -1; expected at least 0"),
        (("search.yaml", "--out=search.yaml/here"), 6, "out: search.yaml/here"),
        (("search.yaml", "--counts=3"), 2, "unknown option --counts; did you mean --count?"),
        (("none.yaml",), 2, "path: invalid none.yaml; expected a sweep file, or a name in"),
    ],
)
@pytest.mark.usefixtures("search")
def test_invalid_option_is_refused_before_any_trial(refused, arguments, code, message):
    actual, line = refused("sweep", *arguments)
    assert (actual, line[: len(message)]) == (code, message)
    assert not Path("runs").exists()
