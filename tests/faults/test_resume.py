"""A run that was killed, however often, is the run that was not."""

import random

import pytest

pytestmark = pytest.mark.faults

AUTO = "--resume=auto"
READINGS = {
    "ordered": [],
    "accumulated": ["--trainer.accumulate_grad_batches=3", "--trainer.val_check_interval=30"],
    "rolled": ["--data.order=rolled", "--data.segments=varlen"],
    "shuffled": ["--data.order=shuffled", "--data.document_unit=lines"],
    "muon": ["--model.optim.name=muon", "--trainer.precision=bf16-mixed"],
}


def places_to_die(seed: str) -> list[str]:
    """Five, each later than the checkpoint that the one before has left."""
    chance = random.Random(seed)
    first, third, fourth, fifth = (
        chance.randint(*between) for between in ((1, 9), (11, 19), (20, 29), (30, 39))
    )
    return [str(first), "val", str(third), f"mid{fourth}", str(fifth)]


def killed_and_resumed(place, where, options, ranks=1):
    """Kill a run at each of these places in turn, then let it come to its end."""
    for fault in where:
        ended = place.fit(AUTO, *options, fault=f"KILL:{fault}", ranks=ranks)
        assert set(ended.codes) == {-9}, ended.output
    ended = place.fit(AUTO, *options, ranks=ranks)
    assert set(ended.codes) == {0}, ended.output
    assert "resume: runs/version_" in ended.output


@pytest.mark.parametrize("reading", READINGS)
def test_killed_five_times_it_has_every_loss_and_the_checkpoint_of_a_whole_run(
    make_place, same, reading
):
    whole, killed = make_place("whole"), make_place("killed")
    assert whole.fit(*READINGS[reading]).code == 0
    killed_and_resumed(killed, places_to_die(reading), READINGS[reading])
    same(whole, killed)


def test_killed_five_times_two_processes_have_it_too(make_place, same):
    whole, killed = make_place("whole"), make_place("killed")
    assert whole.fit(ranks=2).codes == [0, 0]
    killed_and_resumed(killed, places_to_die("two"), [], ranks=2)
    same(whole, killed)
    memory = killed.held()["txl_lightning"]["memory"]
    assert memory["h"][:, :2].ne(memory["h"][:, 2:]).any()
    first, second = (rank["rng"]["torch"] for rank in killed.held()["txl_lightning"]["ranks"])
    assert not first.equal(second)


def test_a_run_goes_on_in_one_process_or_two_with_the_same_text(make_place):
    """The losses are those of one process, up to how a sum is rounded."""
    exact = ["--model.net.dropout=0", "--model.net.dropatt=0"]
    whole, moved = make_place("whole"), make_place("moved")
    assert whole.fit(*exact).code == 0
    assert moved.fit(*exact, fault="TERM:11", ranks=2).codes == [143, 143]
    ended = moved.fit(*exact, AUTO, fault="TERM:23", ranks=1)
    assert ended.code == 143
    assert "devices: was 2, is 1" in ended.output
    assert moved.fit(*exact, AUTO, ranks=2).codes == [0, 0]
    assert moved.tokens() == whole.tokens()
    one = [line["loss"] for line in whole.lines()]
    of_ranks = {}
    for line in moved.lines():
        of_ranks.setdefault(line["batch"], []).append(float.fromhex(line["loss"]))
    # DDP averages what each rank's rows contribute.
    two = [sum(losses) / len(losses) for _, losses in sorted(of_ranks.items())]
    assert two == pytest.approx([float.fromhex(loss) for loss in one], rel=1e-4)
    checkpoints = whole.held()["state_dict"], moved.held()["state_dict"]
    for a, b in zip(*(held.values() for held in checkpoints), strict=True):
        assert b.sub(a).abs().max() < 1e-3


@pytest.mark.parametrize("every", [5, 10])
def test_how_often_it_validates_changes_no_loss(make_place, every):
    never, often = make_place("never"), make_place("often")
    assert never.fit("--trainer.limit_val_batches=0").code == 0
    assert often.fit(f"--trainer.val_check_interval={every}").code == 0
    assert never.losses() == often.losses()


def test_a_run_that_crashed_goes_on_from_its_last_whole_checkpoint(make_place, same):
    whole, crashed = make_place("whole"), make_place("crashed")
    assert whole.fit().code == 0
    ended = crashed.fit(fault="raise:25")
    assert ended.code == 1
    assert "RuntimeError: an accident" in ended.output
    assert "only last.ckpt continues training exactly" in ended.output
    assert crashed.newest("crash-25.ckpt").is_file()
    ended = crashed.fit(AUTO)
    assert "resume: runs/version_0/checkpoints/last.ckpt" in ended.output
    same(whole, crashed)


def test_a_crash_checkpoint_says_that_it_is_not_exact(place):
    assert place.fit(fault="raise:25").code == 1
    crash = place.newest("crash-25.ckpt")
    ended = place.fit(f"--ckpt_path={crash}")
    assert ended.code == 0
    assert "saved in mid-step: what follows is near, not exact" in ended.output
