"""A run that was killed, however often, is the run that was not."""

import random

import pytest

pytestmark = pytest.mark.faults

READINGS = {
    "ordered": [],
    "accumulated": ["--trainer.accumulate_grad_batches=3", "--trainer.val_check_interval=30"],
    "rolled": ["--data.order=rolled", "--data.segments=varlen"],
    "shuffled": ["--data.order=shuffled", "--data.document_unit=lines"],
    "muon": ["--model.optim.name=muon", "--trainer.precision=bf16-mixed"],
}


def kill_five_times(place, seed, *options, ranks=1) -> None:
    """Kill a run at five places, each later than the checkpoint that the one before has left."""
    chance = random.Random(seed)
    first, third, fourth, fifth = (chance.randint(n, n + 8) for n in (1, 11, 20, 30))
    for fault in (first, "val", third, f"mid{fourth}", fifth):
        ended = place.fit("--resume=auto", *options, fault=f"KILL:{fault}", ranks=ranks)
        assert set(ended.codes) == {-9}, ended.output


@pytest.mark.parametrize("reading", READINGS)
def test_run_killed_five_times_has_the_losses_and_checkpoint_of_an_uninterrupted_run(
    place, finish, reading
):
    kill_five_times(place, reading, *READINGS[reading])
    finish(*READINGS[reading])


def test_two_processes_killed_five_times_match_an_uninterrupted_run_with_their_own_states(
    place, finish
):
    kill_five_times(place, "two", ranks=2)
    finish(ranks=2)
    state = place.state()["txl_lightning"]
    assert state["memory"]["h"][:, :2].ne(state["memory"]["h"][:, 2:]).any()
    first, second = (rank["rng"]["torch"] for rank in state["ranks"])
    assert not first.equal(second)


def test_run_continues_in_one_process_or_two_with_the_same_text(place, whole):
    """Losses are those of one process, up to how a sum is rounded, also where the rows of one rank
    have more targets than those of the other."""
    exact = ["--model.net.dropout=0", "--model.net.dropatt=0", *READINGS["shuffled"]]
    expected = whole(*exact)
    assert place.fit(*exact, fault="TERM:11", ranks=2).codes == [143, 143]
    ended = place.fit(*exact, "--resume=auto", fault="TERM:23")
    assert ended.code == 143
    assert "devices: was 2, is 1" in ended.output
    parts = "--data.micro_batches=2"
    assert place.fit(*exact, "--resume=auto", parts, ranks=2).codes == [0, 0]
    assert place.tokens() == expected.tokens()
    of_ranks = {}
    for line in place.lines():
        of_ranks.setdefault(line["batch"], []).append(float.fromhex(line["loss"]))
    # DDP averages what each rank's rows contribute.
    losses = [sum(losses) / len(losses) for _, losses in sorted(of_ranks.items())]
    one = [float.fromhex(line["loss"]) for line in expected.lines()]
    assert losses == pytest.approx(one, rel=1e-4)
    weights = expected.state()["state_dict"], place.state()["state_dict"]
    for a, b in zip(*(each.values() for each in weights), strict=True):
        assert b.sub(a).abs().max() < 1e-3


@pytest.mark.parametrize("interval", [5, 10])
def test_validation_at_any_interval_changes_no_loss(whole, interval):
    never = whole("--trainer.limit_val_batches=0")
    assert whole(f"--trainer.val_check_interval={interval}").losses() == never.losses()


def test_crashed_run_continues_exactly_from_last_ckpt_and_approximately_from_crash_ckpt(
    place, finish
):
    ended = place.fit(fault="raise:before25")
    assert ended.code == 1
    assert "RuntimeError: an accident" in ended.output
    assert "only last.ckpt continues training exactly" in ended.output
    finish()
    ended = place.fit(f"--ckpt_path={place.path('crash-25.ckpt')}")
    assert ended.code == 0
    assert "saved in mid-step: what follows is near, not exact" in ended.output
