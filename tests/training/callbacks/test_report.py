"""A run leaves a page that needs nothing else, and that can be read in a window of any width."""

import html
import json
import math
import re
import shutil
import subprocess
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch import Callback

from txl_lightning.training.callbacks import report as report_of
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint, WholeFiles
from txl_lightning.training.callbacks.history import History
from txl_lightning.training.callbacks.page import Run, page
from txl_lightning.training.callbacks.plots import WIDE, attention, drawn, learning, saved
from txl_lightning.training.callbacks.report import Report, ReportConfig
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


def seen(text: str, width: int, folder: Path) -> tuple[dict, list[str]]:
    """What a browser makes of a page in a window of this width, and what it complains of."""
    framed = folder / "framed.html"
    framed.write_text(FRAME.format(width=width, page=html.escape(text)), encoding="utf-8")
    own = f"--user-data-dir={folder / 'chromium'}"
    command = [CHROMIUM, *QUIET, own, "--window-size=1400,1000", framed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(told)), complaints


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1200, 360])
def test_a_browser_shows_all_figures_and_complains_of_nothing(run_folder, tmp_path, width):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    shown, complaints = seen(text, width, tmp_path)
    assert complaints == []
    asked = ["Is it learning?", "Validation", "Does memory help?"]
    assert shown["headings"][:3] == asked
    assert "Loss by position in the segment" in shown["headings"]
    assert {"What it writes", "Model", "Environment", "Config"} <= set(shown["headings"])
    assert len(shown["figures"]) >= 8
    assert all(height > 100 for _, height in shown["figures"])
    assert shown["widest"] <= shown["inner"] == width
    assert shown["letters"] > 6


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_browser_would_complain(tmp_path):
    broken = '<figure><svg><path d="M nowhere"/></svg></figure><h2>?</h2>'
    _, complaints = seen(broken, 800, tmp_path)
    assert len(complaints) == 1


class Outside(HTMLParser):
    """What a page would ask a network for, or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Look at one element."""
        if tag in ("script", "iframe", "object", "embed", "img"):
            self.found.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.found.append(value)


def test_a_page_needs_no_network_and_no_script(run_folder):
    text = (run_folder / "report.html").read_text(encoding="utf-8")
    outside = Outside()
    outside.feed(text)
    assert outside.found == []
    assert "@import" not in text
    assert len(re.findall(r"url\((?!#)", text)) == 0


def told(**changes) -> Run:
    """A run of which next to nothing is known."""
    about = {"date": datetime(2026, 1, 1, tzinfo=UTC).isoformat(), "machine": {"cpu": "none"}}
    given = {"name": "runs/version_0", "state": "finished", "step": 0, "max_steps": -1}
    given |= {"unit": "byte", "history": History(), "looks": ValidationProbe(), "parts": {"all": 1}}
    given |= {"memory_bytes": 0, "mem_len": 0, "config": "", "environment": about}
    return Run(**given | changes)


def test_without_a_memory_none_is_spoken_of():
    looks = ValidationProbe()
    looks.nats = [(0, 2.0), (1, 1.0)]
    assert "a segment only the memory tells what" in page(told(looks=looks, mem_len=3))
    assert "a segment nothing tells what stands before" in page(told(looks=looks, mem_len=0))
    row = {"layer": 1, "head": 1, "mean": 1.0, "nearest_tenth": 0, "median": 1}
    row |= {"farthest_tenth": 2}
    for share, n_axes in ((0.0, 1), (0.1, 2)):
        looks.attention = [row | {"on_memory": share}]
        assert len(drawn(attention(looks, "byte"), WIDE).axes) == n_axes


def test_of_a_task_the_right_answers_are_seen_first():
    history = History()
    history.validations = [{"step": 1, "tokens": 8, "nats": 1.0, "answer_accuracy": 0.25}]
    assert "<dt>answers that are right</dt><dd>25.0%</dd>" in page(told(history=history))


def test_a_run_that_logged_nothing_has_a_page():
    assert "Nothing was logged." in page(told())


def test_what_a_model_writes_is_no_part_of_the_page():
    looks = ValidationProbe()
    looks.samples, looks.prompt = [[1, "<b>given</b><script>alert(1)</script>"]], 12
    text = page(told(looks=looks, name="</title><script>", config="a: <i>"))
    assert "<pre><b>&lt;b&gt;given&lt;/b&gt;</b>&lt;script&gt;alert(1)" in text
    assert "<script" not in text
    assert "<i>" not in text


def test_the_best_validation_is_marked_and_first_to_be_seen():
    history = History()
    history.validations = [
        {"step": 10 * n, "tokens": 100 * n, "nats": nats, "bits_per_byte": bits}
        for n, (nats, bits) in enumerate([(3.0, 4.3), (1.0, 1.4), (2.0, 2.9)], 1)
    ]
    text = page(told(history=history))
    [best] = re.findall(r"<tr class=best>(.*?)</tr>", text)
    assert re.findall(r"<td>(.*?)</td>", best) == ["20", "200", "1.000", "1.400"]
    assert "<dt>best validation, bits per byte</dt><dd>1.400</dd>" in text


def test_what_memory_saves_is_seen_first_of_the_best_validation_and_drawn():
    history = History()
    assert "Does memory help?" not in page(told(history=history))
    history.validations = [
        {"step": n, "tokens": 8 * n, "saved_by_memory": less, "nats": nats}
        for n, (less, nats) in enumerate([(-0.1, 2.0), (0.25, 1.0), (0.3, 3.0)], 1)
    ]
    text = page(told(history=history))
    assert "<dt>nats saved by memory</dt><dd>0.250</dd>" in text
    assert text.count("<h2>Does memory help?</h2>") == 1
    head = re.findall(r"<th>(.*?)</th>", text)
    assert head[: len(history.validations[0])] == ["step", "tokens", "nats", "saved by memory"]
    [axes] = drawn(saved(history, "word"), WIDE).axes
    zero, line = axes.lines
    assert line.get_xydata().tolist() == [[8, -0.1], [16, 0.25], [24, 0.3]]
    assert set(zero.get_ydata()) == {0}
    assert axes.get_ylim()[0] < -0.1
    assert axes.get_ylabel() == "nats per word"


@pytest.fixture
def train(make_model, make_data, make_trainer, tmp_path):
    """Train with a report; what is in its folder, and what it says."""

    def run(*others: Callback, **options) -> tuple[set[str], str]:
        history, looks = History(), ValidationProbe(10)
        callbacks = [history, looks, Report(history, looks), *others]
        options = {"val_check_interval": 3, "log_every_n_steps": 1} | options
        trainer = make_trainer(callbacks=callbacks, **options)
        try:
            trainer.fit(make_model(), datamodule=make_data())
        finally:
            files = {path.name for path in (tmp_path / "runs").glob("*.*")}
            path = tmp_path / "runs" / "report.html"
            run.last = files, path.read_text() if path.exists() else ""
        return run.last

    return run


def test_a_run_that_ends_has_its_pictures_and_says_so(train):
    files, text = train(limit_val_batches=5)
    assert {"report.html", "curve.png", "attention.png"} == files
    assert "finished, step 6 of 6" in text
    assert text.count("<h3>after step") == 2


class Ends(Callback):
    """End a run after a step."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_start(self, trainer, *_) -> None:
        """Now."""
        if trainer.global_step == 4:
            raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [(SystemExit(143), "stopped, step 4"), (ValueError("no more"), "ended by: no more, step 4")],
)
def test_a_run_that_is_ended_says_how(train, error, said):
    with pytest.raises(type(error)):
        train(Ends(error))
    files, text = train.last
    assert "report.html" in files
    assert said in text


def test_a_page_that_cannot_be_written_is_no_reason_to_stop(train, tmp_path):
    (tmp_path / "runs").write_text("a file where a folder is to be")
    with pytest.warns(UserWarning, match="no report is written"):
        files, _ = train()
    assert files == set()


def test_a_trial_of_a_few_steps_leaves_nothing(train):
    files, _ = train(fast_dev_run=2)
    assert files == set()


def test_a_sample_has_no_negative_length():
    with pytest.raises(ValueError, match=r"report\.sample_len: invalid -1; .* 0 or more"):
        ReportConfig(sample_len=-1)


class Reportless(Report):
    """One that cannot tell."""

    def tell(self, trainer, state):
        raise KeyError("nothing")


def test_what_cannot_be_told_hides_no_error_and_loses_no_checkpoint(
    make_model, make_data, make_trainer, tmp_path
):
    history = History()
    callbacks = [history, Reportless(history, ValidationProbe(0)), Ends(RuntimeError("lost"))]
    callbacks.append(LastCheckpoint(dirpath=tmp_path / "kept"))
    options = {"log_every_n_steps": 1, "enable_checkpointing": True, "plugins": [WholeFiles()]}
    trainer = make_trainer(callbacks=callbacks, **options)
    with (
        pytest.raises(RuntimeError, match="lost"),
        pytest.warns(UserWarning, match=r"KeyError\('nothing'\); no report is written"),
    ):
        trainer.fit(make_model(), datamodule=make_data())
    assert (tmp_path / "kept" / "crash-4.ckpt").is_file()


@pytest.mark.parametrize(("seconds", "pages"), [(0.0, 3), (report_of.SECONDS, 1)])
def test_a_page_is_written_first_and_now_and_then(
    make_model, make_data, make_trainer, monkeypatch, seconds, pages
):
    told, history = [], History()
    monkeypatch.setattr(report_of, "SECONDS", seconds)
    monkeypatch.setattr(report_of, "page", lambda run: told.append(run.state) or "")
    callbacks = [history, Report(history, ValidationProbe(0))]
    trainer = make_trainer(callbacks=callbacks, val_check_interval=2, log_every_n_steps=1)
    trainer.fit(make_model(), datamodule=make_data())
    assert told == ["training"] * pages + ["finished"]


def test_only_the_first_of_several_processes_writes(tmp_path):
    reporter, said = Report(History(), ValidationProbe(0)), []
    reporter.folder = tmp_path
    for is_first in (False, True):
        trainer = SimpleNamespace(is_global_zero=is_first, fast_dev_run=False)
        reporter.write(trainer, lambda trainer: said.append(trainer.is_global_zero))
    assert said == [True]


def test_the_curve_is_of_training_and_of_validation():
    history = History()
    history.curves["bits_per_byte"] = [(1, 8.0), (2, math.nan), (3, 5.0)]
    history.validations = [{"tokens": 2, "nats": 4.0, "bits_per_byte": 6.0}]
    [axes] = drawn(learning(history), WIDE).axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, 8], [3, 5]], [[2, 6]]]
    assert axes.get_ylabel() == "bits per byte"


def test_what_a_page_must_not_hold_is_shown_by_a_sign():
    looks = ValidationProbe()
    looks.samples, looks.prompt = [[1, "a\x00\x07\tb\nc\x7f\u202ed\u2066"]], 1
    text = page(told(looks=looks))
    assert "<b>a</b>\u2400\u2407\tb\nc\u2421\ufffdd\ufffd</pre>" in text
