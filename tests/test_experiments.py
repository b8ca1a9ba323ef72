"""Shipped experiments run and give correct results."""

import copy
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.music import run as music
from experiments.novels import run as novels
from experiments.novels import texts
from experiments.speed import summary
from experiments.speed.cases import CASES
from experiments.speed.figures import draw_bench
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


@pytest.fixture(scope="module")
def bench(run_experiment, tmp_path_factory):
    """The benchmark of one case of each kind at tiny sizes: its results' file, and its output."""
    path = tmp_path_factory.mktemp("speed") / "results.json"
    cases = ("train-256", "decode-2100", "eval-64-640", "train-256-bf16")
    shown = run_experiment("speed.bench", "--fast", "--only", *cases, "--no-peers", "--out", path)
    return path, shown


@pytest.mark.slow
def test_the_benchmark_measures_each_case_and_draws_it(bench):
    path, shown = bench
    record = json.loads(path.read_text())
    training, _, decoding, *_ = record["cases"]
    kinds = [(case["kind"], case["dtype"]) for case in record["cases"]]
    both = [("training", "float32"), ("training", "bfloat16")]
    assert kinds == [*both, ("decoding", "float32"), ("evaluation", "float32")]
    assert set(training["contestants"]) == {"ours", "products alone"}
    assert set(decoding["contestants"]) == {"ours", "products alone", "reading its bytes"}
    for case in record["cases"]:
        ours = case["contestants"]["ours"]
        assert 0 < ours["fastest_ms"] <= ours["median_ms"]
        assert 0 < ours["share_of_peak"] < 1
        assert ours["operations_ms"] > 0
        assert ours["memory_mb"] > 0
        assert (case["basis"] == "fastest step") == (case["spoilt"] is None)
    assert ("SPOILT" in shown) == any(case["spoilt"] for case in record["cases"])
    assert path.with_suffix(".png").is_file()


def test_the_picture_of_a_benchmark_shows_the_other_implementations(repository, tmp_path):
    results = repository / "experiments" / "speed" / "results" / "2026-11-24-bench.json"
    assert has_curves(draw_bench(results, tmp_path / "bench.png"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "isa", [pytest.param("DEFAULT", marks=pytest.mark.bfloat16), "AVX2"], ids=["default", "avx2"]
)
def test_bf16_weights_are_left_out_of_the_benchmark_where_the_cpu_lacks_bfloat16(
    isa, run_experiment, tmp_path
):
    path = tmp_path / "results.json"
    options = ("--fast", "--only", "eval-64-640-bf16", "decode-2100", "--no-peers", "--out", path)
    run_experiment("speed.bench", *options, ONEDNN_MAX_CPU_ISA=isa)
    record = json.loads(path.read_text())
    names = [case["name"] for case in record["cases"]]
    reason = "ValueError: weights: invalid bf16; expected float32 on this cpu"
    if isa == "AVX2":
        assert names == ["decode-2100"]
        assert record["left_out"] == {"ours, eval-64-640-bf16": reason}
    else:
        assert names == ["decode-2100", "eval-64-640-bf16"]
        assert record["left_out"] == {}


@pytest.mark.parametrize(
    ("load", "product_ms", "step_ms", "reason"),
    [
        (0.9, 12, 140, None),
        (3.0, 12, 140, "the load was 3.0 before it"),
        (0.9, 13, 140, "a quarter of the products took 1.30 times the fastest, or more"),
        (0.9, 12, 160, "half of ours's steps took 1.60 times the fastest"),
    ],
)
def test_a_spoilt_case_is_named_and_counted_by_its_operations(load, product_ms, step_ms, reason):
    machine = summary.Machine(1, load)
    machine.seconds = [0.01, 0.01, 0.01, product_ms / 1e3]
    case = CASES[0].shrink()
    seconds = {"ours": [step_ms / 1e3, step_ms / 1e3, 0.1], summary.FLOOR: [0.05]}
    sums = {"ours": 0.08, summary.FLOOR: 0.02}
    details = {name: {"memory_mb": 9} for name in seconds}
    times = summary.Times(seconds, machine, machine.find_disturbance(seconds), sums, machine)
    found = summary.summarize(case, times, details)
    assert (found["spoilt"], "SPOILT: " in summary.format_case(found)) == (reason, bool(reason))
    trusted, floor = (0.08, 0.02) if reason else (0.1, 0.05)
    ours = found["contestants"]["ours"]
    assert ours["tokens_per_second"] == pytest.approx(case.tokens / trusted)
    assert ours["share_of_floor"] == pytest.approx(floor / trusted)
    assert ours["share_of_peak"] == pytest.approx(case.flops / trusted / (2 * 1024**3 / 0.01))


@pytest.mark.slow
def test_a_slowdown_beyond_the_tolerance_is_named(bench):
    record = json.loads(bench[0].read_text())
    lines, is_slower = summary.compare(record, record, 0.15)
    assert not is_slower
    assert len(lines) == 4
    faster = copy.deepcopy(record)
    for field in ("fastest_ms", "operations_ms"):
        faster["cases"][2]["contestants"]["ours"][field] /= 1.2
    lines, is_slower = summary.compare(record, faster, 0.15)
    assert is_slower
    assert ["SLOWER" in line for line in lines] == [False, False, True, False]
    assert lines[2].startswith("decode-2100, ours: +20.0%")
    assert not summary.compare(record, faster, 0.25)[1]
    record["cases"][0]["sizes"]["d_model"] += 2
    assert "nothing to compare" in summary.compare(record, faster, 0.25)[0][0]


def test_the_products_of_a_step_match_the_usual_flop_count():
    for case in CASES:
        flops = sum(2 * np.prod(np.array(product, float)) for product in case.products())
        # The usual count has half of a segment's own scores, no keys of memory and no clamp_len.
        least, most = (1, 2) if case.trains else (0.85, 1.1)
        assert least < flops / case.flops < most, case.name


@pytest.mark.slow
def test_the_check_of_a_gpu_runs_its_parts_on_a_cpu_in_tiny_sizes(run_experiment, tmp_path):
    run_experiment("gpu.check", "--smoke", "--limit", "800", "--results", tmp_path)
    result = json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert {part["status"] for part in result["parts"].values()} == {"done"}
    speed, resume = (result["parts"][name]["found"] for name in ("speed", "resume"))
    assert {"sdpa", "matmul"} == {row["kernel"] for row in speed}
    assert [row["resumed"] for row in resume] == [0, 0]
    assert {"commit", "machine"} <= result.keys()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            novels,
            "novels98: missing; experiments/novels/texts.py says where to get it; the data fol",
        ),
        (music, "names.json: missing; experiments/music/chorales.py makes it, for --ids"),
    ],
)
def test_experiment_without_its_text_ends_in_one_line(
    module, message, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_DATA", "nowhere")
    monkeypatch.setattr("sys.argv", ["run.py", "--out=results.json"])
    with pytest.raises(SystemExit, match="3"):
        module.main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not Path("results.json").exists()


def test_novels_are_copied_without_marks_and_another_text_is_refused(monkeypatch, tmp_path):
    checksum = hashlib.sha256(b"To be\nor not\n").hexdigest()
    monkeypatch.setattr(texts, "TABLE", tmp_path / "table.tsv")
    texts.TABLE.write_text(f"file\tsplit\tsha256\na.txt\ttest\t{checksum}\n")
    for text in (b"\xef\xbb\xbfTo be\r\n\for not\r\n", b"To be\nor not\n"):
        (tmp_path / "a.txt").write_bytes(text)
        texts.copy_novels(tmp_path, tmp_path / "novels")
        assert (tmp_path / "novels" / "test" / "a.txt").read_bytes() == b"To be\nor not\n"
    (tmp_path / "a.txt").write_bytes(b"To be\n")
    with pytest.raises(ValueError, match=r"a\.txt: not the text that was measured"):
        texts.copy_novels(tmp_path, tmp_path / "novels")
