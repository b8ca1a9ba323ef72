"""A sweep from its first trial to its last, with faults; its trials run a script."""

import json
import signal
import sys

import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from txl_lightning.sweeps import engine
from txl_lightning.sweeps.runner import claim_trial, make_command

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
    for name in ("results.png", "importances.png"):
        assert (place.out / name).read_bytes().startswith(b"\x89PNG")
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
         "the first trials failed; the last: exit code 1: error: lr: invalid impossible", 3, {0}),
        (["--lr=0.3"], {"parameters": {"learnrate": {"values": [0.1, 0.2]}}},
         "the first trials failed; the last: exit code 1: error: unknown option", 1, {0}),
        (SLOW, {"metric": {"name": "val/bits"}}, f"metric.name: invalid val/bits; {KNOWN}",
         1, range(1, 40)),
        (["--steps=9"], {"metric": {"name": "train/bits"}},
         # It may be logged late.
         f"metric.name: invalid train/bits; {KNOWN}", 1, {9}),
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


def test_hyperband_stops_a_bad_trial(place, sweep):
    hyperband = {"type": "hyperband", "min_iter": 4, "eta": 3}
    place.write(*SLOW, parameters={"lr": {"values": [0.3, 0.9]}}, early_terminate=hyperband)
    code, output = sweep()
    assert code == 0, output.err
    assert place.states == ["complete", "pruned"]
    assert 4 <= len(place.steps(1)) < 40
    assert "trial 1: pruned, val/bits_per_byte" in output.out


def test_count_is_the_total_number_of_trials(place, sweep):
    place.write(method="random", parameters={"lr": {"min": 0.1, "max": 1.0}})
    code, output = sweep()
    assert (code, "count: invalid None; expected a number of trials" in output.err) == (2, True)
    for count in (1, 3, 3):
        assert sweep(f"--count={count}")[0] == 0
        assert place.states == ["complete"] * count


@pytest.mark.parametrize(
    ("goal", "target", "values"),
    [("minimize", 0.35, [0.1, 0.3, 0.9]), ("maximize", 1.3, [0.3, 0.9, 0.1])],
)
def test_sweep_ends_when_the_target_is_reached(goal, target, values, place, sweep):
    metric = {"name": "val/bits_per_byte", "goal": goal, "target": target}
    place.write(metric=metric, parameters={"lr": {"values": values}})
    assert sweep()[0] == 0
    assert place.states == ["complete"] * 2


@pytest.mark.parametrize(("goal", "reported"), [("minimize", [3, 1, 1]), ("maximize", [3, 3, 4])])
def test_a_trial_reports_its_best_value_so_far(tmp_path, goal, reported):
    config = {"metric": {"name": "val/loss", "goal": goal}, "parameters": ONE, "method": "grid"}
    sweep = engine.open_sweep({"name": "one", **config}, tmp_path, 1)
    runner, last = claim_trial(sweep, 1), 2 if goal == "minimize" else 4
    (runner.folder / "version_0").mkdir()
    metrics = f"step,val/loss\n1,3\n2,1\n3,{last}\n"
    (runner.folder / "version_0" / "metrics.csv").write_text(metrics)
    assert runner.report_values()
    [trial] = sweep.study.trials
    assert [*trial.intermediate_values.values()] == reported


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


def test_signal_stops_the_sweep_also_when_its_trial_finishes(place):
    sweep = engine.open_sweep(engine.load_sweep_file(str(place.write())), place.folder, 1)
    runner = claim_trial(sweep, limit=1)
    runner.trial.report(0.5, 1)
    runner.signals.exit_code = 130
    with pytest.raises(SystemExit, match="130"):
        runner.finish(0, is_pruned=False)
    assert sweep.study.best_value == 0.5


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
@pytest.mark.parametrize("is_killed", [True, False])
def test_another_process_continues_a_killed_sweep_or_shares_a_running_one(is_killed, place, sweep):
    place.write("--steps=80", "--wait=0.05", parameters={"lr": {"values": [0.1, 0.3, 0.9]}})
    other = place.start()
    place.wait_for_step(0)
    if is_killed:
        other.kill()
        other.wait()
    orphan = (place.trial(0) / "process.lock").read_text().strip()
    code, output = sweep()
    assert code == 0, output.err
    printed, _ = other.communicate(timeout=100)
    started = [line for line in (output.out + printed).splitlines() if " starts: " in line]
    assert sorted(line.split()[1] for line in started) == ["0", "1", "2"]
    assert 0 < sum(line in output.out for line in started) < 3
    assert (f"waiting for process {orphan} of a killed sweep" in output.out) is is_killed
    assert place.states == ["complete"] * 3
    assert [place.steps(number) for number in range(3)] == [list(range(80))] * 3
