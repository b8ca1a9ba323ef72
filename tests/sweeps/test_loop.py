"""A sweep from its first trial to its last, with accidents; its trials are a script."""

import json
import os
import signal
from pathlib import Path

import pytest

from txl_lightning.sweeps import trials
from txl_lightning.sweeps.runner import alone

SCRIPT = str(Path(__file__).with_name("script.py"))


def complaint(output) -> str:
    [line] = [line for line in output.err.splitlines() if line.startswith("error: ")]
    return line


def test_a_grid_ends_by_itself_with_a_table_sorted_by_value_and_a_picture(place, sweep):
    place.write(parameters={"lr": {"values": [0.3, 0.9]}, "mem_len": {"values": [0, 50]}})
    code, output = sweep()
    assert code == 0, output.err
    best, *_, worst = place.rows
    assert (best["lr"], best["mem_len"]) == ("0.3", "50")
    assert float(best["value"]) == pytest.approx(1 / 3 - 50 / 1e4)
    assert (worst["lr"], worst["mem_len"]) == ("0.9", "0")
    assert [row["state"] for row in place.rows] == ["finished"] * 4
    assert (best["steps"], best["tokens"], best["reason"]) == ("3", "192", "")
    values = [float(row["value"]) for row in place.rows]
    assert values == sorted(values)
    said = json.loads((place.out / "results.json").read_text())
    assert {"file", "seed", "commit", "cpu", "method", "metric", "command"} <= said.keys()
    assert [row["trial"] for row in said["rows"]] == [int(row["trial"]) for row in place.rows]
    assert (place.out / "results.png").read_bytes().startswith(b"\x89PNG")
    lines = output.out.splitlines()
    assert "trial 1: lr 0.3, mem_len 0" in lines
    assert any(line.startswith("trial 1: val/bits_per_byte 0.3333, 3 steps") for line in lines)
    assert lines[lines.index("val/bits_per_byte, best first") + 2].split()[:3] == [
        best["trial"],
        "finished",
        "0.3283",
    ]


def test_the_goal_may_be_more(place, sweep):
    place.write(metric={"name": "val/bits_per_byte", "goal": "maximize"})
    assert sweep()[0] == 0
    assert [row["lr"] for row in place.rows] == ["0.9", "0.1", "0.3"]
    # The best of a trial that gets worse is its first.
    assert float(place.rows[0]["value"]) == pytest.approx(1.36)
    assert float(place.rows[0]["last"]) == pytest.approx(0.36 + 1 / 3)


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.9]])
def test_few_trials_have_a_table_and_a_picture_too(place, sweep, values):
    place.write(parameters={"lr": {"values": values}})
    assert sweep()[0] == 0
    assert len(place.rows) == len(values)
    assert (place.out / "results.png").exists()


def test_a_trial_that_fails_is_in_the_table_and_the_others_are_made(place, sweep):
    place.write(parameters={"lr": {"values": ["impossible", 0.3, 0.9]}})
    code, output = sweep()
    assert code == 0, output.err
    assert place.states == ["failed", "finished", "finished"]
    reason = "exit code 2: error: lr: invalid impossible; expected a number"
    assert place.rows[-1]["reason"] == reason
    assert f"trial 1: failed after 0 s ({reason})" in output.out


def test_one_that_is_killed_is_one_that_fails(place, sweep):
    command = ["sh", "-c", 'case "$*" in *=0.9*) kill -9 $$;; esac; exec "$@"', "sh"]
    place.write(command=[*command, "${interpreter}", SCRIPT, "${args}"])
    assert sweep()[0] == 0
    assert place.states == ["finished", "finished", "failed"]
    assert place.rows[-1]["reason"] == "killed by signal 9"


def test_three_failures_at_the_start_end_it(place, sweep):
    values = ["impossible", "impossible ", "impossible  ", 0.3]
    place.write("--lr=impossible", parameters={"x": {"values": values}})
    code, output = sweep()
    assert code == 2
    assert complaint(output).startswith("error: the first 3 trials failed; the last: exit code 2:")
    assert place.states == ["failed"] * 3


def test_a_misspelt_key_ends_it_at_once_and_what_to_do_then_is_said(place, sweep):
    place.write("--lr=0.3", parameters={"learnrate": {"values": [0.1, 0.2]}})
    code, output = sweep()
    assert code == 2
    assert "the first 1 trials failed" not in complaint(output)
    assert "learnrate: unknown key; did you mean lr?" in complaint(output)
    assert place.states == ["failed"]
    place.write(parameters={"lr": {"values": [0.1]}})
    code, output = sweep()
    assert complaint(output).endswith("(no trial of it ended well: rm -r runs/sweeps/search)")


def test_where_all_fail_there_is_no_best(place, sweep):
    place.write(parameters={"lr": {"values": ["impossible"]}})
    code, output = sweep()
    assert code == 2
    assert "no trial has come to a value; the last: exit code 2: error: lr:" in complaint(output)


def test_a_metric_that_is_not_logged_is_told_with_those_that_are(place, sweep):
    place.write(metric={"name": "train/bits"})
    for _ in range(2):
        code, output = sweep()
        assert code == 2
        said = complaint(output)
        assert said.startswith("error: metric.name: train/bits is logged by no trial; it must be")
        assert "step, train/tokens_seen, val/bits_per_byte" in said
        assert place.states == ["finished"]


def test_a_misspelt_metric_ends_the_first_trial_with_its_first_validation(place, sweep):
    place.write("--steps=80", "--wait=0.05", metric={"name": "val/bits"})
    code, output = sweep()
    assert code == 2
    assert complaint(output).startswith("error: metric.name: val/bits is logged by no trial; it")
    assert 0 < len(place.steps(1)) < 80
    place.write()
    code, output = sweep()
    assert complaint(output).endswith("(no trial of it ended well: rm -r runs/sweeps/search)")


def test_hyperband_ends_a_hopeless_trial_early(place, sweep):
    place.write(
        "--steps=40",
        "--wait=0.05",
        parameters={"lr": {"values": [0.3, 0.9]}},
        early_terminate={"type": "hyperband", "min_iter": 4, "eta": 3},
    )
    code, output = sweep()
    assert code == 0, output.err
    assert place.states == ["finished", "stopped"]
    assert 4 <= len(place.steps(2)) < 40
    assert place.rows[1]["state"] == "stopped"
    assert float(place.rows[1]["last"]) == pytest.approx(0.36 + 1 / len(place.steps(2)))
    assert "trial 2: stopped, val/bits_per_byte" in output.out


def test_random_trials_are_as_many_as_are_asked_for_in_all_and_are_gone_on_with(place, sweep):
    parameters = {"lr": {"min": 0.1, "max": 1.0}}
    place.write(method="random", parameters=parameters)
    code, output = sweep()
    assert (code, "count: missing; it must be how many trials to make" in output.err) == (2, True)
    assert sweep("--count=2")[0] == 0
    assert sweep("--count=4")[0] == 0
    assert len(place.saved["trials"]) == 4
    assert sweep("--count=4", "--out=again")[0] == 0
    again = trials.load(place.folder / "again").trials
    assert [trial.parameters for trial in again] == [
        trial["parameters"] for trial in place.saved["trials"]
    ]
    code, output = sweep("--count=4")
    assert code == 0
    assert "trial 5" not in output.out


def test_the_files_own_cap_is_a_count(place, sweep):
    place.write(method="random", parameters={"lr": {"min": 0.1, "max": 1.0}}, run_cap=2)
    assert sweep()[0] == 0
    assert place.states == ["finished"] * 2


def test_it_ends_where_a_trial_is_as_good_as_is_wanted(place, sweep):
    place.write(metric={"name": "val/bits_per_byte", "goal": "minimize", "target": 0.35})
    assert sweep()[0] == 0
    assert place.states == ["finished"] * 2


def test_a_target_of_more_is_reached_from_below(place, sweep):
    metric = {"name": "val/bits_per_byte", "goal": "maximize", "target": 1.3}
    place.write(metric=metric, parameters={"lr": {"values": [0.3, 0.9, 0.1]}})
    assert sweep()[0] == 0
    assert sorted(row["lr"] for row in place.rows) == ["0.3", "0.9"]


def test_ctrl_c_reaches_no_trial_by_itself(place, sweep):
    place.write(parameters={"lr": {"values": [0.3]}})
    assert sweep()[0] == 0
    assert (place.out / "001" / "leads_a_session").read_text() == "True"


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"parameters": {"lr": {"values": [0.5]}}}, (), "parameters: not as when the sweep in"),
        ({"metric": {"name": "val/nats"}}, (), "metric: not as when the sweep in"),
        ({"method": "random", "run_cap": 2}, (), "method: not as when the sweep in"),
        ({}, ("--seed=2",), "seed: not as when the sweep in"),
    ],
)
def test_another_search_does_not_go_on_in_the_same_folder(place, sweep, changes, options, said):
    place.write()
    assert sweep("--count=1")[0] == 0
    place.write(**changes)
    code, output = sweep(*options)
    assert code == 2
    assert said in complaint(output)
    assert place.states == ["finished"]


def test_a_folder_that_is_not_a_sweeps_is_refused(place, sweep):
    place.write()
    place.out.mkdir(parents=True)
    (place.out / "sweep.json").write_text('{"trials": 3}')
    code, output = sweep()
    assert (code, "sweep.json is not a sweep's" in complaint(output)) == (2, True)


def test_two_sweeps_are_not_made_in_one_folder(place, sweep):
    place.write()
    place.out.mkdir(parents=True)
    with alone(place.out):
        code, output = sweep()
    assert code == 2
    assert f"is process {os.getpid()}'s, which sweeps there" in complaint(output)
    assert sweep()[0] == 0


@pytest.mark.parametrize(("mode", "expected"), [(None, "offline"), ("online", "online")])
def test_trials_are_grouped_and_sent_nowhere_unless_it_is_said(
    place, sweep, monkeypatch, mode, expected
):
    monkeypatch.delenv("WANDB_MODE")
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    place.write(name="which one", parameters={"lr": {"values": [0.3]}})
    assert sweep()[0] == 0
    environment = json.loads((place.trial(1) / "environment").read_text())
    assert (environment["WANDB_MODE"], environment["WANDB_RUN_GROUP"]) == (expected, "which one")


def test_a_signal_breaks_off_a_trial_that_is_gone_on_with_first(place, sweep):
    place.write("--steps=80", "--wait=0.05", parameters={"lr": {"values": [0.3]}})
    ended, said = place.stop(place.start(), 1, signal.SIGINT)
    assert ended == 130, said
    assert "the same command goes on" in said
    assert place.states == ["interrupted"]
    done = len(place.steps(1))
    assert 0 < done < 80
    ended, output = sweep()
    assert ended == 0, output.err
    assert "trial 1 goes on: lr 0.3" in output.out
    assert place.states == ["finished"]
    assert place.steps(1) == list(range(80))
    assert [row["steps"] for row in place.rows] == ["80"]


def test_who_asks_a_sweep_to_save_asks_its_trial_which_goes_on(place):
    place.write("--steps=40", "--wait=0.05", parameters={"lr": {"values": [0.3]}})
    ended, said = place.stop(place.start(), 1, signal.SIGUSR1)
    assert ended == 0, said
    assert (place.trial(1) / "saved").exists()
    assert place.states == ["finished"]
    assert place.steps(1) == list(range(40))


def test_a_sweep_that_is_killed_leaves_its_trial_at_work_and_the_next_waits_for_it(place, sweep):
    place.write("--steps=40", "--wait=0.05", parameters={"lr": {"values": [0.3, 0.9]}})
    ended, _ = place.stop(place.start(), 1, signal.SIGKILL)
    assert ended == -signal.SIGKILL
    assert place.states == ["running"]
    orphan = (place.out / "trial.lock").read_text().strip()
    code, output = sweep()
    assert code == 0, output.err
    assert f"waiting for process {orphan}, a trial that goes on" in output.out
    assert place.states == ["finished"] * 2
    for number in (1, 2):
        assert place.steps(number) == list(range(40))


def test_a_trial_that_somebody_stops_is_not_one_that_fails(place, sweep):
    """A machine that is shut down asks all processes to stop, in any order."""
    place.write(command=["sh", "-c", "kill -TERM $$"])
    code, output = sweep()
    assert code == 143
    assert place.states == ["interrupted"]
    assert "trial 1: interrupted" in output.out


def test_a_trial_that_was_being_stopped_when_the_sweep_was_killed_has_been_stopped(place, sweep):
    place.write(parameters={"lr": {"values": [0.3, 0.9]}})
    assert sweep("--count=1")[0] == 0
    begun = trials.load(place.out)
    trials.save(begun.with_trial(trials.Trial(2, {"lr": 0.9}, "stopping")), place.out)
    assert sweep()[0] == 0
    assert place.states == ["finished", "stopped"]
    assert not place.trial(2).exists()


def test_what_is_saved_is_whole_or_as_it_was(place, monkeypatch):
    one = trials.Sweep({"method": "grid"}, 1, (trials.Trial(1, {"lr": 0.1}, history=(1.0, 0.5)),))
    trials.save(one, place.folder)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trials.json, "dump", full)
    with pytest.raises(ValueError, match="No space left") as error:
        trials.save(one.with_trial(trials.Trial(2, {})), place.folder)
    assert error.value.exit_code == 6
    assert trials.load(place.folder) == one
