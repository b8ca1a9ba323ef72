"""A run leaves a page that needs nothing else and can be read in a window of any width."""

import html
import json
import math
import re
import shutil
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from txl_lightning.analysis.plots import draw_attention
from txl_lightning.training.callbacks import report
from txl_lightning.training.callbacks.checkpointing import AtomicCheckpointIO, LastCheckpoint
from txl_lightning.training.callbacks.plots import (
    make_figure,
    plot_learning_curves,
    plot_memory_gain,
)
from txl_lightning.training.callbacks.report import Report, ReportConfig, describe_page
from txl_lightning.training.callbacks.run_metrics import RunMetrics
from txl_lightning.training.callbacks.validation_probe import ValidationProbe

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom",
]  # fmt: skip
FRAME = """<!doctype html><meta charset="utf-8"><iframe width="{width}" height="900"
srcdoc="{page}"></iframe><pre></pre><script>
onload = () => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document
  const sizes = [...page.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect())
  const widest = Math.max(...[...page.querySelectorAll("body *")]
    .filter(each => !each.closest(".scroll") && !each.closest("svg"))
    .map(each => each.getBoundingClientRect().right))
  document.querySelector("pre").textContent = JSON.stringify({{
    figures: sizes.map(size => [size.width, size.height]).filter(([width]) => width > 0),
    headings: [...page.querySelectorAll("h2")].map(each => each.textContent),
    letters: Math.min(...[...page.querySelectorAll("figure svg")]
      .filter(svg => svg.getBoundingClientRect().width > 0)
      .flatMap(svg => [...svg.querySelectorAll("text")])
      .map(text => text.getBoundingClientRect()).map(box => Math.min(box.width, box.height))
      .filter(size => size > 0)),
    inner: view.innerWidth, widest,
  }})
}}
</script>"""


def render_in_browser(text: str, width: int, folder) -> tuple[dict, list[str]]:
    """Sizes of a page's parts in a window of this width, and the browser's complaints."""
    framed = folder / "framed.html"
    framed.write_text(FRAME.format(width=width, page=html.escape(text)), encoding="utf-8")
    own = f"--user-data-dir={folder / 'chromium'}"
    command = [CHROMIUM, *QUIET, own, "--window-size=1400,1000", framed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(told)), complaints


BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.mark.slow
@BROWSER
@pytest.mark.parametrize("width", [1200, 360])
def test_a_browser_shows_all_figures_without_complaints(run_folder, tmp_path, width):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    shown, complaints = render_in_browser(text, width, tmp_path)
    assert complaints == []
    assert shown["headings"] == ["Learning curves", "Memory", "Samples", "Config"]
    assert len(shown["figures"]) >= 8
    assert all(height > 100 for _, height in shown["figures"])
    assert shown["widest"] <= shown["inner"] == width
    assert shown["letters"] > 6


def test_the_page_needs_no_network_and_no_script(run_folder):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|iframe|object|embed|img)|@import|url\((?!#)", text) == []
    assert re.findall(r"""\b(?:src|href)\s*=\s*["'](?!#|data:)""", text) == []
    for part in ("learning_curves", "memory", "samples", "config"):
        assert text.count(f'<section id="{part}">') == 1


@pytest.fixture
def render(make_model, make_data, make_trainer, tmp_path):
    """Make the page of a run with such metrics and notes of its probe."""
    trainer = make_trainer(max_steps=1, limit_val_batches=0)
    trainer.fit(make_model(), datamodule=make_data())

    def render_page(rows=(), **notes) -> str:
        probe = ValidationProbe()
        vars(probe).update(notes)
        return report.render_page(describe_page(trainer, RunMetrics(list(rows)), probe))

    return render_page


def test_a_run_that_logged_nothing_has_a_page(render):
    text = render()
    assert all(words in text for words in ("Nothing was logged.", "There was no validation."))
    assert not any(words in text for words in ("Memory gain", "Samples"))


def test_samples_are_escaped_and_without_control_characters(render):
    text = render(samples=[[1, "<b>given</b><script>alert(1)</script>"]], prompt_len=12)
    assert "<pre><b>&lt;b&gt;given&lt;/b&gt;</b>&lt;script&gt;alert(1)" in text
    text = render(samples=[[1, "a\x00\x07\tb\nc\x7f\u202ed\u2066"]], prompt_len=1)
    assert "<b>a</b>\u2400\u2407\tb\nc\u2421\ufffdd\ufffd</pre>" in text


def test_earlier_samples_are_folded_under_the_latest(render):
    text = render(samples=[[1, "one"], [2, "two"], [3, "three"]])
    assert re.findall(r"after step (\d)", text) == ["3", "2", "1"]
    assert "2 earlier" in text


def test_the_best_validation_is_marked_and_stands_on_top(render):
    values = [(3.0, 4.3, -0.1), (1.0, 1.4, 0.25), (2.0, 2.9, 0.3)]
    rows = [
        {"step": 10 * n, "val/tokens_seen": 100.0 * n, "val/nats": nats, "val/bits_per_byte": bits}
        | {"val/memory_gain": gain, "val/answer_accuracy": 0.25}
        for n, (nats, bits, gain) in enumerate(values, 1)
    ]
    text = render(rows)
    [best] = re.findall(r'<tr class="best">(.*?)</tr>', text)
    assert re.findall(r"<td>(.*?)</td>", best) == ["20", "200", "1.000", "0.250", "1.400", "0.250"]
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert (facts["best validation, bits per byte"], facts["at step"]) == ("1.400", "20")
    assert (facts["right answers"], facts["memory gain, nats"]) == ("25.0%", "0.250")
    [axes] = make_figure(
        partial(plot_memory_gain, metrics=RunMetrics(rows), unit="word"), report.LARGE
    ).axes
    zero, line = axes.lines
    assert line.get_xydata().tolist() == [[100, -0.1], [200, 0.25], [300, 0.3]]
    assert set(zero.get_ydata()) == {0}
    assert axes.get_ylabel() == "nats per word"


def test_learning_curves_are_of_training_and_validation_without_nan():
    names = ("train/tokens_seen", "train/bits_per_byte", "val/tokens_seen", "val/bits_per_byte")
    values = [(1, 8.0, 1, math.inf), (2, math.nan, 2, 6.0), (3, 5.0, 3, math.nan)]
    rows = [{"step": n} | dict(zip(names, row, strict=True)) for n, row in enumerate(values)]
    plot = partial(plot_learning_curves, metrics=RunMetrics(rows))
    [axes] = make_figure(plot, report.LARGE).axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, 8], [3, 5]], [[2, 6]]]
    assert axes.get_ylabel() == "bits per byte"


@pytest.mark.parametrize(("share", "n_axes"), [(0.0, 1), (0.1, 2)])
def test_attention_has_a_colour_scale_only_with_memory(share, n_axes):
    row = {"layer": 1, "head": 1, "mean": 1.0, "nearest_tenth": 0, "median": 1}
    rows = [row | {"farthest_tenth": 2, "on_memory": share}]
    plot = partial(draw_attention, rows=rows, unit="byte")
    assert len(make_figure(plot, report.LARGE).axes) == n_axes


@pytest.fixture
def train(make_model, make_data, make_trainer, tmp_path):
    """Train with a report; `last` is the files in its folder, and its page."""

    def run(*others: Callback, **options) -> tuple[set[str], str]:
        probe, logger = ValidationProbe(10), CSVLogger(tmp_path, name="", version="run")
        options = {"val_check_interval": 3, "log_every_n_steps": 1, "logger": logger} | options
        trainer = make_trainer(callbacks=[probe, Report(probe), *others], **options)
        try:
            trainer.fit(make_model(), datamodule=make_data())
        finally:
            files = {path.name for path in (tmp_path / "run").glob("*.*")}
            path = tmp_path / "run" / "report.html"
            run.last = files, path.read_text() if path.exists() else ""
        return run.last

    return run


def test_a_finished_run_has_its_page_and_pictures(train):
    files, text = train(limit_val_batches=5)
    assert {"report.html", "curve.png", "attention.png", "probe.json"} <= files
    assert "finished, step 6 of 6" in text
    assert text.count("<h3>after step") == 2


class StopAt4(Callback):
    """Raise an error in the fifth step."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_start(self, trainer, *_) -> None:
        if trainer.global_step == 4:
            raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [(SystemExit(143), "stopped, step 4"), (ValueError("no more"), "ended by: no more, step 4")],
    ids=["signal", "error"],
)
def test_a_run_that_is_ended_has_its_page(train, error, status):
    with pytest.raises(type(error)):
        train(StopAt4(error))
    files, text = train.last
    assert "report.html" in files
    assert status in text


def test_a_page_that_cannot_be_written_is_a_warning(train, tmp_path):
    (tmp_path / "runs").write_text("a file where a folder is to be")
    with pytest.warns(UserWarning, match="no report is written"):
        files, _ = train(logger=False)
    assert files == set()


def test_a_trial_of_a_few_steps_leaves_nothing(train):
    assert train(fast_dev_run=2)[0] == set()


def test_a_negative_sample_length_is_refused():
    with pytest.raises(ValueError, match=r"report\.sample_len: invalid -1; .* 0 or more"):
        ReportConfig(sample_len=-1)


def test_a_failing_report_hides_no_error_and_loses_no_checkpoint(
    make_model, make_data, make_trainer, tmp_path, monkeypatch
):
    monkeypatch.setattr(Report, "write_page", lambda *_: {}["nothing"])
    callbacks = [Report(ValidationProbe(0)), StopAt4(RuntimeError("lost"))]
    callbacks.append(LastCheckpoint(dirpath=tmp_path / "kept"))
    options = {"enable_checkpointing": True, "plugins": [AtomicCheckpointIO()]}
    trainer = make_trainer(callbacks=callbacks, **options)
    with (
        pytest.raises(RuntimeError, match="lost"),
        pytest.warns(UserWarning, match=r"KeyError\('nothing'\); no report is written"),
    ):
        trainer.fit(make_model(), datamodule=make_data())
    assert (tmp_path / "kept" / "crash-4.ckpt").is_file()


@pytest.mark.parametrize(("seconds", "pages"), [(0.0, 3), (report.SECONDS, 1)])
def test_the_page_is_written_after_the_first_validation_and_then_seldom(
    train, monkeypatch, seconds, pages
):
    states, write = [], Report.write_page
    monkeypatch.setattr(report, "SECONDS", seconds)
    monkeypatch.setattr(
        Report,
        "write_page",
        lambda self, trainer, state: (states.append(state), write(self, trainer, state)),
    )
    train(val_check_interval=2)
    assert states == ["training"] * pages + ["finished"]


def test_only_rank_0_writes(tmp_path):
    writer, written = Report(ValidationProbe(0)), []
    writer.folder = tmp_path
    for is_zero in (False, True):
        trainer = SimpleNamespace(is_global_zero=is_zero, fast_dev_run=False)
        writer.attempt(trainer, written.append, is_zero)
    assert written == [True]


def test_a_resumed_run_keeps_its_samples(make_model, make_data, make_trainer, tmp_path):
    options = {"val_check_interval": 2, "logger": False}
    for max_steps, start in ((4, None), (6, tmp_path / "a.ckpt")):
        probe = ValidationProbe(5)
        trainer = make_trainer(callbacks=[probe, Report(probe)], max_steps=max_steps, **options)
        trainer.fit(make_model(), datamodule=make_data(), ckpt_path=start)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    text = (tmp_path / "runs" / "report.html").read_text()
    assert re.findall(r"after step (\d)", text) == ["6", "4", "2"]
