"""Shipped experiments run and give correct results."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.convert import load_original

HERE = Path(__file__).parent
CURVE = {
    "steps": 9, "batch_size": 3, "tgt_len": 7, "mem_len": 9, "eval_mem_len": 12,
    "optimizer": "Adam", "betas": [0.9, 0.999], "clip_global_norm": 0.25,
    "schedule": "cosine to 0 over 9 steps, no warm-up, stepped once per update",
    # The learning rate is almost 0, so that the losses are the nats of the text.
    "lr": 1e-30,
}  # fmt: skip


def import_script(path: str):
    source = HERE.parent / "experiments" / path
    spec = importlib.util.spec_from_file_location(source.stem, source)
    # dataclass needs the module in sys.modules.
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
def test_training_reproduces_the_recorded_curve(tmp_path):
    with np.load(HERE / "golden" / "original" / "a_default.npz") as golden:
        args = json.loads(str(golden["config"]))
        weights = {n[3:]: torch.from_numpy(golden[n]) for n in golden.files if n.startswith("sd.")}
    net = load_original({name: weight.double() for name, weight in weights.items()}, args)
    ids = np.random.default_rng(0).integers(0, args["n_token"], 2000)
    (tmp_path / "text.txt").write_bytes((ids + 48).astype(np.uint8).tobytes())
    sizes = {name: CURVE[name] for name in ("batch_size", "tgt_len")}
    train_BT = stream_nats(net, ids[:1800], mem_len=9, **sizes)[:, : 9 * 7]
    info = {
        "model": args,
        "val_nats": stream_nats(net, ids[1800:], mem_len=12, **sizes).mean().item(),
    }
    np.savez(
        tmp_path / "curve.npz",
        loss=train_BT.view(3, 9, 7).mean((0, 2)).numpy(),
        info=np.array(json.dumps(CURVE | info)),
        **{f"init.{name}": weight.numpy() for name, weight in weights.items()},
    )
    golden_curve = import_script("reproduction/golden_curve.py")
    with np.load(tmp_path / "curve.npz") as curve:
        result = golden_curve.compare(curve, str(tmp_path / "text.txt"), str(tmp_path / "data"))
    assert result["steps"] == 9
    assert result["largest_loss_difference"] < 1e-12
    assert result["val_nats_difference"] < 1e-12
    assert result["val_tokens"] == 3 * (200 // 3 - 1)
    with pytest.raises(ValueError, match="schedule: 'linear' cannot be repeated"):
        golden_curve.schedule(CURVE | {"schedule": "linear"})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run the speed benchmark for one case of each kind, at tiny sizes; return its results."""
    path = tmp_path_factory.mktemp("speed") / "results.json"
    cases = ("train-256", "decode-2100", "eval-64-640")
    shown = run_speed("bench.py", "--only", *cases, "--no-peers", "--out", path)
    return path, json.loads(path.read_text()), shown


def run_speed(script, *options, code=0):
    command = [sys.executable, HERE.parent / "experiments" / "speed" / script, "--smoke", *options]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == code, process.stderr
    return process.stdout


@pytest.mark.slow
def test_the_benchmark_measures_each_case_and_draws_it(results):
    path, record, shown = results
    training, decoding, _ = record["cases"]
    assert [case["kind"] for case in record["cases"]] == ["training", "decoding", "evaluation"]
    assert set(training["contestants"]) == {"ours", "products alone"}
    assert set(decoding["contestants"]) == {"ours", "products alone", "reading its bytes"}
    for case in record["cases"]:
        ours = case["contestants"]["ours"]
        assert 0 < ours["fastest_ms"] <= ours["median_ms"]
        assert 0 < ours["share_of_peak"] < 1
        assert ours["operations_ms"] > 0
        assert ours["memory_mb"] > 0
        assert (case["basis"] == "fastest step") == (case["spoilt"] is None)
        assert ("SPOILT" in shown) or case["spoilt"] is None
    assert path.with_suffix(".png").stat().st_size > 5000


@pytest.mark.slow
def test_a_slowdown_beyond_the_tolerance_is_named(results, monkeypatch):
    monkeypatch.syspath_prepend(HERE.parent / "experiments" / "speed")
    compare = import_script("speed/results.py").compare
    _, record, _ = results
    lines, is_slower = compare(record, record, 0.15)
    assert not is_slower
    assert len(lines) == 3
    faster = copy.deepcopy(record)
    for field in ("fastest_ms", "operations_ms"):
        faster["cases"][1]["contestants"]["ours"][field] /= 1.2
    lines, is_slower = compare(record, faster, 0.15)
    assert is_slower
    assert ["SLOWER" in line for line in lines] == [False, True, False]
    assert lines[1].startswith("decode-2100, ours: +20.0%")
    assert not compare(record, faster, 0.25)[1]
    record["cases"][0]["sizes"]["d_model"] += 2
    assert "nothing to compare" in compare(record, faster, 0.25)[0][0]


def test_the_products_of_a_step_match_the_usual_flop_count(monkeypatch):
    monkeypatch.syspath_prepend(HERE.parent / "experiments" / "speed")
    cases = import_script("speed/cases.py").CASES
    for case in cases:
        flops = sum(2 * np.prod(np.array(product, float)) for product in case.products())
        # The usual count has half of a segment's own scores, no keys of memory and no clamp_len.
        least, most = (1, 2) if case.trains else (0.85, 1.1)
        assert least < flops / case.flops < most, case.name


@pytest.mark.slow
def test_scaling_fits_a_line_and_compares_two_processes_with_one(tmp_path):
    path = tmp_path / "scaling.json"
    shown = run_speed("scaling.py", "--out", path)
    record = json.loads(path.read_text())
    for curve in record["memory"]["curves"].values():
        assert len(curve["us_per_token"]) == 6
        assert min(curve["us_per_token"]) > 0
    assert all(speedup > 0 for speedup in record["processes"]["speedup"].values())
    assert "two, rows shared" in shown
    assert path.with_suffix(".png").stat().st_size > 5000


@pytest.mark.slow
def test_the_check_of_a_gpu_runs_its_parts_on_a_cpu_in_tiny_sizes(tmp_path):
    check = HERE.parent / "experiments" / "gpu" / "check.py"
    command = [sys.executable, str(check), "--smoke", "--limit", "800"]
    done = subprocess.run([*command, "--results", tmp_path], capture_output=True, text=True)
    result = json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert {part["status"] for part in result["parts"].values()} == {"done"}
    speed, [resume] = (result["parts"][name]["found"] for name in ("speed", "resume"))
    assert {"sdpa", "matmul", "flex", "triton"} <= {row["kernel"] for row in speed}
    assert resume["resumes_exactly"]
