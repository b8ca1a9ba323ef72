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

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
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


def import_script(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXPERIMENTS / path)
    # A dataclass looks for the module that it is made in.
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def golden_curve():
    return import_script("reproduction/golden_curve.py")


def original_weights() -> dict[str, torch.Tensor]:
    """Random weights under the original code's names."""
    D, H, K, F = 8, 2, 4, 12
    layer = {
        "dec_attn.qkv_net.weight": (3 * H * K, D), "dec_attn.o_net.weight": (D, H * K),
        "dec_attn.r_net.weight": (H * K, D), "dec_attn.layer_norm.weight": (D,),
        "dec_attn.layer_norm.bias": (D,), "pos_ff.CoreNet.0.weight": (F, D),
        "pos_ff.CoreNet.0.bias": (F,), "pos_ff.CoreNet.3.weight": (D, F),
        "pos_ff.CoreNet.3.bias": (D,), "pos_ff.layer_norm.weight": (D,),
        "pos_ff.layer_norm.bias": (D,),
    }  # fmt: skip
    shapes = {f"layers.{n}.{name}": shape for n in range(2) for name, shape in layer.items()}
    shapes |= {"r_w_bias": (H, K), "r_r_bias": (H, K), "word_emb.emb_layers.0.weight": (26, D)}
    shapes["crit.out_layers.0.bias"] = (26,)
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
    memory, parts = net.eval().empty_memory(3, EvalLengths(12)), []
    with torch.no_grad():
        for segment in Stream.from_tokens(ids[cut:], 3, 7):
            nats, memory = net.loss(segment.tokens_BL, segment.targets_BL, memory)
            parts.append(nats)
    return losses, torch.cat(parts, dim=1).mean().item()


def test_recorded_curve_comes_out_again(golden_curve, text_file, tmp_path):
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


def test_schedule_that_cannot_be_repeated_is_refused(golden_curve):
    with pytest.raises(ValueError, match="schedule: 'linear' cannot be repeated"):
        golden_curve.schedule(INFO | {"schedule": "linear"})


def test_peers_read_the_same_text_in_turn_and_say_how_far_apart_they_are():
    peers = import_script("speed/peers.py")
    config = TransformerXLConfig(n_token=256, n_layer=2, d_model=8, n_head=2, mem_len=12)
    net = TransformerXL(config).eval()
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


def run_script(path: str, *arguments: str, folder: Path) -> str:
    """What an experiment prints."""
    command = [sys.executable, str(EXPERIMENTS / path), *arguments]
    environment = os.environ | {"PYTHONPATH": str(EXPERIMENTS.parent)}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=True, timeout=240, **options).stdout


@pytest.mark.slow
def test_quickstart_trains_measures_and_samples(tmp_path, text_file, repository):
    settings = yaml.safe_load((repository / "configs" / "smoke.yaml").read_text())
    settings["data"] = {"path": str(text_file), "tgt_len": 32, "batch_size": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    shown = run_script("quickstart/run.py", "--config", "small.yaml", folder=tmp_path)
    for expected in ("mem_len    0", "mem_len   32", "bits per byte", "a sample:", " fit --config"):
        assert expected in shown
    assert (tmp_path / "runs" / "smoke" / "version_0" / "curve.png").stat().st_size > 5000


@pytest.mark.slow
def test_wrong_config_of_the_quickstart_is_one_line(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as stop:
        run_script("quickstart/run.py", "--config", "none.yaml", folder=tmp_path)
    assert stop.value.returncode == 2
    assert "Traceback" not in stop.value.stderr
    assert "none.yaml" in stop.value.stderr
