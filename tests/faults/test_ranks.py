"""One of several processes dies, or fails: the others do not wait for it."""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.faults

AUTO = "--resume=auto"


def went_on(make_place, same, place):
    """What is left is whole, and leads to the same end."""
    whole = make_place("whole")
    assert whole.fit(ranks=2).codes == [0, 0]
    ended = place.fit(AUTO, ranks=2)
    assert ended.codes == [0, 0], ended.output
    assert "resume: runs/version_0/checkpoints/last.ckpt" in ended.output
    same(whole, place)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("launcher", ["lightning", "torchrun"])
def test_when_a_process_is_killed_the_others_end_in_time(make_place, same, launcher, rank):
    place = make_place("killed")
    process = place.launch_two(launcher, fault=f"KILL:13:{rank}")
    since = place.wait_for_step(13)
    ended = place.wait(process, since)
    assert ended.code != 0, ended.output
    assert ended.seconds < 30
    assert place.alive() == []
    went_on(make_place, same, place)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_launcher_the_others_end_in_time_too(make_place, same, rank):
    """As where srun starts them."""
    place = make_place("killed")
    processes = place.fork("fit", *place.small, fault=f"KILL:13:{rank}", ranks=2)
    since = place.wait_for_step(13)
    ended = place.end(processes, since)
    assert ended.codes[rank] == -9
    assert ended.codes[1 - rank] not in (None, 0)
    assert ended.seconds < 30
    went_on(make_place, same, place)


@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_fails_the_others_end_in_time(make_place, same, rank):
    place = make_place("failed")
    since = time.monotonic()
    processes = place.fork("fit", *place.small, fault=f"raise:13:{rank}", ranks=2)
    ended = place.end(processes, since)
    assert ended.codes[rank] == 1, ended.output
    assert 0 not in ended.codes
    assert "an accident" in ended.output
    went_on(make_place, same, place)


def test_a_loss_that_is_no_number_on_one_rank_stops_both_before_the_update(place):
    ended = place.fit(fault="nan:13:1", ranks=2)
    assert ended.codes == [5, 5], ended.output
    assert "step 14, segment 13 of the training text: loss nan" in ended.output
    assert max(line["step"] for line in place.lines()) == 13


def test_a_process_that_is_stopped_for_a_while_is_waited_for(make_place, same):
    whole, place = make_place("whole"), make_place("stopped")
    processes = place.fork("fit", *place.small, PAUSE="0.05", ranks=2)
    place.wait_for_step(5)
    os.kill(processes[1].pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(processes[1].pid, signal.SIGCONT)
    assert place.end(processes).codes == [0, 0]
    assert whole.fit(ranks=2).codes == [0, 0]
    same(whole, place)
