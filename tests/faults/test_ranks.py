"""If one of several processes dies or fails, the others end too."""

import pytest

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(("launcher", "rank"), [("lightning", 1), ("torchrun", 0)])
def test_processes_of_a_launcher_end_in_time_when_one_is_killed(place, finish, launcher, rank):
    process = place.launch(launcher=launcher, fault=f"KILL:13:{rank}")
    ended = place.end(process, place.wait_for_step(13))
    assert ended.code != 0, ended.output
    assert ended.seconds < 30
    assert place.alive() == []
    finish(ranks=2)


@pytest.mark.parametrize(
    ("fault", "rank", "code"),
    [("KILL:13", 0, -9), ("KILL:13", 1, -9), ("raise:before13", 1, 1), ("raise:before13", 0, 1)],
)
def test_processes_without_a_launcher_end_in_time_when_one_dies(place, finish, fault, rank, code):
    """As under srun."""
    processes = place.fork(fault=f"{fault}:{rank}", ranks=2)
    ended = place.end(processes, place.wait_for_step(13))
    assert ended.codes[rank] == code, ended.output
    assert ended.codes[1 - rank] != 0
    assert ended.seconds < 30
    assert ("an accident" in ended.output) == ("raise" in fault)
    # The first rank writes it alone, also if it only misses the other one.
    assert ("the state at the crash" in ended.output) == ((fault, rank) != ("KILL:13", 0))
    finish(ranks=2)


def test_nan_loss_on_one_rank_stops_both_before_the_update(place):
    ended = place.fit(fault="nan:loss13:1", ranks=2)
    assert ended.codes == [5, 5], ended.output
    assert "step 14, segment 13 of the training text: loss nan" in ended.output
    assert max(line["step"] for line in place.lines()) == 13
