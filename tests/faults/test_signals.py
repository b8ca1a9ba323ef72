"""A signal waits for the step to end; what it leaves is where training goes on exactly."""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.faults

AUTO = "--resume=auto"
CODES = {"TERM": 143, "INT": 130, "HUP": 143}


def went_on(whole, place, ranks=1):
    """Let both runs come to their ends."""
    assert set(whole.fit(ranks=ranks).codes) == {0}
    ended = place.fit(AUTO, ranks=ranks)
    assert set(ended.codes) == {0}, ended.output
    assert "resume: runs/version_0/checkpoints/last.ckpt" in ended.output


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("where", ["13", "mid16", "val"])
def test_it_stops_after_the_step_and_goes_on_exactly(make_place, same, name, where):
    whole, stopped = make_place("whole"), make_place("stopped")
    ended = stopped.fit(fault=f"{name}:{where}")
    assert ended.code == CODES[name], ended.output
    step = {"13": 13, "mid16": 17, "val": 10}[where]
    assert stopped.held()["global_step"] == step
    assert f"saved after step {step}" in ended.output
    went_on(whole, stopped)
    same(whole, stopped)


@pytest.mark.parametrize("name", CODES)
def test_where_nothing_is_trained_it_ends_at_once(place, name):
    assert place.fit("--trainer.max_steps=3").code == 0
    options = [option for option in place.small if "checkpoint" not in option]
    checkpoint = f"--ckpt_path={place.newest()}"
    ended = place.end(place.fork("test", *options, checkpoint, fault=f"{name}:test"))
    assert ended.code == CODES[name]
    assert "Traceback" not in ended.output
    assert "test/nats" not in ended.output


def test_in_mid_window_it_waits_for_the_step_to_be_whole(make_place, same):
    options = ["--trainer.accumulate_grad_batches=3", "--trainer.val_check_interval=30"]
    whole, stopped = make_place("whole"), make_place("stopped")
    # The callback is asked after each batch: after the first with global_step 5, it is in the midst
    # of the sixth step.
    ended = stopped.fit(*options, fault="TERM:mid5")
    assert ended.code == 143
    assert stopped.held()["global_step"] == 6
    assert max(line["batch"] for line in stopped.lines()) == 3 * 6 - 1
    assert whole.fit(*options).code == 0
    assert stopped.fit(*options, AUTO).code == 0
    same(whole, stopped)


def test_usr1_saves_and_training_goes_on(make_place, same):
    # No other occasion to save before step 10.
    rare = "--checkpoint.every_n_steps=30"
    whole, asked = make_place("whole"), make_place("asked")
    assert whole.fit(rare).code == 0
    ended = asked.fit(rare, fault="USR1:5,KILL:8")
    assert ended.code == -9
    assert "saved after step 5" in ended.output
    assert asked.held()["global_step"] == 5
    assert asked.fit(rare, AUTO).code == 0
    same(whole, asked)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("whom", ["", "0", "1"])
def test_ranks_agree_when_to_stop_whoever_got_the_signal(make_place, same, name, whom):
    whole, stopped = make_place("whole"), make_place("stopped")
    since = time.monotonic()
    processes = stopped.fork("fit", *stopped.small, fault=f"{name}:13:{whom}", ranks=2)
    ended = stopped.end(processes, since)
    assert ended.codes == [CODES[name]] * 2, ended.output
    assert stopped.held()["global_step"] in (13, 14)
    if name == "TERM":
        went_on(whole, stopped, ranks=2)
        same(whole, stopped)


@pytest.mark.parametrize("whom", ["", "1"])
def test_usr1_to_a_rank_saves_on_all_and_goes_on(place, whom):
    ended = place.fit("--checkpoint.every_n_steps=99", fault=f"USR1:4:{whom}", ranks=2)
    assert ended.codes == [0, 0]
    assert "saved after step" in ended.output
    assert {line["rank"] for line in place.lines() if line["step"] == 40} == {0, 1}


def launched(place, launcher):
    """Two processes in the midst of training, and since when they are."""
    process = place.launch_two(launcher, PAUSE="0.2")
    return process, place.wait_for_step(3)


@pytest.mark.parametrize(
    ("launcher", "to_all", "codes"),
    [
        ("lightning", False, {143}),
        ("lightning", True, {143}),
        ("torchrun", False, {1, 143, -15}),
        ("torchrun", True, {1, 143, -15}),
    ],
)
def test_a_launchers_processes_end_in_time_and_exactly(make_place, same, launcher, to_all, codes):
    whole, stopped = make_place("whole"), make_place("stopped")
    process, since = launched(stopped, launcher)
    for pid in stopped.alive() if to_all else [process.pid]:
        os.kill(pid, signal.SIGTERM)
    ended = stopped.wait(process, since)
    assert ended.seconds < 30
    assert stopped.alive() == []
    assert ended.code in codes, ended.output
    went_on(whole, stopped, ranks=2)
    same(whole, stopped)


def test_a_signal_to_the_second_process_of_lightnings_launcher_stops_both(make_place, same):
    whole, stopped = make_place("whole"), make_place("stopped")
    process, since = launched(stopped, "lightning")
    [second] = set(stopped.alive()) - {process.pid}
    os.kill(second, signal.SIGTERM)
    ended = stopped.wait(process, since)
    assert (ended.code, stopped.alive()) == (143, [])
    assert ended.seconds < 30
    went_on(whole, stopped, ranks=2)
    same(whole, stopped)


def test_a_second_signal_in_earnest_does_not_wait(place):
    process = place.fork("fit", *place.small, PAUSE="20")
    place.wait_for_step(0)
    time.sleep(1)
    os.kill(process[0].pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(process[0].pid, signal.SIGTERM)
    time.sleep(2.5)
    assert process[0].exitcode is None
    since = time.monotonic()
    os.kill(process[0].pid, signal.SIGTERM)
    ended = place.end(process, since)
    assert ended.code == 143
    assert ended.seconds < 5
    assert "TERM again: stopped at once" in ended.output
