"""A killed and resumed run equals an uninterrupted one."""

import random

import pytest
from torch.testing import assert_close

pytestmark = pytest.mark.faults

ACCUMULATED = ["--trainer.accumulate_grad_batches=3", "--trainer.val_check_interval=30"]
ROLLED = ["--data.order=rolled", "--data.segments=varlen"]
SHUFFLED = ["--data.order=shuffled", "--data.document_unit=lines"]
MUON = ["--model.optim.name=muon", "--trainer.precision=bf16-mixed"]
LAMB = ["--model.optim.name=lamb", "--data.micro_batches=2"]
AVERAGED = ["--trainer.callbacks+=WeightAverage", "--trainer.callbacks.decay=0.9"]
WORDS = ["--data.vocab=words", "--data.eval_batch_size=1"]
# Each state that a run can have is in one of them.
READINGS = {
    "ordered": [],
    "accumulated and averaged": ACCUMULATED + AVERAGED,
    "rolled with lamb": ROLLED + LAMB,
    "words with muon": WORDS + MUON,
}


def kill_five_times(place, seed, *options, ranks=1, whom="") -> None:
    """Kill a run at five places, each later than the previous checkpoint."""
    chance = random.Random(seed)
    first, third, fourth, fifth = (chance.randint(n, n + 8) for n in (1, 11, 20, 30))
    for fault in (first, "val", third, f"mid{fourth}", fifth):
        ended = place.fit("--resume=auto", *options, fault=f"KILL:{fault}:{whom}", ranks=ranks)
        killed = [ended.codes[int(whom)]] if whom else ended.codes
        assert set(killed) == {-9}, ended.output
        assert 0 not in ended.codes


@pytest.mark.parametrize("reading", READINGS)
def test_run_killed_five_times_has_the_losses_and_checkpoint_of_an_uninterrupted_run(
    place, finish, reading, count
):
    for nth in range(count(1, 3)):
        place.forget()
        kill_five_times(place, f"{reading}{nth or ''}", *READINGS[reading])
        assert finish(*READINGS[reading]).code == 0


@pytest.mark.parametrize(
    ("whom", "options"),
    [("1", SHUFFLED + MUON), ("0", AVERAGED)],
)
def test_two_processes_killed_five_times_match_an_uninterrupted_run_with_their_own_states(
    place, finish, whom, options, count
):
    for nth in range(count(1, 3)):
        place.forget()
        kill_five_times(place, f"two{nth or ''}", *options, ranks=2, whom=whom)
        finish(*options, ranks=2)
    state = place.state()["txl_lightning"]
    h_NBMD = state["memory"]["h_NBMD"]
    assert h_NBMD[:, :2].ne(h_NBMD[:, 2:]).any()
    first, second = (rank["rng"]["torch"] for rank in state["ranks"])
    assert not first.equal(second)


def test_run_continues_in_one_process_or_two_with_the_same_text(place, whole):
    """Losses equal those of one process, up to rounding, also if the rows of one rank have more
    targets than those of the other."""
    exact = ["--model.net.dropout=0", "--model.net.dropatt=0", *SHUFFLED]
    expected = whole(*exact)
    assert place.fit(*exact, fault="TERM:11", ranks=2).codes == [143, 143]
    ended = place.fit(*exact, "--resume=auto", fault="TERM:23")
    assert ended.code == 143
    assert "devices: was 2, is 1" in ended.output
    parts = "--data.micro_batches=2"
    assert place.fit(*exact, "--resume=auto", parts, ranks=2).codes == [0, 0]
    assert place.tokens() == expected.tokens()
    assert place.mean_losses() == pytest.approx(expected.mean_losses(), rel=1e-4)
    weights = expected.state()["state_dict"], place.state()["state_dict"]
    assert_close(*weights, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("ranks", "threads"), [(1, 2), (2, 1)])
def test_losses_are_those_of_one_process_and_thread_to_rounding(place, whole, ranks, threads):
    exact = ["--model.net.dropout=0", "--model.net.dropatt=0", "--data.micro_batches=1"]
    assert set(place.fit(*exact, ranks=ranks, THREADS=str(threads)).codes) == {0}
    assert place.tokens() == whole(*exact).tokens()
    assert place.mean_losses() == pytest.approx(whole(*exact).mean_losses(), rel=1e-4)


def test_validation_at_any_interval_changes_no_loss(whole):
    never = whole("--trainer.limit_val_batches=0")
    often = whole("--trainer.val_check_interval=5")
    assert whole().losses() == often.losses() == never.losses()


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
