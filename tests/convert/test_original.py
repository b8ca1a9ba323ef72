"""The original and NVIDIA: golden nats and memories, round trips of every tensor, refusals."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.checkpoints.contents import COMPUTED, export_weights
from txl_lightning.convert import load_nvidia, load_original
from txl_lightning.convert.nvidia import map_nvidia_weights
from txl_lightning.convert.original import config_from_original, map_original_weights

pytestmark = pytest.mark.filterwarnings("ignore:.*another code's files have no checksum")
CODES = {
    "nvidia": (load_nvidia, map_nvidia_weights),
    "original": (load_original, map_original_weights),
}
GOLDEN = Path(__file__).parents[1] / "golden"
FILES = [path for code in CODES for path in sorted((GOLDEN / code).glob("*.npz"))]
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES if path.stem != "checkpoint_best"]
ARGS = {
    "n_token": 7, "n_layer": 1, "n_head": 2, "d_model": 4, "d_head": 2, "d_inner": 6, "mem_len": 3,
    "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1, "pre_lnorm": False,
}  # fmt: skip
# The other options of the original's and NVIDIA's train.py that are most similar to keywords.
OPTIONS = """
    adaptive dataset emb_init eta_min eval_interval eval_tgt_len init n_all_param no_env no_eval
    not_tied txtlog_file weight_decay
"""
BIAS = "crit.out_layers.0.bias"
FUSED = "layers.0.dec_attn.qkv_net.weight"


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
        # The original's learned table may have more rows than clamp_len uses.
        expected = golden.weights[key]
        n_row = back[key].shape[1:2].numel()
        used = expected[:, -n_row:] if key in ("r_emb", "r_bias") else expected
        assert torch.equal(back[key].to(used.dtype), used), key


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        (BIAS, {"extra": torch.zeros(1)}, f"missing: {BIAS}; left over: extra$"),
        ("", {"extra": torch.zeros(1)}, "left over: extra$"),
        ("", {BIAS: torch.zeros(1)}, rf"{BIAS}: invalid \[1\] float32; expected \[60\] of float"),
        ("", {BIAS: torch.zeros(60).long()}, rf"{BIAS}: invalid \[60\] int64; expected \[60\] of"),
        ("", {FUSED: torch.zeros(())}, rf"{FUSED}: invalid \[\] float32; expected"),
    ],
)
def test_missing_extra_and_misshapen_tensors_are_named(open_golden, removed, added, message):
    golden = open_golden("original/default")
    weights = {name: golden.weights[name] for name in golden.weights if name != removed}
    with pytest.raises(ValueError, match=rf"^state_dict: {message}"):
        load_original(weights | added, golden.args)


def wrap_name(name, kind):
    match kind:
        case "layers":
            return name.replace("layers.0.", "layers.0._orig_mod.module.")
        case "activation checkpointing":
            return f"module.{name}".replace("pos_ff.", "_checkpoint_wrapped_module.pos_ff.")
        case _:
            return f"{kind}{name}"


@pytest.mark.parametrize(
    "name", ["nvidia/learned_relative", "original/learned_relative", "original/adaptive"]
)
@pytest.mark.parametrize(
    "kind",
    ["module.", "_orig_mod.", "model.", "module._orig_mod.", "student.net.", "layers",
     "activation checkpointing"],
)  # fmt: skip
def test_names_of_wrappers_are_left_out(open_golden, name, kind):
    golden = open_golden(name)
    load, _ = CODES[name.split("/")[0]]
    args = golden.args | {"tgt_len": None, "ext_len": None}
    wrapped = {wrap_name(each, kind): tensor for each, tensor in golden.weights.items()}
    expected = load(golden.weights, args)
    net = load(wrapped, args)
    assert net.config == expected.config
    torch.testing.assert_close(net.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_tensors_of_one_name_with_and_without_a_wrapper_are_refused(open_golden):
    golden = open_golden(NAMES[-1])
    twice = golden.weights | {f"module.{name}": golden.weights[name] for name in golden.weights}
    with pytest.raises(ValueError, match=r"^state_dict: left over: module\."):
        load_original(twice, golden.args)


def test_tied_tensors_may_be_left_out_and_must_repeat_their_source(open_golden):
    golden = open_golden("original/adaptive_div4_prenorm")
    weights = golden.weights
    args = golden.args
    tied = {"crit.out_layers.1.weight": "word_emb.emb_layers.1.weight"}
    tied |= {"crit.out_projs.2": "word_emb.emb_projs.2"}
    golden.check(load_original({n: weights[n] for n in weights if n not in tied}, args))
    for name, source in tied.items():
        with pytest.raises(ValueError, match=f"{name} and {source} differ"):
            load_original(weights | {name: weights[name] + 1}, args)


def test_precision_of_the_weights_is_kept(open_golden):
    golden = open_golden("original/default")
    weights = {name: tensor.double() for name, tensor in golden.weights.items()}
    net = load_original(weights, golden.args)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
    assert not net.training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_type": 4}, "attn_type: invalid 4; expected 0, 1, 2 or 3"),
        ({"attn_type": [0]}, r"attn_type: invalid \[0\]; expected a number"),
        ({"pre_lnorm": "false"}, "pre_lnorm: invalid 'false'; expected true or false"),
        ({"n_layer": "2"}, "n_layer: invalid '2'; expected a number"),
        ({"attn_type": 1, "mem_len": 0}, "tgt_len: invalid 0; expected 1 or more"),
        ({"clamp_length": 2}, r"args: clamp_length: unknown key; did you mean clamp_len\?"),
        ({"n_head": None, "mem_len": None}, "args: n_head, mem_len missing"),
    ],
)
def test_invalid_keyword_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        config_from_original(ARGS | change)


def test_null_keyword_means_omitted_and_options_of_train_py_are_ignored():
    others = dict.fromkeys(["clamp_len", "cutoffs", "same_length", "pre_lnorm", "tgt_len", "dtype"])
    others |= dict.fromkeys(OPTIONS.split(), 1)
    assert config_from_original(ARGS | others) == config_from_original(ARGS)


def test_projections_that_tie_projs_leaves_out_are_not_tied():
    clusters = {"cutoffs": [2, 5], "div_val": 2, "tie_projs": [True]}
    assert config_from_original(ARGS | clusters).tie_projs == (True, False, False)


@pytest.mark.parametrize("kind", [1, 3])
def test_table_of_learned_positions_may_have_one_row(kind):
    config = config_from_original(ARGS | {"attn_type": kind}, torch.zeros(1, 1, 2, 2))
    theirs = export_weights(TransformerXL(config).state_dict(), map_original_weights(config))
    net = load_original(theirs, ARGS | {"attn_type": kind})
    assert config.clamp_len == net.empty_memory(1).clamp_len == 0
    tokens, targets = torch.randint(7, (2, 1, 5))
    _, memory = net.loss(tokens, targets, net.empty_memory(1))
    assert net.loss(tokens, targets, memory)[0].isfinite().all()


def test_learned_positions_count_clamp_len_and_the_table_from_distance_0():
    args = ARGS | {"attn_type": 1, "tgt_len": 4, "ext_len": 2}
    assert config_from_original(args).clamp_len == 4 + 2 + 3 - 1
    assert config_from_original(args | {"clamp_len": 1}).clamp_len == 0
    assert config_from_original(args | {"clamp_len": 1, "attn_type": 3}).clamp_len == 8
    assert config_from_original(ARGS | {"clamp_len": 1}).clamp_len == 1
