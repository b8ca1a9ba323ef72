"""Networks of Hugging Face's TransfoXL: their outputs, both ways, and what it cannot have."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning.convert import load_huggingface, save_huggingface
from txl_lightning.convert.huggingface import DEFAULTS, config_from_huggingface
from txl_lightning.data.vocab import WordOptions, Words
from txl_lightning.errors import CheckpointError

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "huggingface").glob("*.npz"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request, golden_of):
    return golden_of(f"huggingface/{request.param.stem}", by_cluster=False)


def shared_left_out(weights):
    """As save_pretrained writes tensors that are another one: under the network's own name."""
    own = [tensor for name, tensor in weights.items() if not name.startswith("crit.")]
    return {
        name: tensor.clone()
        for name, tensor in weights.items()
        if not name.startswith("crit.") or not any(torch.equal(tensor, each) for each in own)
    }


@pytest.fixture(params=["safetensors", "bin", "old bin"])
def folder(request, golden, tmp_path):
    """What save_pretrained of this and of earlier releases writes."""
    (tmp_path / "config.json").write_text(json.dumps(golden.args))
    if request.param == "safetensors":
        save_file(shared_left_out(golden.weights), tmp_path / "model.safetensors")
    else:
        zipped = {"_use_new_zipfile_serialization": request.param == "bin"}
        torch.save(golden.weights, tmp_path / "pytorch_model.bin", **zipped)
    return tmp_path


def test_it_gives_what_hugging_face_gives(golden, folder):
    net, vocab = load_huggingface(folder)
    # Of 18 nats, float32 on both sides would already round 1e-5 away.
    golden.check(net.double())
    assert vocab is None


def test_every_tensor_and_setting_goes_there_and_back(golden, folder, tmp_path):
    net, _ = load_huggingface(folder)
    save_huggingface(net, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    expected = shared_left_out(golden.weights)
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], expected[name]) for name in back)
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: golden.args[key] for key in settings} == settings
    again, _ = load_huggingface(tmp_path / "back")
    assert again.config == net.config
    state, other = net.state_dict(), again.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)


CAN = {"norm": "pre", "final_norm": False, "d_embed": 6, "clamp_len": 5, "untie_r": True}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        CAN,
        CAN | {"same_length": "mem_len", "cutoffs": (3, 7), "div_val": 2, "tie_weight": False},
        {"cutoffs": (3, 7), "tie_projs": (True, False, True), "d_embed": 10, "norm_eps": 0.1},
    ],
)
def test_ours_goes_there_and_back(make_net, tmp_path, changes):
    net = make_net(**changes)
    save_huggingface(net, tmp_path)
    back, _ = load_huggingface(tmp_path)
    state, other = net.state_dict(), back.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)
    tokens, targets = torch.randint(11, (2, 3, 20))
    for expected, found in zip(net.nats(tokens, targets), back.nats(tokens, targets), strict=True):
        expected, found = (getattr(each, "h_NBMD", each) for each in (expected, found))
        assert torch.equal(expected, found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": "shaw", "clamp_len": 4}, "positions: invalid shaw; .* sinusoidal"),
        ({"same_length": "mem_len+1"}, r"same_length: invalid mem_len\+1"),
        ({"same_length": "mem_len", "mem_len": 0}, "same_length: invalid mem_len"),
        ({"norm": "pre"}, "final_norm: invalid True"),
        ({"final_norm": True}, "final_norm: invalid True"),
        ({"norm": "pre_keys", "final_norm": False}, "norm: invalid pre_keys"),
        ({"recurrence": "same"}, "recurrence: invalid same"),
    ],
)
def test_what_hugging_face_has_no_setting_for_is_refused_by_name(make_net, tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        save_huggingface(make_net(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_words_go_with_it_one_in_a_line(make_net, tmp_path):
    words = Words(("<unk>", "<eos>", *"abcdefghi"), WordOptions())
    save_huggingface(make_net(), tmp_path, words)
    assert load_huggingface(tmp_path)[1] == words
    assert (tmp_path / "vocab.txt").read_text().split("\n") == [*words.words, ""]
    (tmp_path / "vocab.json").unlink()
    assert load_huggingface(tmp_path)[1].words == words.words
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 1


@pytest.fixture
def small(make_net, tmp_path):
    save_huggingface(make_net(), tmp_path)
    return tmp_path


def change_weights(folder, change):
    path = folder / "model.safetensors"
    held = load_file(path)
    change(held)
    save_file(held, path)


def test_missing_and_foreign_tensors_are_named(small):
    change_weights(small, lambda held: held.pop("transformer.layers.1.dec_attn.o_net.weight"))
    said = r"model\.safetensors: state_dict: missing: transformer\.layers\.1\.dec_attn\.o_net\.weig"
    with pytest.raises(CheckpointError, match=said):
        load_huggingface(small)


def test_a_network_without_its_softmax_is_refused(small):
    def without_softmax(held):
        for name in list(held):
            tensor = held.pop(name)
            if name.startswith("transformer."):
                held[name.removeprefix("transformer.")] = tensor

    change_weights(small, without_softmax)
    with pytest.raises(CheckpointError, match=r"missing: crit\.out_layers\.0\.bias"):
        load_huggingface(small)


def test_biases_that_all_layers_share_must_be_the_same(small):
    name = "transformer.layers.1.dec_attn.r_w_bias"
    change_weights(small, lambda held: held.update({name: held[name] + 1}))
    with pytest.raises(CheckpointError, match=f"{name} is not transformer.r_w_bias"):
        load_huggingface(small)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, r"config\.json: model_type: invalid gpt2"),
        ({"attn_type": 1}, r"config\.json: attn_type: invalid 1"),
        ({"sample_softmax": 5}, r"config\.json: sample_softmax: invalid 5"),
        ({"n_layer": "2"}, r"config\.json: n_layer: invalid '2'; expected a number"),
        ({"attn_type": "0"}, r"config\.json: attn_type: invalid '0'; expected 0"),
        ({"clamp_len": "2"}, r"config\.json: clamp_len: invalid '2'; expected a number"),
        ({"cutoffs": "3,5"}, r"config\.json: cutoffs: invalid '3,5'; expected a list"),
        ({"pre_lnorm": "false"}, r"config\.json: pre_lnorm: invalid 'false'"),
        ({"layer_norm_epsilon": "2"}, r"config\.json: a setting is of a wrong kind"),
    ],
)
def test_a_setting_that_cannot_be_is_named(small, change, said):
    path = small / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=said):
        load_huggingface(small)


def test_settings_of_old_releases_mean_what_they_meant(small):
    """n_token, tie_weight and proj_share_all_but_first became others."""
    path = small / "config.json"
    held = json.loads(path.read_text())
    del held["tie_projs"]
    old = {"n_token": held.pop("vocab_size"), "tie_weight": True, "proj_share_all_but_first": True}
    path.write_text(json.dumps(held | old))
    assert load_huggingface(small)[0].config.n_token == 11


def test_a_folder_without_weights_is_refused(small):
    (small / "model.safetensors").unlink()
    said = r"no weights; there must be model\.safetensors or pytorch_model\.bin"
    with pytest.raises(ValueError, match=said):
        load_huggingface(small)


def test_a_setting_that_is_null_is_as_if_left_out():
    nulls = dict.fromkeys([*DEFAULTS, "n_token", "tie_projs", "tie_word_embeddings"])
    left_out = config_from_huggingface({"model_type": "transfo-xl"})
    assert config_from_huggingface({"model_type": "transfo-xl"} | nulls) == left_out
    assert left_out.clamp_len == 1000
