"""Experiments that are shipped do what they say."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from txl_lightning.convert import load_original
from txl_lightning.data.stream import Stream
from txl_lightning.model import CachedReader, EvalLengths, TransformerXL, TransformerXLConfig
from txl_lightning.model.kernels import KERNELS

SCRIPT = Path(__file__).parents[1] / "experiments" / "reproduction" / "golden_curve.py"
INFO = {
    "steps": 9, "batch_size": 3, "tgt_len": 7, "mem_len": 9, "eval_mem_len": 12,
    "optimizer": "Adam", "betas": [0.9, 0.999], "lr": 0.003, "clip_global_norm": 0.25,
    "schedule": "cosine to 0 over 9 steps, no warm-up, stepped once per update",
    "model": {
        "n_token": 26, "n_layer": 2, "n_head": 2, "d_model": 8, "d_head": 4, "d_inner": 12,
        "mem_len": 5, "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1,
        "pre_lnorm": False, "dropout": 0.0, "dropatt": 0.0,
    },
}  # fmt: skip


@pytest.fixture
def golden_curve():
    spec = importlib.util.spec_from_file_location("golden_curve", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def original_weights() -> dict[str, torch.Tensor]:
    """Random weights under the original code's names."""
    model, D, H, K, F = INFO["model"], 8, 2, 4, 12
    shapes = {"r_w_bias": (H, K), "r_r_bias": (H, K), "word_emb.emb_layers.0.weight": (26, D)}
    shapes["crit.out_layers.0.bias"] = (26,)
    for n in range(model["n_layer"]):
        attention, forward = f"layers.{n}.dec_attn.", f"layers.{n}.pos_ff."
        shapes |= {
            attention + "qkv_net.weight": (3 * H * K, D), attention + "o_net.weight": (D, H * K),
            attention + "r_net.weight": (H * K, D), attention + "layer_norm.weight": (D,),
            attention + "layer_norm.bias": (D,), forward + "CoreNet.0.weight": (F, D),
            forward + "CoreNet.0.bias": (F,), forward + "CoreNet.3.weight": (D, F),
            forward + "CoreNet.3.bias": (D,), forward + "layer_norm.weight": (D,),
            forward + "layer_norm.bias": (D,),
        }  # fmt: skip
    return {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def recorded_by_hand(weights, text: bytes) -> tuple[list[float], float]:
    """The losses and the validation nats of a loop that anyone can read."""
    args = INFO["model"] | {"mem_len": INFO["mem_len"]}
    net = load_original({k: v.double() for k, v in weights.items()}, args).train()
    ids = np.frombuffer(text, np.uint8) - ord("a")
    cut = int(0.9 * len(ids))
    stream, memory, losses = Stream.from_tokens(ids[:cut], 3, 7), None, []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    for step in range(INFO["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = 0.003 * 0.5 * (1 + math.cos(math.pi * step / INFO["steps"]))
        segment = stream.segment(step)
        nats, memory = net.loss(segment.tokens_BL, segment.targets_BL, memory)
        optimizer.zero_grad()
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        losses.append(nats.mean().item())
    stream, memory, parts = (
        Stream.from_tokens(ids[cut:], 3, 7),
        net.eval().empty_memory(3, EvalLengths(12)),
        [],
    )
    with torch.no_grad():
        for index in range(len(stream)):
            segment = stream.segment(index)
            nats, memory = net.loss(segment.tokens_BL, segment.targets_BL, memory)
            parts.append(nats)
    return losses, torch.cat(parts, dim=1).mean().item()


def test_a_recorded_curve_comes_out_again(golden_curve, text_file, tmp_path):
    weights = original_weights()
    losses, val_nats = recorded_by_hand(weights, text_file.read_bytes())
    arrays = {f"init.{name}": tensor.numpy() for name, tensor in weights.items()}
    info = json.dumps(INFO | {"val_nats": val_nats})
    np.savez(tmp_path / "curve.npz", loss=np.array(losses), info=np.array(info), **arrays)
    with np.load(tmp_path / "curve.npz") as curve:
        found = golden_curve.compare(curve, str(text_file), str(tmp_path / "data"))
    assert found["steps"] == 9
    assert found["largest_loss_difference"] < 1e-12
    assert found["val_nats_difference"] < 1e-12
    assert found["val_tokens"] == 3 * (600 // 3 - 1)


def test_a_schedule_that_cannot_be_repeated_is_refused(golden_curve):
    with pytest.raises(ValueError, match="schedule: 'linear' cannot be repeated"):
        golden_curve.schedule(INFO | {"schedule": "linear"})


def test_peers_read_the_same_text_in_turn_and_say_how_far_apart_they_are():
    script = Path(__file__).parents[1] / "experiments" / "speed" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", script)
    peers = importlib.util.module_from_spec(spec)
    # A dataclass looks for the module that it is made in.
    sys.modules["peers"] = peers
    spec.loader.exec_module(peers)
    config = TransformerXLConfig(n_token=256, n_layer=2, d_model=8, n_head=2, mem_len=12)
    net = TransformerXL(config).eval()
    memories = {
        "ours": CachedReader(net).empty_memory(2),
        "ours, hidden states": net.empty_memory(2),
    }
    with torch.inference_mode():
        steps = {
            "ours": peers.Ours(CachedReader(net), memories["ours"]),
            "ours, hidden states": peers.Ours(net, memories["ours, hidden states"]),
        }
        found = peers.measure(steps, 4, 12, 2, rounds=2)
    assert found["ours"]["times ours"] == 1
    assert found["ours, hidden states"]["nats apart"] < 1e-4
    layers = sum(p.numel() for p in (*net.layers.parameters(), *net.head.parameters()))
    per_token_of_memory = 2 * 3 * 8
    assert peers.bytes_read(net, 13) - peers.bytes_read(net, 12) == 4 * per_token_of_memory
    assert peers.bytes_read(net, 0) == 4 * (layers + 2 * 8)


def run_script(path: str, *arguments: str, folder: Path) -> str:
    """What an experiment prints."""
    script = Path(__file__).parents[1] / "experiments" / path
    command = [sys.executable, str(script), *arguments]
    environment = os.environ | {"PYTHONPATH": str(script.parents[2])}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=True, timeout=240, **options).stdout


def test_the_quickstart_trains_measures_and_samples(tmp_path, text_file, repository):
    settings = yaml.safe_load((repository / "configs" / "smoke.yaml").read_text())
    settings["data"] = {"path": str(text_file), "tgt_len": 32, "batch_size": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    shown = run_script("quickstart/run.py", "--config", "small.yaml", folder=tmp_path)
    for expected in ("mem_len    0", "mem_len   32", "bits per byte", "a sample:", " fit --config"):
        assert expected in shown
    assert (tmp_path / "runs" / "smoke" / "version_0" / "curve.png").stat().st_size > 5000


def test_a_wrong_config_of_the_quickstart_is_one_line(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as stop:
        run_script("quickstart/run.py", "--config", "none.yaml", folder=tmp_path)
    assert stop.value.returncode == 2
    assert "Traceback" not in stop.value.stderr
    assert "none.yaml" in stop.value.stderr


def test_every_kernel_is_timed(tmp_path):
    options = ("--rounds=2", "--batch_size=2", "--tgt_len=4", "--mem_len=4")
    found = json.loads(run_script("kernels/speed.py", *options, folder=tmp_path))
    assert all(found[kernel]["best_tokens_per_second"] > 0 for kernel in KERNELS)


def test_curves_of_two_precisions_are_compared(tmp_path, text_file):
    small = ["--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=8"]
    small += ["--data.tgt_len=8", "--data.batch_size=4", "--trainer.accelerator=cpu"]
    small += ["--trainer.max_steps=4", "--trainer.val_check_interval=2"]
    small += ["--trainer.log_every_n_steps=1", f"--data.path={text_file}"]
    options = ("--precisions", "64-true", "bf16-mixed", "--", *small)
    said = run_script("precision/curves.py", *options, folder=tmp_path).splitlines()[-4:]
    assert [line.split()[0] for line in said] == [
        "train/nats:",
        "bf16-mixed",
        "val/nats:",
        "bf16-mixed",
    ]
    train, val = (float(line.split()[-3].rstrip("%")) for line in said[1::2])
    assert 0 < train < 1
    assert 0 <= val < 1
