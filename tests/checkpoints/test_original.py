"""Networks of the original code: their outputs, and what is refused."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.checkpoints import config_of_original, load_original
from txl_lightning.checkpoints.names import from_original, to_original
from txl_lightning.model.kernels import KERNELS

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "original").glob("*.npz"))
ARGS = {
    "n_token": 7, "n_layer": 1, "n_head": 2, "d_model": 4, "d_head": 2, "d_inner": 6, "mem_len": 3,
    "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1, "pre_lnorm": False,
}  # fmt: skip


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request, golden_of):
    return golden_of(f"original/{request.param.stem}")


@pytest.fixture
def weights_and_args(golden_of):
    def open_golden(name):
        golden = golden_of(f"original/{name}")
        return golden.weights, golden.args

    return open_golden


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_it_gives_what_the_original_gives(golden, kernel):
    net = load_original(golden.weights, golden.args)
    for layer in net.layers:
        layer.attention.attend = KERNELS[kernel]
    golden.check(net)


def test_every_tensor_goes_there_and_back(golden):
    config = load_original(golden.weights, golden.args).config
    ours = from_original(golden.weights, config)
    assert ours.keys() == TransformerXL(config).state_dict().keys()
    theirs = to_original(ours, config)
    assert theirs.keys() == golden.weights.keys() - {"pos_emb.inv_freq"}
    for name, tensor in theirs.items():
        # Of a learned table, the original may hold more rows than clamp_len lets it use.
        expected = golden.weights[name]
        used = expected if tensor.shape == expected.shape else expected[:, -tensor.size(1) :]
        assert torch.equal(tensor, used), name


def test_a_kind_of_attention_that_nobody_has_is_refused():
    with pytest.raises(ValueError, match="attn_type: 4 is not possible"):
        config_of_original(ARGS | {"attn_type": 4})


def test_keywords_without_which_there_is_no_network_are_named():
    with pytest.raises(ValueError, match="args: n_head, d_inner missing"):
        config_of_original({key: ARGS[key] for key in ARGS if key not in ("n_head", "d_inner")})


def test_missing_foreign_and_misshapen_tensors_are_named(weights_and_args):
    weights, args = weights_and_args("a_default")
    with pytest.raises(ValueError, match=r"missing: .*crit\.out_layers\.0\.bias"):
        load_original({"word_emb.emb_layers.0.weight": torch.zeros(7, 4)}, ARGS)
    with pytest.raises(ValueError, match=r"state_dict: left over: extra$"):
        load_original(weights | {"extra": torch.zeros(1)}, args)
    name = "crit.out_layers.0.bias"
    for wrong in (torch.zeros(1), weights[name].long(), torch.zeros(())):
        said = rf"{name}: \[.*by the settings it must be \[{len(weights[name])}\] of floating point"
        with pytest.raises(ValueError, match=said):
            load_original(weights | {name: wrong}, args)


def test_what_is_tied_may_be_left_out_and_must_be_the_same(weights_and_args):
    weights, args = weights_and_args("adaptive_div4_prenorm")
    tied = {"crit.out_layers.1.weight": "word_emb.emb_layers.1.weight"}
    tied |= {"crit.out_projs.2": "word_emb.emb_projs.2"}
    whole = load_original(weights, args).state_dict()
    short = load_original({n: weights[n] for n in weights if n not in tied}, args).state_dict()
    assert all(torch.equal(whole[name], short[name]) for name in whole)
    for name, source in tied.items():
        with pytest.raises(ValueError, match=f"{name} is not {source}"):
            load_original(weights | {name: weights[name] + 1}, args)
    with pytest.raises(ValueError, match=r"missing: crit\.out_projs\.0$"):
        load_original({n: weights[n] for n in weights if n != "crit.out_projs.0"}, args)


def test_the_precision_of_the_weights_is_kept(weights_and_args):
    weights, args = weights_and_args("a_default")
    net = load_original({name: weights[name].double() for name in weights}, args)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
