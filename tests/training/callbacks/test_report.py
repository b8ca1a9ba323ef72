"""A run writes a self-contained page, readable in a window of any width."""

import html
import json
import math
import re
import shlex
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import LambdaCallback
from matplotlib.figure import Figure

from txl_lightning import __main__ as entry
from txl_lightning.analysis.plots import draw_attention, draw_learning_curves, draw_memory_gain
from txl_lightning.command_line import PROGRAM
from txl_lightning.runs.metrics_table import RunMetrics
from txl_lightning.training.callbacks import report
from txl_lightning.training.callbacks.checkpointing import AtomicCheckpointIO, LastCheckpoint
from txl_lightning.training.callbacks.report import Report
from txl_lightning.training.callbacks.validation_probe import ValidationProbe

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
QUIET = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --enable-logging=stderr
    --virtual-time-budget=2000 --dump-dom --window-size=1400,1000"""
FRAME = """<!doctype html><meta charset="utf-8"><iframe width="{width}" height="900"
srcdoc="{page}"></iframe><pre></pre><script>
onload = () => {{
  const page = document.querySelector("iframe").contentWindow.document
  const boxes = (selector, within) => [...page.querySelectorAll(selector)]
    .filter(each => within || !each.closest(".scroll, svg"))
    .map(each => each.getBoundingClientRect()).filter(box => box.width > 0)
  document.querySelector("pre").textContent = JSON.stringify({{
    heights: boxes("figure svg", true).map(box => box.height),
    letters: boxes("figure svg text", true).map(box => Math.min(box.width, box.height)),
    edges: boxes("body *").map(box => box.right),
  }})
}}
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1200, 360])
def test_a_browser_shows_all_figures_without_console_messages(run_folder, tmp_path, width):
    page = html.escape((run_folder / "report.html").read_text(encoding="utf-8"))
    framed = tmp_path / "framed.html"
    framed.write_text(FRAME.format(width=width, page=page), encoding="utf-8")
    command = [CHROMIUM, *QUIET.split(), f"--user-data-dir={tmp_path / 'chromium'}"]
    options = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    done = subprocess.run([*command, framed.as_uri()], **options)
    assert "CONSOLE" not in done.stderr
    content = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]
    shown = json.loads(html.unescape(content))
    assert len(shown["heights"]) >= 8
    assert min(shown["heights"]) > 100
    assert max(shown["edges"]) <= width
    assert min(filter(None, shown["letters"])) > 6


def test_a_finished_run_has_a_page_that_needs_no_network_and_no_script(run_folder):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|iframe|object|embed|img)|@import|url\((?!#)", text) == []
    assert re.findall(r"""\b(?:src|href)\s*=\s*["'](?!#|data:)""", text) == []
    headings = ["Learning curves", "Memory", "Samples", "Config", "What to type next"]
    assert re.findall("<h2>(.*?)</h2>", text) == headings
    assert "finished, step 4 of 4" in text
    assert re.findall(r"after step (\d)", text) == ["4", "2"]
    assert "1 earlier" in text


@pytest.fixture
def render(fit):
    """Make the page of a run with these metrics and probe results."""
    trainer = fit(max_steps=1, limit_val_batches=0)

    def render_notes(rows=(), **notes) -> str:
        probe = ValidationProbe()
        vars(probe).update(notes)
        return Report(probe).render(trainer, RunMetrics(list(rows)), "finished")

    return render_notes


def test_a_run_that_logged_nothing_has_a_page(render):
    text = render()
    assert all(words in text for words in ("Nothing was logged.", "There was no validation."))
    assert not any(words in text for words in ("Memory gain", "Samples"))


def test_samples_are_escaped_and_without_control_characters(render):
    text = render(samples=[[1, "<b>given</b><script>alert(1)</script>"]], prompt_len=12)
    assert "<pre><b>&lt;b&gt;given&lt;/b&gt;</b>&lt;script&gt;alert(1)" in text
    text = render(samples=[[1, "a\x00\x07\tb\nc\x7f\u202ed\u2066"]], prompt_len=1)
    assert "<b>a</b>\\x00\\x07\tb\nc\\x7f\\u202ed\\u2066</pre>" in text


def test_the_best_validation_is_marked_and_shown_first(render):
    values = [(3.0, 4.3, -0.1), (1.0, 1.4, 0.25), (2.0, 2.9, 0.3)]
    rows = [
        {"step": 10 * n, "val/tokens_seen": 100.0 * n, "val/nats": nats, "val/bits_per_byte": bits}
        | {"val/memory_gain": gain, "val/memory_gain_error": 0.01, "val/answer_accuracy": 0.25}
        for n, (nats, bits, gain) in enumerate(values, 1)
    ]
    text = render(rows)
    [best] = re.findall(r'<tr class="best">(.*?)</tr>', text)
    cells = re.findall(r"<td>(.*?)</td>", best)
    assert cells == ["20", "200", "1.000", "0.250", "1.400", "0.250 ± 0.010"]
    facts = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    assert facts[:4] == [
        ("best validation (bits per byte)", "1.400"), ("at step", "20"),
        ("answer accuracy", "25.0%"), ("memory gain (nats)", "0.250 ± 0.010"),
    ]  # fmt: skip
    draw_memory_gain(axes := Figure().subplots(), RunMetrics(rows), "word")
    zero, line = axes.lines
    assert line.get_xydata().tolist() == [[100, -0.1], [200, 0.25], [300, 0.3]]
    assert set(zero.get_ydata()) == {0}
    assert axes.get_ylabel() == "nats per word"


def test_learning_curves_are_of_training_and_validation_without_nan():
    names = ("train/tokens_seen", "train/bits_per_byte", "val/tokens_seen", "val/bits_per_byte")
    values = [(1, 8.0, 1, math.inf), (2, math.nan, 2, 6.0), (3, 5.0, 3, math.nan)]
    rows = [{"step": n} | dict(zip(names, row, strict=True)) for n, row in enumerate(values)]
    draw_learning_curves(axes := Figure().subplots(), RunMetrics(rows))
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, 8], [3, 5]], [[2, 6]]]
    assert axes.get_ylabel() == "bits per byte"


@pytest.mark.parametrize(("share", "n_axes"), [(0.0, 1), (0.1, 2)])
def test_attention_has_a_color_scale_only_with_memory(share, n_axes):
    row = {"layer": 1, "head": 1, "mean": 1.0, "nearest_tenth": 0, "median": 1}
    figure = Figure()
    draw_attention(figure.subplots(), [row | {"farthest_tenth": 2, "on_memory": share}], "byte")
    assert len(figure.axes) == n_axes


@pytest.fixture
def train(fit, tmp_path):
    """Train with a report; return its page, also as `train.page` if training fails."""

    def run(*others, **options) -> str:
        probe = ValidationProbe(5)
        try:
            fit(probe, Report(probe), *others, **{"val_check_interval": 3} | options)
        finally:
            path = tmp_path / "runs" / "report.html"
            run.page = path.read_text() if path.is_file() else ""
        return run.page

    return run


def fail_at_4(error: BaseException) -> LambdaCallback:
    def fail(trainer, *_):
        if trainer.global_step == 4:
            raise error

    return LambdaCallback(on_train_batch_start=fail)


@pytest.mark.parametrize(
    ("error", "status"),
    [(SystemExit(143), "stopped, step 4"), (ValueError("no more"), "ended by: no more, step 4")],
    ids=["signal", "error"],
)
def test_a_run_that_is_stopped_has_its_page(train, error, status):
    with pytest.raises(type(error)):
        train(fail_at_4(error))
    assert status in train.page


def test_a_failing_report_is_a_warning_hides_no_error_and_loses_no_checkpoint(train, tmp_path):
    (tmp_path / "runs" / "report.html").mkdir(parents=True)
    callbacks = fail_at_4(RuntimeError("lost")), LastCheckpoint()
    with (
        pytest.raises(RuntimeError, match="lost"),
        pytest.warns(UserWarning, match=r"StorageError\(.*; no report is written"),
    ):
        train(*callbacks, enable_checkpointing=True, plugins=[AtomicCheckpointIO()])
    assert (tmp_path / "runs" / "checkpoints" / "crash-4.ckpt").is_file()


@pytest.mark.parametrize(("seconds", "pages"), [(0.0, 3), (report.MIN_SECONDS_BETWEEN_PAGES, 1)])
def test_the_page_is_written_after_the_first_validation_and_then_rarely(
    train, monkeypatch, seconds, pages
):
    states = []
    monkeypatch.setattr(report, "MIN_SECONDS_BETWEEN_PAGES", seconds)
    monkeypatch.setattr(Report, "render", lambda *given: states.append(given[-1]) or "")
    train(val_check_interval=2)
    assert states == ["training"] * pages + ["finished"]


def test_a_page_is_named_by_its_run_and_shows_changed_settings_and_next_commands(run_folder):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{run_folder.parent.name}/version_0</h1>" in text
    shown = re.findall(r"<tr><td>([\w.]+)</td><td>(.*?)</td><td>(.*?)</td></tr>", text)
    settings = {name: (value, default) for name, value, default in shown}
    assert settings["model.net.mem_len"][0] == "8"
    assert settings["trainer.max_steps"] == ("4", "2000")
    assert "data.tgt_len" in settings
    assert "model.net.kernel" not in settings
    assert "<details><summary>config.yaml" in text
    commands = html.unescape(text).partition("What to type next")[2]
    next_commands = re.findall(rf"{re.escape(PROGRAM)} (\w+) (.*)", commands.partition("</pre>")[0])
    assert [name for name, _ in next_commands] == [c.split()[0] for c in report.NEXT_COMMANDS]
    for command, words in next_commands:
        assert entry.make_parser(command)[1].parse_args(shlex.split(words))


@pytest.mark.parametrize(
    ("is_global_zero", "fast_dev_run", "count"), [(True, 0, 1), (False, 0, 0), (True, 2, 0)]
)
def test_only_rank_0_writes_and_not_in_a_trial(tmp_path, is_global_zero, fast_dev_run, count):
    writer = Report(ValidationProbe(0))
    written = []
    writer.folder = tmp_path
    trainer = SimpleNamespace(is_global_zero=is_global_zero, fast_dev_run=fast_dev_run)
    writer.attempt(written.append, trainer)
    assert len(written) == count


def test_a_resumed_run_keeps_its_samples(train, fit, tmp_path):
    train(val_check_interval=2, max_steps=4)
    fit.record.trainer.save_checkpoint(tmp_path / "a.ckpt")
    text = train(val_check_interval=2, ckpt_path=tmp_path / "a.ckpt")
    assert re.findall(r"after step (\d)", text) == ["6", "4", "2"]
