"""Invalid sizes, and lengths of an evaluation."""

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model import EvalLengths
from txl_lightning.model.config import make_config

SMALL = {"n_token": 10, "n_layer": 1, "n_head": 1, "d_model": 4, "d_head": 4, "d_inner": 8}
CLUSTERS = {"cutoffs": (4, 7, 15), "d_embed": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 0}, "n_layer: invalid 0; expected at least 1"),
        ({"mem_len": -1}, r"mem_len: invalid -1; expected 0 \(no memory\) or more"),
        ({"d_model": 31, "n_head": 1}, "d_model: invalid 31; expected an even number"),
        ({"d_model": 10, "n_head": 4}, r"d_model: invalid 10; expected a multiple of n_head \(4\)"),
        ({"dropout": 1.0}, "dropout: invalid 1.0"),
        ({"clamp_len": 0}, "clamp_len: invalid 0; expected at least 1, or null"),
        ({"positions": "shaw", "clamp_len": -1}, "clamp_len: invalid -1; .* at least 0"),
        ({"positions": "learned"}, "clamp_len: invalid None.*positions are learned"),
        ({"d_head": 0}, "d_head: invalid 0"),
        ({"init_std": 0.0}, "init_std: invalid 0.0"),
        ({"loss_chunk_size": 0}, "loss_chunk_size: invalid 0; expected at least 1, or null"),
        ({"cutoffs": (5, 5)}, r"cutoffs: invalid \[5, 5\]; expected increasing"),
        ({"cutoffs": (0, 5)}, r"cutoffs: invalid \[0, 5\]"),
        (CLUSTERS | {"div_val": 9}, "div_val: invalid 9; expected small enough"),
        ({"div_val": 2}, "div_val: invalid 2; expected 1 without cutoffs"),
        (CLUSTERS | {"tie_projs": [True]}, r"tie_projs: invalid \[True\]; .* 4 clusters, or none"),
    ],
)
def test_invalid_size_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerXLConfig(**changes)


@pytest.mark.parametrize("positions", ["learned", "shaw", "absolute_learned"])
def test_learned_positions_have_no_sinusoids_so_that_the_width_may_be_odd(positions):
    sizes = {"n_token": 9, "n_layer": 2, "n_head": 3, "d_model": 33, "mem_len": 5, "clamp_len": 9}
    tokens_BL = torch.arange(14).remainder(9)[None]
    logits = []
    for kernel in ("reference", "auto"):
        torch.manual_seed(0)
        net = TransformerXL(TransformerXLConfig(positions=positions, kernel=kernel, **sizes)).eval()
        first_BLV, memory = net(tokens_BL[:, :7])
        logits.append(torch.cat([first_BLV, net(tokens_BL[:, 7:], memory)[0]], dim=1))
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


def test_settings_saved_with_a_kernel_that_was_removed_have_the_fastest_one():
    assert make_config({"kernel": "matmul"}).kernel == "auto"


def test_cutoffs_beyond_the_vocabulary_are_refused_when_it_is_known():
    message = r"cutoffs: invalid \[4, 7, 15\]; .* than the vocabulary, 15"
    with pytest.raises(ValueError, match=message):
        TransformerXL(TransformerXLConfig(n_token=15, **CLUSTERS))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (EvalLengths(), (6, 5, "mem_len")),
        (EvalLengths(0, 9, "mem_len+1"), (0, 9, "mem_len+1")),
        (EvalLengths(same_length="all"), (6, 5, None)),
    ],
)
def test_eval_lengths_replace_those_of_training(make_net, lengths, expected):
    net = make_net(mem_len=6, clamp_len=5, same_length="mem_len")
    assert lengths.resolve(net.config) == expected
    memory = net.empty_memory(2, lengths)
    assert (memory.mem_len, memory.clamp_len, memory.same_length) == expected


def test_invalid_eval_lengths_are_refused():
    with pytest.raises(ValueError, match=r"mem_len: invalid -1; expected 0 \(no memory\) or more"):
        EvalLengths(mem_len=-1)
    with pytest.raises(ValueError, match="clamp_len: invalid 0; expected at least 1, or null"):
        EvalLengths(clamp_len=0)


@pytest.mark.parametrize("positions", ["learned", "shaw", "absolute_learned"])
def test_a_clamp_beyond_the_learned_distances_is_refused(make_net, positions):
    net = make_net(positions=positions, clamp_len=5)
    assert EvalLengths(clamp_len=5).resolve(net.config).clamp_len == 5
    message = "clamp_len: invalid 6; expected at most the 5 of training, as positions are learned"
    with pytest.raises(ValueError, match=message):
        EvalLengths(clamp_len=6).resolve(net.config)
