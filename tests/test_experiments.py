"""Shipped experiments run and give correct results."""

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments import results
from experiments.novels import run as novels
from experiments.novels import texts
from experiments.speed import steps
from experiments.speed.cases import CASES
from experiments.speed.figures import draw_bench, draw_rounds
from experiments.stop_gradient import texts as stop_gradient_texts
from tests.golden import train_as_recorded
from tests.helpers.pictures import has_curves


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
@pytest.mark.parametrize(
    ("steps", "tolerance"), [(6, 1e-10), pytest.param(150, 1e-8, marks=pytest.mark.slow)]
)
def test_training_reproduces_the_losses_of_the_original_code(steps, tolerance):
    with np.load(train_as_recorded.CURVE) as curve:
        # Every step is clipped.
        assert min(curve["grad_norm"]) > json.loads(str(curve["info"]))["clip_global_norm"]
        found = train_as_recorded.compare(curve, steps)
    assert found["steps"] == steps
    assert found["largest_loss_difference"] < tolerance
    if steps == 150:
        assert found["val_tokens"] == 111_528
        assert found["val_nats_difference"] < tolerance


def test_a_curve_with_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule: 'linear' cannot be repeated"):
        train_as_recorded.schedule({"schedule": "linear", "steps": 9})


@pytest.mark.slow
def test_the_benchmark_measures_each_case_and_draws_it(run_experiment, tmp_path):
    path = tmp_path / "results.json"
    cases = ("train-256", "decode-2100", "eval-64-640")
    options = ("--fast", "--kernels", "sdpa", "--no-peers", "--out", path)
    shown = run_experiment("speed.bench", *options, "--only", *cases)
    record = json.loads(path.read_text())
    assert [case["kind"] for case in record["cases"]] == ["training", "decoding", "evaluation"]
    for case in record["cases"]:
        ours = case["contestants"]["ours"]
        sdpa = case["contestants"]["ours, sdpa"]
        assert 0 < ours["fastest_ms"] <= ours["median_ms"]
        assert sdpa["times_ours"] == pytest.approx(sdpa["fastest_ms"] / ours["fastest_ms"])
        assert sdpa.get("nats_apart", 0) < steps.SAME_NATS
    assert ("SPOILT" in shown) == any(case["spoilt"] for case in record["cases"])
    assert path.with_suffix(".png").is_file()


def test_the_pictures_of_speed_show_the_other_implementations_and_the_paper(repository, tmp_path):
    results = repository / "experiments" / "speed" / "results"
    for draw, name in ((draw_bench, "2026-11-24-bench"), (draw_rounds, "2026-11-22-table-9")):
        draw(results / f"{name}.json", tmp_path / "speed.png")
        assert has_curves(tmp_path / "speed.png")


@pytest.mark.slow
def test_a_token_of_each_case_is_timed_with_and_without_a_ring(run_experiment):
    shown = run_experiment("speed.decoding", "--fast", "--rounds", 2, "--tokens", 1)
    _, *cases = shown.splitlines()
    assert len(cases) == 12
    for case in cases:
        assert len([float(ms) for ms in case.split(": ")[1].split(", ")]) == 4


@pytest.mark.slow
def test_a_contestant_that_fails_is_left_out_of_the_benchmark_with_the_reason(
    run_experiment, tmp_path
):
    path = tmp_path / "results.json"
    options = ("--fast", "--only", "decode-2100", "--no-peers", "--out", path)
    run_experiment("speed.bench", *options, "--original", tmp_path)
    record = json.loads(path.read_text())
    reason = "ModuleNotFoundError: No module named 'mem_transformer'"
    assert record["left_out"] == {"original, decode-2100": reason}
    assert [case["contestants"].keys() for case in record["cases"]] == [{"ours"}]


@pytest.mark.parametrize(
    ("load", "step_ms", "reason"),
    [
        (0.9, 140, None),
        (3.0, 140, "the load was 3.0 before it"),
        (0.9, 160, "half of ours's steps took 1.60 times the fastest"),
    ],
)
def test_a_case_that_other_work_spoilt_says_so(load, step_ms, reason):
    seconds = {"ours": [step_ms / 1e3, step_ms / 1e3, 0.1], "original": [0.05]}
    found = steps.summarize(CASES[0].shrink(), seconds, steps.find_disturbance(seconds, load))
    assert (found["spoilt"], "SPOILT: " in steps.format_case(found)) == (reason, bool(reason))
    assert found["contestants"]["ours"]["fastest_ms"] == pytest.approx(100)
    assert found["contestants"]["original"]["times_ours"] == pytest.approx(0.5)


@pytest.mark.slow
def test_the_check_of_a_gpu_runs_its_parts_on_a_cpu_in_tiny_sizes(run_experiment, tmp_path):
    run_experiment("gpu.check", "--smoke", "--limit", "800", "--results", tmp_path)
    result = json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert {part["status"] for part in result["parts"].values()} == {"done"}
    speed = result["parts"]["speed"]["found"]
    assert {"sdpa"} == {row["kernel"] for row in speed}
    assert {"commit", "machine"} <= result.keys()


def test_experiment_without_its_text_ends_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_DATA", "nowhere")
    monkeypatch.setattr("sys.argv", ["run.py", "--out=results.json"])
    with pytest.raises(SystemExit, match="3"):
        novels.main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    message = "novels98: missing; experiments/novels/texts.py says where to get it; the data fol"
    assert message in line
    assert not Path("results.json").exists()


def test_novels_are_copied_without_marks_and_another_text_is_refused(monkeypatch, tmp_path):
    checksum = hashlib.sha256(b"To be\nor not\n").hexdigest()
    monkeypatch.setattr(texts, "TABLE", tmp_path / "table.tsv")
    rows = "".join(f"{name}.txt\ttest\t{checksum}\n" for name in "ab")
    texts.TABLE.write_text(f"file\tsplit\tsha256\n{rows}")
    (tmp_path / "b.txt").write_bytes(b"To be\nor not\n")
    for folder, text in (
        ("marked", b"\xef\xbb\xbfTo be\r\n\for not\r\n"),
        ("plain", b"To be\nor not\n"),
    ):
        (tmp_path / "a.txt").write_bytes(text)
        texts.copy_novels(tmp_path, tmp_path / folder)
        assert (tmp_path / folder / "test" / "a.txt").read_bytes() == b"To be\nor not\n"
    (tmp_path / "b.txt").write_bytes(b"To be\n")
    with pytest.raises(ValueError, match=r"b\.txt: not the text that was measured"):
        texts.copy_novels(tmp_path, tmp_path / "novels")
    # Not the first novel alone.
    assert not (tmp_path / "novels").exists()


def test_a_prefix_of_enwik8_that_is_not_whole_is_cut_again(monkeypatch, tmp_path):
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    monkeypatch.setattr(stop_gradient_texts, "PREFIX", 9)
    (tmp_path / "whole").write_bytes(b"<mediawiki xmlns")
    monkeypatch.setattr(
        stop_gradient_texts, "place_file", lambda source, folder: [tmp_path / "whole"]
    )
    (tmp_path / "enwik8_prefix.txt").write_bytes(b"<medi")
    assert stop_gradient_texts.find_prefix().read_bytes() == b"<mediawik"


def test_sqlites_source_is_extracted_and_another_text_is_refused(monkeypatch, tmp_path):
    text = tmp_path / "sqlite3.c"
    text.write_bytes(b"int main;")
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        archive.add(text, stop_gradient_texts.MEMBER)
    target = tmp_path / "data" / "sqlite3.txt"
    with pytest.raises(ValueError, match=r"source\.tar\.gz: not the text that was chosen"):
        stop_gradient_texts.extract_sqlite(tmp_path / "source.tar.gz", target)
    assert not target.exists()
    checksum = hashlib.sha256(text.read_bytes()).hexdigest()
    monkeypatch.setattr(stop_gradient_texts, "CHECKSUM", checksum)
    stop_gradient_texts.extract_sqlite(tmp_path / "source.tar.gz", target)
    assert target.read_bytes() == text.read_bytes()


def test_curves_of_one_picture_differ_in_colour_marker_or_line(tmp_path):
    with results.draw_figure(tmp_path / "picture.png", "Ten curves") as axes:
        for height in range(10):
            axes.plot([0, 1], [height, height])
    curves = axes.get_lines()
    looks = {(each.get_color(), each.get_marker(), each.get_linestyle()) for each in curves}
    assert len(looks) == 10


def test_a_repeated_training_has_its_means_and_the_difference_of_the_seed_that_changed_most():
    before = {1: 1.0, 2: 2.0, 3: 4.0}
    rows = results.list_repeats({"a": (before, {2: 1.5, 3: 4.25}), "b": (before, {})})
    assert rows[1:] == [["a", "2, 3", "3.0000", "2.8750", "-0.5000"]]
