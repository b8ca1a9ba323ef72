"""Weights of the original and of NVIDIA: golden nats and memories, every tensor there and back."""

from pathlib import Path

import pytest
import torch

from txl_lightning.convert import load_nvidia, load_original
from txl_lightning.convert.nvidia import map_nvidia_weights
from txl_lightning.convert.weight_names import COMPUTED, export_weights, map_original_weights

CODES = {
    "nvidia": (load_nvidia, map_nvidia_weights),
    "original": (load_original, map_original_weights),
}
GOLDEN = Path(__file__).parents[1] / "golden"
FILES = [path for code in CODES for path in sorted((GOLDEN / code).glob("*.npz"))]
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES if path.stem != "checkpoint_best"]


@pytest.mark.parametrize("name", NAMES)
def test_network_gives_golden_nats_and_memories_and_every_tensor_back(open_golden, name):
    golden = open_golden(name)
    load, map_weights = CODES[name.split("/")[0]]
    net = load(golden.weights, golden.args)
    golden.check(net)
    back = export_weights(net.state_dict(), map_weights(net.config))
    assert back.keys() >= golden.weights.keys() - COMPUTED
    # NVIDIA leaves tied tensors out; the original writes all.
    assert name.startswith("nvidia") or back.keys() <= golden.weights.keys()
    for key in golden.weights.keys() - COMPUTED:
        # Of a learned table, the original may hold more rows than clamp_len lets it use.
        expected, n_row = golden.weights[key], back[key].shape[1:2].numel()
        used = expected[:, -n_row:] if key in ("r_emb", "r_bias") else expected
        assert torch.equal(back[key].to(used.dtype), used), key


BIAS, FUSED = "crit.out_layers.0.bias", "layers.0.dec_attn.qkv_net.weight"


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        (BIAS, {}, f"missing: {BIAS}$"),
        ("", {"extra": torch.zeros(1)}, "left over: extra$"),
        (BIAS, {"extra": torch.zeros(1)}, f"missing: {BIAS}; left over: extra$"),
        ("", {BIAS: torch.zeros(1)}, rf"{BIAS}: invalid \[1\] float32; expected \[\d+\] of float"),
        (
            "",
            {BIAS: torch.zeros(60).long()},
            rf"{BIAS}: invalid \[60\] int64; expected \[60\] of float",
        ),
        ("", {FUSED: torch.zeros(())}, rf"{FUSED}: invalid \[\] float32; expected"),
    ],
)
def test_missing_extra_and_misshapen_tensors_are_named(open_golden, removed, added, message):
    golden = open_golden("original/a_default")
    weights = {name: golden.weights[name] for name in golden.weights if name != removed}
    with pytest.raises(ValueError, match=rf"^state_dict: {message}"):
        load_original(weights | added, golden.args)


def test_tied_tensors_may_be_left_out_and_must_repeat_their_source(open_golden):
    golden = open_golden("original/adaptive_div4_prenorm")
    weights, args = golden.weights, golden.args
    tied = {"crit.out_layers.1.weight": "word_emb.emb_layers.1.weight"}
    tied |= {"crit.out_projs.2": "word_emb.emb_projs.2"}
    golden.check(load_original({n: weights[n] for n in weights if n not in tied}, args))
    for name, source in tied.items():
        with pytest.raises(ValueError, match=f"{name} is not {source}"):
            load_original(weights | {name: weights[name] + 1}, args)


def test_precision_of_the_weights_is_kept(open_golden):
    golden = open_golden("original/a_default")
    weights = {name: tensor.double() for name, tensor in golden.weights.items()}
    net = load_original(weights, golden.args)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
    assert not net.training
