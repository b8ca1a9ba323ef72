"""A sweep from its first trial to its last, with faults; its trials run a script."""

import json
import shlex
import signal
import sys
from contextlib import nullcontext

import pytest
import torch
from optuna.trial import TrialState
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from tests.helpers.waiting import wait_until
from txl_lightning.commands.sweep import find_groups, print_results
from txl_lightning.sweeps.gpus import SharedGpus, group_gpus, list_gpus, require_share
from txl_lightning.sweeps.search import load_sweep_file, open_study, suggest_parameters
from txl_lightning.sweeps.trials import Sweep, make_command, read_metric

ONE = {"lr": {"values": [0.3]}}
SLOW = ("--steps=40", "--wait=0.05")


def test_grid_ends_by_itself_with_the_best_trial_first(place, sweep, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    parameters = {"lr": {"values": [0.3, 0.9]}, "mem_len": {"values": [0, 50]}}
    place.write(parameters=parameters, name="a group")
    code, output = sweep()
    assert code == 0, output.err
    order = [(row["lr"], row["mem_len"]) for row in place.rows]
    assert order == [("0.3", "50"), ("0.3", "0"), ("0.9", "50"), ("0.9", "0")]
    assert place.states == ["complete"] * 4
    assert float(place.rows[0]["value"]) == pytest.approx(1 / 3 - 50 / 1e4)
    about = json.loads((place.out / "results.json").read_text())
    assert {"seed", "commit", "cpu", "method", "metric", "command"} <= about.keys()
    assert "trial 0 starts: lr 0.3, mem_len 0" in output.out.splitlines()
    assert "trial 0: val/bits_per_byte 0.3333" in output.out.splitlines()
    evaluate, compare = (
        shlex.split(line) for line in output.out.splitlines() if line[:5] == "  txl"
    )
    best = place.out / "001" / "version_0"
    assert evaluate[1:] == ["evaluate", str(best.relative_to(place.folder)), "--split", "val"]
    assert compare[1:] == ["compare", "runs/sweeps/search"]
    environment = json.loads((place.trial(0) / "environment").read_text())
    expected = {"WANDB_MODE": "offline", "WANDB_RUN_GROUP": "a group", "leads_a_session": "True"}
    assert environment.items() >= expected.items()


def test_failed_trial_is_recorded_and_the_sweep_continues(place, sweep):
    metric = {"name": "val/bits_per_byte", "goal": "maximize"}
    place.write(parameters={"lr": {"values": ["impossible", 0.3, 0.9]}}, metric=metric)
    code, output = sweep()
    assert code == 0, output.err
    assert place.states == ["fail", "complete", "complete"]
    reason = "exit code 1: error: lr: invalid impossible; expected a number"
    assert place.rows[-1]["reason"] == reason
    # If values get worse, the first one is the best.
    assert float(place.rows[0]["value"]) == pytest.approx(1.36)


KNOWN = "expected one that is logged: step, train/loss, val/bits_per_byte"


@pytest.mark.parametrize(
    ("options", "changes", "message", "n_trials", "n_steps"),
    [
        (["--lr=impossible"], {"parameters": {"x": {"values": [1, 2, 3, 4]}}},
         "no trial has a value; the last: exit code 1: error: lr: invalid impossible", 3, {0}),
        (["--lr=0.3"], {"parameters": {"learnrate": {"values": [0.1, 0.2]}}},
         "no trial has a value; the last: exit code 1: error: unknown option", 2, {0}),
        (["--steps=9"], {"metric": {"name": "train/bits"}},
         # It may be logged late.
         f"no trial has a value; the last: metric.name: invalid train/bits; {KNOWN}", 3, {9}),
        (["--steps=2", "--nan=true"], {},
         "no trial has a value; the last: metric.name: invalid val/bits_per_byte; expected a "
         "finite value", 3, {2}),
    ],
)  # fmt: skip
def test_sweep_whose_first_trials_fail_ends_early(
    options, changes, message, n_trials, n_steps, place, sweep
):
    place.write(*options, **changes)
    code, output = sweep()
    assert (code, f"error: {message}" in output.err) == (2, True)
    assert place.states == ["fail"] * n_trials
    assert len(place.steps(0)) in n_steps


def test_a_mistyped_command_is_corrected_in_the_same_folder(place, sweep):
    place.write("--learnrate=1")
    assert sweep()[0] == 2
    assert place.states == ["fail"] * 3
    place.write("--steps=2")
    code, output = sweep()
    assert code == 0, output.err
    assert "command changed, and no trial has a value: all begin again" in output.err
    assert "trial 0 starts: lr 0.1" in output.out
    assert place.states == ["complete"] * 3


def test_a_mistyped_metric_is_corrected_without_training_again(place, sweep):
    place.write(metric={"name": "train/bits"})
    assert sweep()[0] == 2
    times = [(place.trial(n) / "version_0").stat().st_mtime_ns for n in range(3)]
    place.write()
    code, output = sweep()
    assert code == 0, output.err
    assert "trial 0 continues: lr 0.1" in output.out
    assert [place.steps(number) for number in range(3)] == [[0, 1, 2]] * 3
    assert times == [(place.trial(n) / "version_0").stat().st_mtime_ns for n in range(3)]


@pytest.mark.parametrize(("metric", "state"), [("val/bits_per_byte", "complete"), ("a", "fail")])
def test_another_command_is_refused_where_trials_have_runs(place, sweep, metric, state):
    place.write(metric={"name": metric})
    sweep()
    assert place.states == [state] * 3
    place.write("--steps=2", metric={"name": metric})
    code, output = sweep()
    assert (code, "command: invalid " in output.err) == (2, True)
    assert "or another folder as out" in output.err


@pytest.mark.parametrize(("method", "begins"), [("random", True), ("bayes", False)])
def test_another_metric_begins_again_only_if_runs_get_the_values_that_they_have(
    place, method, begins
):
    """After five trials with values, an estimator proposes others than without."""
    parameters = {"lr": {"min": 0.1, "max": 1.0}}
    config = load_sweep_file(place.write(method=method, parameters=parameters))
    for number in range(6):
        (place.trial(number) / "version_0").mkdir(parents=True)
    study = open_study(config, place.out, 1)
    for _ in range(6):
        study.tell(study.ask(), state=TrialState.FAIL)
    changed = config | {"metric": {"name": "another"}}
    with nullcontext() if begins else pytest.raises(ValueError, match="metric: invalid"):
        assert open_study(changed, place.out, 1).trials == []


def test_another_command_is_refused_where_runs_are_of_an_earlier_journal(place):
    config = load_sweep_file(place.write())
    (place.trial(0) / "version_0").mkdir(parents=True)
    open_study(config, place.out, 1)
    with pytest.raises(ValueError, match="command: invalid"):
        open_study(config | {"command": ["another"]}, place.out, 1)


def test_hyperband_stops_a_bad_trial(place, sweep):
    hyperband = {"type": "hyperband", "min_iter": 4, "eta": 3}
    place.write(*SLOW, parameters={"lr": {"values": [0.3, 0.9]}}, early_terminate=hyperband)
    code, output = sweep()
    assert code == 0, output.err
    assert place.states == ["complete", "pruned"]
    assert 4 <= len(place.steps(1)) < 40
    assert "trial 1: pruned" in output.out


def test_count_is_the_total_number_of_trials(place, sweep):
    place.write(method="random", parameters={"lr": {"min": 0.1, "max": 1.0}})
    code, output = sweep()
    assert (code, "count: invalid None; expected a number of trials" in output.err) == (2, True)
    for count in (1, 3, 3):
        assert sweep(f"--count={count}")[0] == 0
        assert place.states == ["complete"] * count


@pytest.mark.parametrize(("goal", "reported"), [("minimize", [3, 1, 1]), ("maximize", [3, 3, 4])])
def test_a_trial_reports_its_best_value_so_far(place, goal, reported):
    metric = {"name": "val/loss", "goal": goal}
    sweep = Sweep(load_sweep_file(place.write(metric=metric)), place.folder, 1)
    trial = sweep.study.ask()
    last = 2 if goal == "minimize" else 4
    (place.folder / "version_0").mkdir()
    (place.folder / "version_0" / "metrics.csv").write_text(f"step,val/loss\n1,3\n2,1\n3,{last}\n")
    assert sweep.report_values(trial, place.folder) == reported[-1]
    assert [*sweep.study.trials[0].intermediate_values.values()] == reported


def test_command_is_that_of_wandbs_agent_in_the_trials_folder(tmp_path):
    parameters = {"model.net.mem_len": 7, "data.path": "a text"}
    command = ["${env}", "A=1", "${interpreter}", "-m", "txl_lightning", "fit", "${args}"]
    args = create_sweep_command_args({"args": {k: {"value": v} for k, v in parameters.items()}})
    # W&B writes Python's None and False, which are texts in YAML.
    ours = {"model.net.clamp_len": None, "model.compile": False}
    assert make_command(command, parameters | ours, tmp_path) == [
        *("/usr/bin/env", "A=1", sys.executable, "-m", "txl_lightning", "fit"),
        *args["args"],
        *("--model.net.clamp_len=null", "--model.compile=false"),
        *(f"--trainer.default_root_dir={tmp_path}", "--resume=auto"),
    ]


@pytest.mark.parametrize(
    ("name", "code", "states"), [("TERM", 143, ["running"]), ("KILL", 2, ["fail"] * 3)]
)
def test_trial_that_another_process_stops_is_interrupted_and_a_killed_one_fails(
    name, code, states, place, sweep
):
    """At shutdown, a machine sends SIGTERM to all processes, in any order."""
    search = place.write()
    search.write_text(search.read_text().replace("${env}", f"sh\n- -c\n- kill -{name} $$"))
    exit_code, output = sweep()
    assert (exit_code, place.states) == (code, states)
    assert ("killed by signal 9" in output.err) is (name == "KILL")


def test_trial_that_a_request_to_save_ends_before_it_is_handled_starts_again(place, sweep):
    """A Python that has just started has no handler, and such a signal ends it."""
    once = f"mkdir {place.folder / 'once'} && kill -USR1 $$"
    search = place.write(parameters=ONE)
    search.write_text(
        search.read_text().replace("${env}", f"sh\n- -c\n- '{once}; exec \"$@\"'\n- sh")
    )
    assert sweep()[0] == 0
    assert place.states == ["complete"]


def test_signal_ends_the_sweep_also_when_its_trial_finishes(place, monkeypatch):
    sweep = Sweep(load_sweep_file(place.write()), place.folder, 1)
    monkeypatch.setattr(
        sweep, "run_process", lambda *_: sweep.signals.note_stop(signal.SIGINT, None)
    )
    monkeypatch.setattr(sweep, "report_values", lambda *_, **__: 0.5)
    with pytest.raises(SystemExit, match="130"):
        sweep.run(3, 1, lambda _: None)
    assert [trial.value for trial in sweep.study.trials] == [0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 0)]
)
def test_signal_is_passed_on_and_the_same_command_continues(signum, code, place, sweep):
    place.write(*SLOW, parameters=ONE)
    process = place.start()
    place.wait_for_step(0)
    process.send_signal(signum)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == code, printed
    assert (place.trial(0) / "saved").exists() is (signum == signal.SIGUSR1)
    if code:
        assert "trial 0: interrupted; the same command continues" in printed
        assert 0 < len(place.steps(0)) < 40
        assert "trial 0 continues: lr 0.3" in sweep()[1].out
    assert place.states == ["complete"]
    assert place.steps(0) == list(range(40))


@pytest.mark.slow
def test_a_killed_sweep_continues_once_its_trial_has_ended(place, sweep):
    place.write(*SLOW, parameters={"lr": {"values": [0.1, 0.3]}})
    other = place.start()
    place.wait_for_step(0)
    other.kill()
    other.communicate()
    code, output = sweep()
    assert (code, "search: another process trains there" in output.err) == (6, True)
    wait_until(lambda: len(place.steps(0)) == 40)
    wait_until(lambda: sweep()[0] == 0)
    assert place.states == ["complete"] * 2
    assert [place.steps(number) for number in range(2)] == [list(range(40))] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visible", "n_gpu", "n_job", "seen"),
    [
        ("3,GPU-5", 2, 2, {"3", "GPU-5"}),
        ("3,GPU-5,1,0", 4, 2, {"3,GPU-5", "1,0"}),
        # Three trials share two GPUs; a trial alone may use both.
        ("3,GPU-5", 2, 3, {"3", "GPU-5"}),
        ("3,GPU-5", 2, 1, {"3,GPU-5"}),
        ("", 0, 2, {""}),
    ],
)
def test_each_of_the_trials_that_run_at_once_sees_its_share_of_the_gpus(
    place, sweep, monkeypatch, visible, n_gpu, n_job, seen
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpu)
    place.write(*SLOW)
    code, output = sweep("--jobs", str(n_job))
    assert code == 0, output.err
    environments = [json.loads((place.trial(n) / "environment").read_text()) for n in range(3)]
    assert {each["CUDA_VISIBLE_DEVICES"] for each in environments} == seen


@pytest.mark.parametrize(
    ("names", "n_job", "groups"),
    [
        ("01234567", 2, ["0,1,2,3", "4,5,6,7"]),
        ("01234", 2, ["0,1", "2,3"]),
        ("012", 3, ["0", "1", "2"]),
        ("01", 3, ["0", "1"]),
        ("", 3, []),
    ],
)
def test_jobs_get_equally_many_gpus_or_share_single_ones(names, n_job, groups):
    assert group_gpus([*names], n_job) == groups


@pytest.mark.parametrize(
    ("visible", "n_gpu", "names"),
    [
        (None, 2, ["0", "1"]),
        ("0,-1,1", 1, ["0"]),
        ("0,7", 1, ["0"]),
        ("GPU-5,MIG-1", 2, ["GPU-5", "MIG-1"]),
        ("-1", 0, []),
        ("", 0, []),
    ],
)
def test_gpus_are_those_before_the_first_invalid_name(monkeypatch, visible, n_gpu, names):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    # What CUDA reports with these names.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpu)
    assert list_gpus() == names


@pytest.fixture
def _four_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("_four_gpus")
@pytest.mark.parametrize(
    "words", [["--trainer.devices=3"], ["--trainer.devices", "3"], ["--config=many.yaml"]]
)
def test_a_command_for_more_gpus_than_a_trial_has_is_refused_before_any_trial(place, sweep, words):
    (place.folder / "many.yaml").write_text("trainer: {devices: 3}")
    place.write(*words)
    code, output = sweep("--jobs=2")
    message = "error: trainer.devices: invalid 3; expected at most 2, the GPUs of a trial"
    assert (code, output.err.splitlines()[-1]) == (2, message)
    assert not place.trial(0).exists()


@pytest.mark.usefixtures("_four_gpus")
def test_a_trial_that_asks_for_more_gpus_than_it_sees_fails_without_a_process(place, sweep):
    parameters = {"lr": {"value": 0.3}, "trainer.devices": {"values": [2, 3]}}
    place.write(parameters=parameters)
    assert sweep("--jobs=2")[0] == 0
    assert place.states == ["complete", "fail"]
    assert place.rows[-1]["reason"].startswith("trainer.devices: invalid 3; expected at most 2")
    assert not (place.trial(1) / "log.txt").exists()


@pytest.mark.parametrize(
    ("words", "n_gpu"),
    [
        (["--trainer.devices=4"], 4),
        (["--trainer.devices", "2,3"], 4),
        (["--trainer.devices=[0]"], 1),
        (["--trainer.devices=auto"], 1),
        (["--trainer.devices=-1"], 1),
        (["--config=hardware/eight_gpus"], 8),
        (["--config=hardware/eight_gpus", "--trainer.devices=2"], 2),
        (["--trainer.devices=9", "--config={trainer: {accelerator: cpu}}"], 1),
        (["--config=none.yaml"], 1),
    ],
)
def test_a_command_asks_for_the_gpus_of_its_options_and_configs(words, n_gpu):
    require_share(words, n_gpu)
    require_share(words, 0)
    if n_gpu > 1:
        with pytest.raises(ValueError, match=r"^trainer\.devices: invalid .* at most "):
            require_share(words, n_gpu - 1)


def test_a_trial_gets_a_gpu_that_the_fewest_others_use():
    gpus = SharedGpus(["0", "1"])
    with gpus.borrow() as first, gpus.borrow() as second:
        assert (first, second) == ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})
    with gpus.borrow() as first:
        with gpus.borrow() as second:
            pass
        with gpus.borrow() as third:
            assert second == third != first


@pytest.mark.slow
def test_trials_run_at_once_and_all_of_them_end_after_a_signal(place, sweep):
    place.write(*SLOW, parameters={"lr": {"values": [0.1, 0.3, 0.9]}})
    process = place.start("--jobs=2")
    place.wait_for_step(0)
    place.wait_for_step(1)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 143, printed
    assert place.states == ["running"] * 2
    assert sweep("--jobs=3")[0] == 0
    assert place.states == ["complete"] * 3
    assert [place.steps(number) for number in range(3)] == [list(range(40))] * 3


VALUES = [{"data": {"tgt_len": 9, "order": "x"}}, {"data": {"tgt_len": 8, "order": "y"}}]
PARAMETERS = {
    "config": {"values": [json.dumps(value) for value in VALUES]},
    "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    "mixed": {"values": [4, None, True, "a word"]},
    "one": {"value": 1},
}


@pytest.mark.parametrize(
    ("goal", "order"), [("minimize", [1, 0, 2, 3]), ("maximize", [2, 0, 1, 3])]
)
def test_rows_are_sorted_by_value_and_settings_are_columns(place, goal, order):
    metric = {"name": "val/loss", "goal": goal}
    path = place.write(method="random", parameters=PARAMETERS, metric=metric)
    sweep = Sweep(load_sweep_file(path), place.folder, 1)
    for number, value in enumerate([3.0, 2.0, 4.0, 1.0]):
        trial = sweep.study.ask()
        trial.set_user_attr("parameters", suggest_parameters(sweep.study, trial, sweep.config))
        trial.report(value, 1)
        if number < 3:
            sweep.study.tell(trial, value)
    rows = sweep.make_rows()
    assert [row["trial"] for row in rows] == order
    assert [row["state"] for row in rows] == ["complete"] * 3 + ["running"]
    assert {"data.tgt_len", "data.order", "lr", "mixed", "one"} < rows[0].keys()
    assert {(row["data.tgt_len"], row["data.order"]) for row in rows} <= {(9, "x"), (8, "y")}
    print_results(sweep)


@pytest.mark.parametrize(
    ("trials", "option"),
    [
        ([{"mem_len": 0, "seed_everything": 1}, {"mem_len": 8, "seed_everything": 2}], "mem_len"),
        (
            [{"lr": 0.1, "a": 1, "seed_everything": 1}, {"lr": 1, "a": 2, "seed_everything": 2}],
            "lr,a",
        ),
        ([{"seed_everything": 1}, {"seed_everything": 2}], None),
        ([{"lr": 0.1, "seed_everything": 1}, {"lr": 1, "seed_everything": 1}], None),
        ([{"config": "a", "seed_everything": 1}, {"config": "b", "seed_everything": 2}], None),
    ],
)
def test_seeds_of_trials_are_grouped_by_what_else_they_vary(trials, option):
    rows = [
        {"trial": n, "state": "complete", "value": n, "seconds": n, "validations": 1} | each
        for n, each in enumerate(trials)
    ]
    assert find_groups(rows) == (f" --by {option}" if option else "")


def test_metrics_are_those_of_the_last_run_of_a_trial(tmp_path):
    texts = {
        0: "step,train/loss\n5,3.0\n",
        10: "step,val/loss,lr\n20,2.5,\n30,nan,\n40,2.0,640\n20,2.4\n50,1.2",
    }
    for number, text in texts.items():
        (tmp_path / f"version_{number}").mkdir()
        (tmp_path / f"version_{number}" / "metrics.csv").write_text(text)
    assert read_metric(tmp_path, "val/loss") == ([2.4, 2.0], ["step", "val/loss", "lr"])
