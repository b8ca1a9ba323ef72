"""Weights under the names of the original code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning.checkpoints import load_original

GOLDEN = Path(__file__).parents[1] / "golden"
ARGS = {
    "n_token": 7, "n_layer": 1, "n_head": 2, "d_model": 4, "d_head": 2, "d_inner": 6, "mem_len": 3,
    "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1, "pre_lnorm": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type": 1}, "attn_type: 1 cannot be loaded yet; it must be 0"),
        ({"div_val": 4}, "div_val: 4 cannot be loaded yet"),
        ({"same_length": True}, "same_length: True cannot be loaded yet"),
        ({"d_embed": 3}, "d_embed: 3 cannot be loaded yet"),
    ],
)
def test_a_part_that_is_not_here_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        load_original({}, ARGS | changes)


def test_missing_and_foreign_tensors_are_refused():
    with pytest.raises(ValueError, match="state_dict: not the tensors of"):
        load_original({"word_emb.emb_layers.0.weight": torch.zeros(7, 4)}, ARGS)
    with np.load(GOLDEN / "a_default.npz") as golden:
        args = json.loads(str(golden["config"]))
        weights = {n[3:]: torch.from_numpy(golden[n]) for n in golden.files if n[:3] == "sd."}
    assert load_original(weights, args | {"cutoffs": ()}).config.n_layer == args["n_layer"]
    with pytest.raises(ValueError, match=r"left over: \['extra'\]"):
        load_original(weights | {"extra": torch.zeros(1)}, args)
    del weights["crit.out_layers.0.weight"]
    assert load_original(weights, args).config.tie_weight
    with pytest.raises(ValueError, match=r"crit\.out_layers\.0\.weight"):
        load_original(weights, args | {"tie_weight": False})
