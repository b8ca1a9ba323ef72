"""compare --by: effects of a setting on the test text, paired by seed."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from txl_lightning.commands.compare_groups import measure_group
from txl_lightning.runs.listing import load_run

SMALL = ("--trainer.max_steps=3", "--trainer.val_check_interval=3", "--trainer.limit_val_batches=1")


@pytest.fixture
def train(accepted, small):
    def run(mem_len, seed, *more):
        words = [f"--model.net.mem_len={mem_len}", f"--seed_everything={seed}"]
        root = f"--trainer.default_root_dir=runs/{mem_len}-{seed}-{len(more)}"
        accepted("fit", *small, *SMALL, *words, root, *more)

    return run


def read_rows(text):
    """Return the rows of the tables, without the results that were printed one by one."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [row for row in rows if len(row) > 2]


def read_results(text):
    return dict(re.findall(r"^(.*, seed \d+)  ([\d.]+) bits per byte$", text, re.M))


def test_groups_are_compared_on_the_test_text_and_paired_by_seed(accepted, train):
    for mem_len in (0, 8):
        for seed in (1, 10, 2):
            # With the usual small weights, three steps leave both groups equal to rounding.
            train(mem_len, seed, "--model.net.init_std=0.5")
    output = accepted("compare", "runs", "--by=model.net.mem_len")
    rows = read_rows(output.out)
    means = {row[0]: [float(number) for number in row[3].split()] for row in rows[1:3]}
    assert {name: len(numbers) for name, numbers in means.items()} == {"0": 3, "8": 3}
    # The same as evaluate prints.
    record = accepted("evaluate", "runs/8-2-1/version_0").out
    bits = float(re.search(r'"bits_per_byte": ([\d.]+)', record)[1])
    assert means["8"][1] == pytest.approx(bits, abs=1e-4)
    results = read_results(output.out)
    assert [*results] == [f"{name}, seed {seed}" for name in ("0", "8") for seed in (1, 2, 10)]
    assert results["8, seed 2"] == f"{means['8'][1]:.4f}"
    name, effect, interval, result, seeds = rows[4]
    differences = [b - a for a, b in zip(means["0"], means["8"], strict=True)]
    assert name == "0 against 8"
    assert float(effect) == pytest.approx(sum(differences) / 3, abs=1e-3)
    low, high = map(float, interval.split(" to "))
    assert low <= float(effect) <= high
    assert result.split(",")[0] in ("clear", "likely", "unclear", "none")
    assert min(map(abs, differences)) > 1e-3
    assert seeds == f"{sum(each > 0 for each in differences)} of 3"


def test_each_result_is_in_a_log_before_the_next_run_is_read(
    train, accepted, monkeypatch, tmp_path
):
    for seed in (1, 2):
        train(8, seed)
    runs = {seed: load_run(Path(f"runs/8-{seed}-0/version_0")) for seed in (1, 2)}
    shutil.rmtree(runs[2].folder / "checkpoints")
    log = tmp_path / "log"
    # A file keeps what is printed until it is flushed.
    with log.open("w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        with pytest.raises(ValueError, match="8-2-0"):
            measure_group("8", runs)
        assert [*read_results(log.read_text())] == ["8, seed 1"]


def test_other_settings_that_differ_are_named(accepted, train):
    train(0, 1)
    train(8, 1, "--model.optim.lr=0.002")
    output = accepted("compare", "runs", "--by=model.net.mem_len")
    assert "warning: runs also differ in model.optim.lr" in output.err
    assert "unknown: one seed" in output.out


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("seed_everything", "by: invalid seed_everything; expected another setting"),
        ("model.net.width", "by: invalid model.net.width; expected a setting of these runs"),
        (
            "model.net.n_layer",
            "by: invalid model.net.n_layer (the same in all runs); expected a setting",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(refused, train, key, message):
    train(0, 1)
    train(8, 1)
    code, line = refused("compare", "runs", f"--by={key}")
    assert code == 2
    assert line.startswith(message)


def test_a_seed_twice_in_a_group_is_refused_with_its_run(refused, train):
    train(0, 1)
    train(8, 1)
    train(8, 1)
    code, line = refused("compare", "runs", "--by=model.net.mem_len")
    assert code == 2
    assert line.endswith("; expected one run with seed 1 and model.net.mem_len 8")


@pytest.fixture
def train_lstm(accepted, small):
    def run(*more):
        data = [word for word in small if word.startswith(("--data", "--trainer.accelerator"))]
        net = ("--model.net=LSTM", "--model.net.n_layer=1", "--model.net.d_model=16")
        where = "--trainer.default_root_dir=runs/lstm"
        accepted("fit", *data, *net, *SMALL, "--seed_everything=1", where, *more)

    return run


def test_networks_are_groups_at_the_rate_with_the_best_validation(accepted, train, train_lstm):
    train(8, 1)
    train(8, 1, "--model.net.same_length=mem_len")
    train_lstm("--model.optim.lr=1e-5")
    train_lstm("--model.optim.lr=1e-2")
    rows = read_rows(accepted("compare", "runs", "--by=model.net").out)
    window = "TransformerXL (same_length mem_len)"
    other = "TransformerXL (same_length null)"
    assert rows[0] == ["model.net", "choices", "best validation"]
    assert ["LSTM", "2", "lr 0.01"] in rows[1:4]
    assert sorted(row[:2] for row in rows[1:4]) == [["LSTM", "2"], [window, "1"], [other, "1"]]
    assert sorted(row[:2] for row in rows[5:8]) == [["LSTM", "1"], [window, "1"], [other, "1"]]
    assert len(rows[9:]) == 3


@pytest.mark.slow
def test_a_sweep_with_wandb_and_plain_runs_are_compared_together(
    accepted, small, repository, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(repository))
    lstm = {"model": {"net": {"class_path": "LSTM", "n_layer": 1, "d_model": 16}}}
    window = {"model": {"net": {"n_layer": 1, "n_head": 2, "d_model": 8, "mem_len": 8}}}
    Path("lstm.yaml").write_text(yaml.safe_dump(lstm))
    Path("window.yaml").write_text(yaml.safe_dump(window))
    words = [*(word for word in small if not word.startswith("--model")), *SMALL]
    fit = ["${env}", "${interpreter}", "-m", "txl_lightning", "fit", *words, "${args}"]
    values = {"config": ["lstm.yaml", "window.yaml"], "model.optim.lr": [0.01]}
    values |= {"trainer.logger": ["WandbLogger"], "seed_everything": [0]}
    search = {"method": "grid", "metric": {"name": "val/loss"}, "command": fit}
    search["parameters"] = {key: {"values": values[key]} for key in values}
    Path("search.yaml").write_text(yaml.safe_dump(search))
    accepted("sweep", "search.yaml", "--out=runs/sweep")
    for config, seed, rate in (("lstm", 1, 0.01), ("lstm", 0, 1e-5), ("window", 1, 0.01)):
        more = (f"--seed_everything={seed}", f"--model.optim.lr={rate}")
        accepted("fit", f"--config={config}.yaml", *words, *more)
    output = accepted("compare", "runs", "--by=model.net")
    rows = read_rows(output.out)
    assert sorted(rows[1:3]) == [["LSTM", "2", "lr 0.01"], ["TransformerXL", "1", "lr 0.01"]]
    assert [row[1] for row in rows[4:6]] == ["2", "2"]
    assert "warning" not in output.err
