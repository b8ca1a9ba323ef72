"""Results of a sweep."""

import json
import shlex

import pytest

from txl_lightning.sweeps import engine, trial_results

VALUES = [{"data": {"tgt_len": 9, "order": "x"}}, {"data": {"tgt_len": 8, "order": "y"}}]
PARAMETERS = {
    "config": {"values": [json.dumps(value) for value in VALUES]},
    "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    "mixed": {"values": [4, None, True, "a word"]},
    "one": {"value": 1},
}


@pytest.fixture
def make_sweep(tmp_path):
    """Make a sweep whose trials have reported these values; those after `n_ended` are running."""

    def make(*values: float, n_ended: int = 99) -> engine.Sweep:
        config = {"method": "random", "metric": {"name": "val/loss"}, "parameters": PARAMETERS}
        folder = tmp_path / "my sweep"
        folder.mkdir(exist_ok=True)
        sweep = engine.open_sweep({"name": "some", **config}, folder, 1)
        for number, value in enumerate(values):
            trial = sweep.ask_trial()
            trial.set_user_attr("parameters", sweep.suggest_parameters(trial))
            trial.report(value, 1)
            if number < n_ended:
                sweep.study.tell(trial, value)
        return sweep

    return make


def test_rows_are_sorted_by_value_and_settings_are_columns(make_sweep):
    sweep = make_sweep(3.0, 2.0, 4.0, 1.0, n_ended=3)
    rows = trial_results.make_rows(sweep)
    assert [row["trial"] for row in rows] == [1, 0, 2, 3]
    assert [row["state"] for row in rows] == ["complete"] * 3 + ["running"]
    assert {"data.tgt_len", "data.order", "lr", "mixed", "one"} < rows[0].keys()
    assert {(row["data.tgt_len"], row["data.order"]) for row in rows} <= {(9, "x"), (8, "y")}
    trial_results.draw_figures(sweep)
    for name in ("results", "curves"):
        assert (sweep.folder / f"{name}.png").stat().st_size > 10_000
    sweep.config["metric"]["goal"] = "maximize"
    assert [row["trial"] for row in trial_results.make_rows(sweep)] == [2, 0, 1, 3]


def test_one_trial_has_a_curve_and_commands_that_can_be_pasted(make_sweep, capsys):
    trial_results.draw_figures(make_sweep())
    trial_results.draw_figures(sweep := make_sweep(1.0))
    assert [path.name for path in sweep.folder.glob("*.png")] == ["curves.png"]
    checkpoint = sweep.folder / "000" / "version_0" / "checkpoints" / "best.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    trial_results.print_results(sweep)
    lines = capsys.readouterr().out.splitlines()
    evaluate, compare = (shlex.split(line) for line in lines if "txl-lightning" in line)
    assert evaluate[1:] == ["evaluate", str(checkpoint), "--split", "val"]
    assert compare[1:] == ["compare", str(sweep.folder)]


def test_later_value_of_a_step_counts_and_a_truncated_line_does_not(tmp_path):
    texts = {
        0: "step,train/loss\n5,3.0\n",
        1: "step,val/loss,lr\n20,2.5,\n30,nan,\n40,2.0,640\n20,2.4\n50,1.2",
    }
    for number, text in texts.items():
        (tmp_path / f"version_{number}").mkdir()
        (tmp_path / f"version_{number}" / "metrics.csv").write_text(text)
    values, columns = trial_results.read_metric(tmp_path, "val/loss")
    assert values == [2.4, 2.0]
    assert set(columns) == {"step", "train/loss", "val/loss", "lr"}


def test_error_of_a_log_is_its_last_error_or_last_line(tmp_path):
    log = tmp_path / "log.txt"
    for text, expected in (
        ("one\nerror: first\nerror: second\nafter\n\n", "error: second"),
        ("Traceback\nKeyError: 3\n", "KeyError: 3"),
        ("", ""),
    ):
        log.write_text(text)
        assert trial_results.find_error(log) == expected
