"""Networks of the original code: their outputs, and what is refused."""

import json
from pathlib import Path

import numpy as np
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


class Golden:
    """A file of the original's outputs."""

    def __init__(self, path):
        with np.load(path) as held:
            self.arrays = {
                name: torch.from_numpy(held[name]) for name in held.files if name != "config"
            }
            self.args = json.loads(str(held["config"]))
        self.weights = {n[3:]: self.arrays[n] for n in self.arrays if n.startswith("sd.")}
        as_made = [self.args[name] for name in ("tgt_len", "ext_len", "mem_len")]
        lengths = self.arrays.get("reset_length", torch.tensor(as_made)).tolist()
        self.tgt_len, self.ext_len, self.mem_len = lengths
        flat = self.arrays["data"].long().flatten()
        self.rows = flat[: len(flat) // 3 * 3].view(3, -1)

    def segments(self):
        """Tokens, targets and how many are scored, as the original's iterator gives them."""
        for start in range(0, self.rows.size(1) - 1, self.tgt_len):
            window = self.rows[:, max(start - self.ext_len, 0) : start + self.tgt_len + 1]
            yield window[:, :-1], window[:, 1:], min(self.tgt_len, self.rows.size(1) - 1 - start)


def weights_and_args(name):
    golden = Golden(GOLDEN[0].with_name(f"{name}.npz"))
    return golden.weights, golden.args


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request):
    return Golden(request.param)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_it_gives_what_the_original_gives(golden, kernel):
    net = load_original(golden.weights, golden.args)
    for layer in net.layers:
        layer.attention.attend = KERNELS[kernel]
    memory = net.empty_memory(3, golden.mem_len)
    for index, (tokens, targets, scored) in enumerate(golden.segments()):
        nats, memory = net.nats(tokens, targets, memory)
        found, expected = nats[:, -scored:], golden.arrays[f"nll.{index}"].t()
        if f"ordered.{index}" in golden.arrays:
            expected = golden.arrays[f"ordered.{index}"].t()
        elif golden.args.get("cutoffs"):
            found, expected = found.flatten().sort().values, expected.flatten().sort().values
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert f"nll.{index + 1}" not in golden.arrays
    for n, h_BMD in enumerate(memory.h_NBMD if golden.mem_len else []):
        expected = golden.arrays[f"mem.{n}"].transpose(0, 1)
        torch.testing.assert_close(h_BMD, expected, rtol=0, atol=1e-5)


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


def test_missing_foreign_and_misshapen_tensors_are_named():
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


def test_what_is_tied_may_be_left_out_and_must_be_the_same():
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


def test_the_precision_of_the_weights_is_kept():
    weights, args = weights_and_args("a_default")
    net = load_original({name: weights[name].double() for name in weights}, args)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
