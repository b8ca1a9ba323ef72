"""What a person sees while training, and at its end."""

import io
import re

import pytest
from rich.console import Console

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.evaluation.tables import align_columns
from txl_lightning.training.callbacks import eta
from txl_lightning.training.callbacks.eta import TimeLeft, still_to_do
from txl_lightning.training.callbacks.history import History
from txl_lightning.training.callbacks.progress_bar import TokenProgressBar, time_left
from txl_lightning.training.callbacks.summary import duration, ending, memory_bytes, number, parts
from txl_lightning.training.callbacks.throughput import Throughput

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
"""What moves a terminal's cursor and colours its words."""


@pytest.fixture
def watch(make_model, make_data, make_trainer):
    """Train, and give what was shown, and who showed it."""

    def run(
        terminal: bool, seconds: float = 0, width: int = 140, data=(), **options
    ) -> tuple[str, TokenProgressBar]:
        history = History()
        progress = TokenProgressBar(history, seconds)
        progress.console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
        options = {"enable_progress_bar": True, "log_every_n_steps": 1} | options
        trainer = make_trainer(callbacks=[Throughput(), history, progress], **options)
        trainer.fit(make_model(), datamodule=make_data(**dict(data)))
        return CODES.sub("", progress.console.file.getvalue()), progress

    return run


@pytest.mark.parametrize("terminal", [False, True])
def test_it_shows_parts_loss_bits_time_left_and_validations(watch, terminal):
    shown, progress = watch(terminal, val_check_interval=3)
    for words in ("attention", "12 states a row", "bits/byte", "nats", "6/6", " left"):
        assert words in shown
    assert shown.count("validation:") == 2
    assert progress.live is None


@pytest.mark.parametrize("terminal", [False, True])
def test_its_last_words_are_a_table_of_the_validations(watch, terminal):
    shown, progress = watch(terminal, val_check_interval=2)
    *_, said, head, first, second, third, where = shown.strip().splitlines()
    assert where == f"all of it is in {progress.folder}"
    assert said.startswith("trained 6 of 6 steps, 192 tokens, in ")
    assert head.split() == ["step", "tokens", "nats", "bits", "per", "byte", "perplexity"]
    rows = [line.split() for line in (first, second, third)]
    marked = [row[0] == "best" for row in rows]
    rows = [row[mark:] for row, mark in zip(rows, marked, strict=True)]
    assert [row[:2] for row in rows] == [["2", "64"], ["4", "128"], ["6", "192"]]
    nats = [row["nats"] for row in progress.history.validations]
    assert marked == [value == min(nats) for value in nats]


@pytest.mark.parametrize("vocab", ["bytes", "characters"])
def test_the_live_line_fits_a_narrow_terminal(watch, vocab):
    """Of a long run too: the bar is what gives way."""
    shown, _ = watch(True, width=72, max_steps=100, data={"vocab": vocab})
    lines = [line for line in re.split(r"[\r\n]", shown) if re.match(r"step +\d+/100 ", line)]
    last = lines[-2].rstrip()
    assert re.search(r"step \d+/100 .* \d\.\d{3} bits/byte  [\d,.]+ tokens/s", last)
    assert "…" not in last
    assert len(re.findall("[━╺╸]", last)) >= 10
    assert len(last) <= 72


def test_no_time_is_left_when_all_is_done_or_broken_off(watch):
    shown, _ = watch(True)
    *_, last = re.findall(r"step 6/6.*", shown)
    assert " left" not in last


def test_a_run_without_a_validation_says_why(watch):
    shown, _ = watch(False, val_check_interval=7)
    assert "no validation: trainer.val_check_interval is 7\n" in shown
    shown, _ = watch(False, limit_val_batches=0)
    assert "no validation" not in shown


def test_lines_are_not_printed_more_often_than_asked(watch):
    shown, _ = watch(terminal=False, seconds=1e6)
    assert sum(line.startswith("step") and "/6" in line for line in shown.splitlines()) == 1


def test_nothing_is_said_twice(watch):
    shown, _ = watch(terminal=False, log_every_n_steps=3)
    lines = [line for line in shown.splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in lines] == ["3/6", "6/6"]


def test_every_parameter_is_of_one_part():
    sizes = {"n_token": 40, "n_layer": 3, "n_head": 2, "d_model": 8}
    for changes in (
        {},
        {"cutoffs": (10, 20), "div_val": 2},
        {"positions": "learned", "clamp_len": 5},
    ):
        net = TransformerXL(TransformerXLConfig(**sizes | changes))
        found = parts(net)
        assert sum(found.values()) == sum(p.numel() for p in net.parameters())
        assert found["attention"] == 3 * (8 * 8 + 8 * 16 + 8 * 8)
    tied = parts(TransformerXL(TransformerXLConfig(**sizes)))
    assert (tied["embedding"], tied["softmax"]) == (40 * 8, 40)


def test_time_left_counts_steps_and_validations_apart(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(eta.time, "monotonic", lambda: now[0])
    left = TimeLeft()

    def after(seconds, what):
        now[0] += seconds
        what()

    assert left.seconds(10, 1) is None
    left.begin()
    # The first step warms up; a validation is no part of the step that follows it.
    after(100, left.step)
    for _ in range(4):
        after(2, left.step)
        after(0, left.pause)
        after(30, left.go_on)
        # Without a validation before it, a step begins where the last one ended.
        after(2, left.go_on)
        after(0, left.step)
    assert left.seconds(10, 0) == 20
    assert left.seconds(10, 2) == 80


def test_what_is_still_to_do_follows_from_the_trainers_settings(
    make_model, make_data, make_trainer
):
    def to_do(**options):
        found = []
        model = make_model()
        trainer = make_trainer(max_steps=8, **options)
        model.on_train_batch_end = lambda *_: found.append(still_to_do(trainer))
        trainer.fit(model, datamodule=make_data())
        return found

    first, second, *_, last = to_do(val_check_interval=2)
    assert (first, second, last) == ((7, 4), (6, 4), (0, 1))
    assert to_do(val_check_interval=2, limit_val_batches=0)[0] == (7, 0)
    assert to_do(val_check_interval=4, accumulate_grad_batches=2)[1][1] == 4
    assert to_do(val_check_interval=3)[-1] == (0, 0)
    assert to_do(val_check_interval="00:00:01:00")[0] == (7, 0)


def test_a_run_that_ends_by_the_clock_says_when(make_trainer):
    trainer, left = make_trainer(max_time="00:01:00:00", max_steps=1000), TimeLeft()
    assert time_left(left, trainer) == "1 h 0 min left"
    assert time_left(left, make_trainer(max_steps=1000)) == ""


def test_a_validation_that_is_done_takes_no_time_from_the_steps(make_trainer):
    trainer, left = make_trainer(max_steps=100), TimeLeft()
    left.steps.append(1.0)
    left.validations.append(30.0)
    assert still_to_do(trainer) == (100, 0)
    assert time_left(left, trainer, measured=1) == "1 min 40 s left"


def test_the_best_validation_is_in_the_table_however_long_ago_it_was(make_trainer):
    history = History()
    history.validations = [{"step": n, "nats": 1.0 if n == 5 else 2.0} for n in range(1, 31)]
    lines = ending(make_trainer(), history).splitlines()
    assert [line.split()[-2] for line in lines[2:]] == ["1", "5", *map(str, range(24, 31))]
    assert [line.startswith("best") for line in lines[2:]] == [False, True] + [False] * 7


def test_the_memory_that_is_announced_is_what_is_held(make_model, make_data, make_trainer):
    model, trainer, found = make_model(), make_trainer(), []
    model.on_train_end = lambda: found.append(memory_bytes(trainer, model))
    trainer.fit(model, datamodule=make_data())
    assert found == [model.memory_bank.committed["train", 0].h_NBMD.nbytes]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min"), (90_000, "1 d 1 h")],
)
def test_a_time_is_said_in_its_two_largest_units(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1234, "1,234"), (-1e-4, "0.000"), (-0.25, "-0.250"), (12345.6, "12,346"), (1e12, "1e+12")],
)
def test_a_reading_is_as_short_as_it_can_be(value, words):
    assert number(value) == words


def test_columns_of_words_stand_under_each_other():
    lines = align_columns([("a", "1", "x"), ("long", "1,000", "")]).splitlines()
    assert lines == ["a         1  x", "long  1,000"]
    assert len({re.search(r"\d(?!.*\d)", line).end() for line in lines}) == 1
