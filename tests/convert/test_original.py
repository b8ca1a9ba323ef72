"""Keywords of the original's constructor: what they mean here, and what is refused."""

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.convert import load_original
from txl_lightning.convert.original import config_from_original
from txl_lightning.convert.weight_names import export_weights, map_original_weights

ARGS = {
    "n_token": 7, "n_layer": 1, "n_head": 2, "d_model": 4, "d_head": 2, "d_inner": 6, "mem_len": 3,
    "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1, "pre_lnorm": False,
}  # fmt: skip
# Of what the original's train.py and NVIDIA's have beside them, those that look most like these.
OPTIONS = """
    adaptive dataset emb_init eta_min eval_interval eval_tgt_len init n_all_param no_env no_eval
    not_tied txtlog_file weight_decay
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_type": 4}, "attn_type: invalid 4; expected 0, 1, 2 or 3"),
        ({"attn_type": [0]}, r"attn_type: invalid \[0\]; expected a number"),
        ({"pre_lnorm": "false"}, "pre_lnorm: invalid 'false'; expected true or false"),
        ({"n_layer": "2"}, "n_layer: invalid '2'; expected a number"),
        ({"attn_type": 1, "mem_len": 0}, "tgt_len: invalid 0; expected given"),
        ({"clamp_length": 2}, r"args: clamp_length: unknown key; did you mean clamp_len\?"),
        ({"n_head": None, "mem_len": None}, "args: n_head, mem_len missing"),
    ],
)
def test_invalid_keyword_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        config_from_original(ARGS | change)


def test_null_keyword_means_left_out_and_options_of_train_py_are_passed_over():
    others = dict.fromkeys(["clamp_len", "cutoffs", "same_length", "pre_lnorm", "tgt_len", "dtype"])
    others |= dict.fromkeys(OPTIONS.split(), 1)
    assert config_from_original(ARGS | others) == config_from_original(ARGS)


@pytest.mark.parametrize("kind", [1, 3])
def test_table_of_learned_positions_may_have_one_row(kind):
    config = config_from_original(ARGS | {"attn_type": kind}, torch.zeros(1, 1, 2, 2))
    assert config.clamp_len == 0
    theirs = export_weights(TransformerXL(config).state_dict(), map_original_weights(config))
    net = load_original(theirs, ARGS | {"attn_type": kind})
    assert net.empty_memory(1).clamp_len == 0
    tokens, targets = torch.randint(7, (2, 1, 5))
    _, memory = net.loss(tokens, targets, net.empty_memory(1))
    assert net.loss(tokens, targets, memory)[0].isfinite().all()


def test_learned_positions_count_clamp_len_and_the_table_from_distance_0():
    args = ARGS | {"attn_type": 1, "tgt_len": 4, "ext_len": 2}
    assert config_from_original(args).clamp_len == 4 + 2 + 3 - 1
    assert config_from_original(args | {"clamp_len": 1}).clamp_len == 0
    assert config_from_original(args | {"clamp_len": 1, "attn_type": 3}).clamp_len == 8
    assert config_from_original(ARGS | {"clamp_len": 1}).clamp_len == 1
