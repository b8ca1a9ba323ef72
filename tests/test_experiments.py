"""Experiments that are shipped do what they say."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from txl_lightning import stream_nats
from txl_lightning.convert import load_original
from txl_lightning.model import CachedReader

HERE = Path(__file__).parent
CURVE = {
    "steps": 9, "batch_size": 3, "tgt_len": 7, "mem_len": 9, "eval_mem_len": 12,
    "optimizer": "Adam", "betas": [0.9, 0.999], "clip_global_norm": 0.25,
    "schedule": "cosine to 0 over 9 steps, no warm-up, stepped once per update",
    # Nothing is learnt, so that the losses are the nats of the text.
    "lr": 1e-30,
}  # fmt: skip


def import_script(path: str):
    source = HERE.parent / "experiments" / path
    spec = importlib.util.spec_from_file_location(source.stem, source)
    # A dataclass looks for the module that it is made in.
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recorded_curve_comes_out_again(tmp_path):
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
        found = golden_curve.compare(curve, str(tmp_path / "text.txt"), str(tmp_path / "data"))
    assert found["steps"] == 9
    assert found["largest_loss_difference"] < 1e-12
    assert found["val_nats_difference"] < 1e-12
    assert found["val_tokens"] == 3 * (200 // 3 - 1)
    with pytest.raises(ValueError, match="schedule: 'linear' cannot be repeated"):
        golden_curve.schedule(CURVE | {"schedule": "linear"})


def test_peers_read_the_same_text_in_turn_and_say_how_far_apart_they_are(make_net):
    peers = import_script("speed/peers.py")
    net = make_net(n_token=256, mem_len=12).float()
    readers = {"ours": CachedReader(net), "ours, hidden states": net}
    with torch.inference_mode():
        steps = {name: peers.Ours(net, net.empty_memory(2)) for name, net in readers.items()}
        found = peers.measure(steps, 4, 12, 2, rounds=2)
    assert found["ours"]["times ours"] == 1
    assert found["ours, hidden states"]["nats apart"] < 1e-4
    layers = sum(p.numel() for p in (*net.layers.parameters(), *net.head.parameters()))
    per_token_of_memory = 2 * 3 * 8
    assert peers.bytes_read(net, 13) - peers.bytes_read(net, 12) == 4 * per_token_of_memory
    assert peers.bytes_read(net, 0) == 4 * (layers + 2 * 8)


@pytest.mark.slow
def test_quickstart_trains_measures_and_samples(tmp_path, text_file, capsys, monkeypatch):
    settings = yaml.safe_load((HERE.parent / "configs" / "smoke.yaml").read_text())
    settings["data"] = {"path": str(text_file), "tgt_len": 32, "batch_size": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(tmp_path)
    quickstart = import_script("quickstart/run.py")
    monkeypatch.setattr(sys, "argv", ["run.py", "--config", "small.yaml"])
    quickstart.main()
    shown = capsys.readouterr().out
    for expected in ("mem_len    0", "mem_len   32", "bits per byte", "a sample:", " fit --config"):
        assert expected in shown
    assert (tmp_path / "runs" / "smoke" / "version_0" / "curve.png").stat().st_size > 5000
    monkeypatch.setattr(sys, "argv", ["run.py", "--config", "none.yaml"])
    with pytest.raises(SystemExit, match="2"):
        quickstart.main()
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_the_check_of_a_gpu_runs_its_parts_on_a_cpu_in_tiny_sizes(tmp_path):
    check = HERE.parent / "experiments" / "gpu" / "check.py"
    command = [sys.executable, str(check), "--smoke", "--limit", "800"]
    done = subprocess.run([*command, "--results", tmp_path], capture_output=True, text=True)
    result = json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert {part["status"] for part in result["parts"].values()} == {"done"}
    speed, [resume] = (result["parts"][name]["found"] for name in ("speed", "resume"))
    assert {"sdpa", "matmul", "flex", "triton"} <= {found["kernel"] for found in speed}
    assert resume["resumes_exactly"]
