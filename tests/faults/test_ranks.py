"""One of several processes dies, or fails: the others do not wait for it."""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("launcher", "rank"), [("lightning", 0), ("lightning", 1), ("torchrun", 0), ("torchrun", 1)]
)
def test_processes_of_a_launcher_end_in_time_when_one_is_killed(place, finish, launcher, rank):
    process = place.launch_two(launcher, fault=f"KILL:13:{rank}")
    ended = place.wait(process, place.wait_for_step(13))
    assert ended.code != 0, ended.output
    assert ended.seconds < 30
    assert place.alive() == []
    finish(ranks=2)


@pytest.mark.parametrize(
    ("fault", "rank", "code"), [("KILL", 0, -9), ("KILL", 1, -9), ("raise", 0, 1), ("raise", 1, 1)]
)
def test_processes_without_a_launcher_end_in_time_when_one_dies(place, finish, fault, rank, code):
    """As where srun starts them."""
    processes = place.fork("fit", *place.small, fault=f"{fault}:13:{rank}", ranks=2)
    ended = place.end(processes, place.wait_for_step(13))
    assert ended.codes[rank] == code, ended.output
    assert ended.codes[1 - rank] != 0
    assert ended.seconds < 30
    assert ("an accident" in ended.output) == (fault == "raise")
    finish(ranks=2)


def test_loss_that_is_no_number_on_one_rank_stops_both_before_the_update(place):
    ended = place.fit(fault="nan:13:1", ranks=2)
    assert ended.codes == [5, 5], ended.output
    assert "step 14, segment 13 of the training text: loss nan" in ended.output
    assert max(line["step"] for line in place.lines()) == 13


def test_process_that_is_stopped_for_a_while_is_waited_for(place, whole):
    processes = place.fork("fit", *place.small, PAUSE="0.05", ranks=2)
    place.wait_for_step(5)
    os.kill(processes[1].pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(processes[1].pid, signal.SIGCONT)
    assert place.end(processes).codes == [0, 0]
    place.assert_same(whole(ranks=2))
