"""The progress bar during training, and the table at its end."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from txl_lightning.errors import DataError
from txl_lightning.runs.metrics_table import RunMetrics, read_metrics
from txl_lightning.training.callbacks import progress_bar
from txl_lightning.training.callbacks.progress_bar import Throughput, TokenProgressBar
from txl_lightning.training.callbacks.validation_probe import ValidationProbe


class Terminal(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def watch(fit, tmp_path, monkeypatch):
    """Train; return the output and the progress bar."""

    def run(terminal: bool, seconds: float = 0, width: int = 140, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        stream = Terminal(terminal)
        progress = TokenProgressBar(stream, seconds)
        progress.interval = seconds
        options |= {"enable_progress_bar": True, "logger": CSVLogger(tmp_path, name="")}
        fit(Throughput(), ValidationProbe(0), progress, **{"log_every_n_steps": 1} | options)
        return stream.getvalue(), progress

    return run


def test_metrics_are_read_only_after_they_were_logged(watch, monkeypatch):
    steps = []
    look = progress_bar.format_readings

    def count(trainer, stage):
        steps.extend([trainer.global_step] if stage == "train" else [])
        return look(trainer, stage)

    monkeypatch.setattr(progress_bar, "format_readings", count)
    shown, _ = watch(False, log_every_n_steps=3)
    assert steps == [3, 6]
    assert "step 3/6" in shown


@pytest.mark.parametrize(
    ("has_units", "precision", "options", "kernel"),
    [
        (True, "32-true", {}, "per_head"),
        (False, "32-true", {"kernel": "sdpa"}, "sdpa"),
        (True, "bf16-mixed", {}, "per_head"),
    ],
)
def test_a_run_names_its_kernel_and_a_faster_precision(
    watch, monkeypatch, has_units, precision, options, kernel
):
    monkeypatch.setattr(progress_bar, "has_bfloat16_units", lambda device: has_units)
    shown, _ = watch(False, precision=precision, max_steps=1, sizes=options)
    assert re.search(rf"parameters: [\d,]+; device: cpu; kernel: {kernel}; run folder: ", shown)
    is_faster = has_units and precision == "32-true"
    assert ("faster on this device: --trainer.precision bf16-mixed" in shown) is is_faster


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_shows_readings_time_left_and_a_table_of_validations(watch, terminal):
    shown, progress = watch(terminal, val_check_interval=2)
    for words in ("device: cpu", "bits/byte", "6/6", " left"):
        assert words in shown
    assert shown.count("validation:") == 3
    assert ("\x1b" in shown) is terminal
    shown = shown.replace("\r", "").replace("\x1b[K", "")
    *_, result, head, first, second, third, folder = shown.strip().splitlines()
    assert folder == f"run folder: {progress.folder}"
    assert result.startswith("trained 6 of 6 steps, 192 tokens, in ")
    assert head.split()[:4] == ["step", "tokens", "seen", "nats"]
    marked = [line.startswith("best") for line in (first, second, third)]
    rows = [line.removeprefix("best").split() for line in (first, second, third)]
    assert [row[:2] for row in rows] == [["2", "64"], ["4", "128"], ["6", "192"]]
    nats = [row["nats"] for row in read_metrics(progress.folder).validations]
    assert marked == [value == min(nats) for value in nats]


def test_the_line_of_a_terminal_is_replaced_and_as_short_as_it_is_narrow(watch):
    shown, _ = watch(True, width=40, limit_val_batches=0)
    lines = re.findall(r"\r\x1b\[K(step [^\r\n]*)", shown)
    assert [line.partition("  ")[0] for line in lines] == [f"step {n}/6" for n in range(1, 7)]
    assert all(len(line) < 40 and "bits/byte" in line for line in lines)
    assert shown.count("\nstep") == 0


@pytest.mark.parametrize(("rate", "shown"), [(57.673, "58 tokens/s"), (1234.5, "1,234 tokens/s")])
def test_rates_have_no_decimals_that_look_like_thousands(rate, shown):
    trainer = SimpleNamespace(callback_metrics={"train/tokens_per_second": torch.tensor(rate)})
    assert progress_bar.format_readings(trainer, "train") == shown


def test_lines_in_a_pipe_are_as_rare_as_requested_and_a_missing_validation_has_its_reason(watch):
    shown, _ = watch(terminal=False, seconds=1e6, val_check_interval=7)
    assert len(re.findall(r"^step \d+/6", shown, re.MULTILINE)) == 1
    assert "no validation: trainer.val_check_interval is 7\n" in shown
    shown, _ = watch(terminal=False, log_every_n_steps=3, limit_val_batches=0)
    # Readings are never repeated.
    assert re.findall(r"^step (\d+)/6", shown, re.MULTILINE) == ["3", "6"]
    assert "no validation" not in shown


def test_the_time_left_is_the_mean_of_all_steps_except_the_first(
    monkeypatch, make_model, make_trainer
):
    now = [0.0]
    progress = TokenProgressBar()
    trainer = make_trainer(max_steps=20)
    model = make_model()
    model.trainer = trainer
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(type(trainer), "global_step", property(lambda _: len(seconds)))
    progress.disable()
    seconds = []
    left = []
    # The first step compiles; a validation follows the third.
    for each in (100, 2, 2, 32):
        seconds.append(each)
        now[0] += each
        progress.on_train_batch_end(trainer, model)
        left.append(progress.format_time_left(trainer))
    assert left == ["", "0:00:36 left", "0:00:34 left", "0:03:12 left"]


def test_a_run_with_a_time_limit_shows_the_time_left(make_trainer):
    progress = TokenProgressBar()
    by_clock = make_trainer(max_time="00:01:00:00", max_steps=1000)
    assert progress.format_time_left(by_clock) == "1:00:00 left"
    assert progress.format_time_left(make_trainer(max_steps=-1)) == ""


def test_the_final_table_has_the_best_validation_however_early(make_trainer):
    rows = [{"step": n, "val/nats": 1.0 if n == 5 else 2.0} for n in range(1, 31)]
    shown = progress_bar.format_result(make_trainer(), RunMetrics(rows))
    lines = shown.splitlines()[1:]
    assert [line.split()[-2] for line in lines[1:]] == ["1", "5", *map(str, range(25, 31))]
    assert [line.startswith("best") for line in lines[1:]] == [False, True] + [False] * 6


@pytest.mark.parametrize(
    "options",
    [
        {"logger": False},
        {"log_every_n_steps": 50},
        {"log_every_n_steps": 4},
        {"log_every_n_steps": 4, "limit_val_batches": 0},
    ],
    ids=str,
)
def test_the_summary_counts_all_tokens_whatever_is_logged(watch, options):
    shown, _ = watch(terminal=False, val_check_interval=6, **options)
    assert "trained 6 of 6 steps, 192 tokens, in " in shown
    assert ("best     6          192" in shown) is ("limit_val_batches" not in options)


def test_a_test_run_has_its_tokens_and_no_folder(watch):
    shown, _ = watch(terminal=False, fast_dev_run=True)
    assert "trained 1 of 1 steps, 32 tokens, in " in shown
    assert "folder" not in shown


def test_metrics_that_cannot_be_read_are_a_warning_and_stop_no_checkpoint(watch, monkeypatch):
    def refuse(*_):
        raise DataError("metrics.csv: damaged")

    monkeypatch.setattr(progress_bar, "read_metrics", refuse)
    with pytest.warns(UserWarning, match=r"metrics\.csv: damaged"):
        shown, _ = watch(terminal=False)
    assert "trained 6 of 6 steps, 192 tokens, in " in shown
