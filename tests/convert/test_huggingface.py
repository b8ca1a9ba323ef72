"""Folders of Hugging Face's TransfoXL: reading, writing, and refused settings."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning.convert import load_huggingface, save_huggingface
from txl_lightning.convert.huggingface import DEFAULTS, config_from_huggingface
from txl_lightning.data.vocab import WordOptions, Words
from txl_lightning.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*another code's files have no checksum")
GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "huggingface").glob("*.npz"))


def drop_shared(weights):
    """Leave out tensors of the softmax that are copies, as save_pretrained does."""
    own = {name: weights[name].clone() for name in weights if not name.startswith("crit.")}
    shared = {n for n in weights for each in own.values() if torch.equal(weights[n], each)}
    return {name: weights[name].clone() for name in weights if name not in shared} | own


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_folder_is_written_as_save_pretrained_wrote_it(open_golden, tmp_path, path):
    golden = open_golden(f"huggingface/{path.stem}")
    tensors = drop_shared(golden.weights)
    (tmp_path / "config.json").write_text(json.dumps(golden.args))
    save_file(tensors, tmp_path / "model.safetensors")
    net, vocab = load_huggingface(tmp_path)
    # At 18 nats, the rounding errors of float32 alone reach 1e-5.
    golden.check(net.double())
    assert vocab is None
    save_huggingface(net.float(), tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in back)
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: golden.args[key] for key in settings} == settings


@pytest.mark.parametrize("kind", ["module.", "_orig_mod.", "model.", "net.module."])
def test_names_of_wrappers_are_left_out(open_golden, tmp_path, kind):
    golden = open_golden("huggingface/default_like")
    (tmp_path / "config.json").write_text(json.dumps(golden.args))
    wrapped = {f"{kind}{name}": weight for name, weight in golden.weights.items()}
    torch.save(wrapped, tmp_path / "pytorch_model.bin")
    golden.check(load_huggingface(tmp_path)[0].double())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_refused_as_such(make_net, tmp_path, name):
    save_huggingface(make_net(norm="post"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no weights; expected"):
        load_huggingface(tmp_path)
    (tmp_path / f"{name}.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ValueError, match=rf"{name}: its tensors are in several files, with"):
        load_huggingface(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_model_bin_of_old_and_new_torch_is_read(open_golden, tmp_path, zipped):
    golden = open_golden("huggingface/default_like")
    path = tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text(json.dumps(golden.args))
    torch.save(golden.weights, path, _use_new_zipfile_serialization=zipped)
    golden.check(load_huggingface(tmp_path)[0].double())


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "final_norm": False, "d_embed": 6, "clamp_len": 5, "untie_r": True},
        {"same_length": "mem_len", "cutoffs": (3, 7), "div_val": 2, "tie_weight": False},
        {"cutoffs": (3, 7), "tie_projs": (True, False, True), "d_embed": 10, "norm_eps": 0.1},
    ],
)
def test_our_network_is_bit_identical_after_a_round_trip(make_net, tmp_path, changes):
    net = make_net(**changes)
    save_huggingface(net, tmp_path)
    back, _ = load_huggingface(tmp_path)
    torch.testing.assert_close(back.state_dict(), net.state_dict(), rtol=0, atol=0)
    tokens_BL = torch.randint(11, (3, 20))
    assert torch.equal(net(tokens_BL)[0], back(tokens_BL)[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "shaw", "clamp_len": 4}, "positions: invalid shaw; expected sinusoidal for"),
        ({"same_length": "mem_len+1"}, r"same_length: invalid mem_len\+1"),
        ({"same_length": "mem_len", "mem_len": 0}, "same_length: invalid mem_len"),
        ({"norm": "pre"}, "norm: invalid pre; expected post for Hugging Face, or final_norm false"),
        ({"norm": "pre_kv", "final_norm": False}, "norm: invalid pre_kv"),
        ({"memory_source": "same_layer"}, "memory_source: invalid same_layer"),
    ],
)
def test_setting_without_a_counterpart_is_refused_before_writing(
    make_net, tmp_path, changes, message
):
    with pytest.raises(ValueError, match=message):
        save_huggingface(make_net(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def folder(make_net, tmp_path):
    save_huggingface(make_net(), tmp_path, Words(("<unk>", "<eos>", *"abcdefghi"), WordOptions()))
    return tmp_path


def test_words_are_written_one_per_line_beside_our_vocabulary(folder):
    _, vocab = load_huggingface(folder)
    assert (folder / "vocab.txt").read_text().split("\n") == [*vocab.words, ""]
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == 1
    (folder / "vocab.json").unlink()
    assert load_huggingface(folder)[1].words == vocab.words == ("<unk>", "<eos>", *"abcdefghi")


def test_weights_that_differ_where_they_are_shared_or_are_missing_are_refused(folder):
    path = folder / "model.safetensors"
    name = "transformer.layers.1.dec_attn.r_w_bias"
    weights = load_file(path)
    save_file(weights | {name: weights[name] + 1}, path)
    message = rf"model\.safetensors: state_dict: {name} and transformer.r_w_bias differ"
    with pytest.raises(CheckpointError, match=message):
        load_huggingface(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"no weights; expected model\.safetensors or pytorch_mod"):
        load_huggingface(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: invalid gpt2; expected transfo-xl"),
        ({"attn_type": 1}, "attn_type: invalid 1; expected 0"),
        ({"sample_softmax": 5}, "sample_softmax: invalid 5; expected -1"),
        ({"cutoffs": "3,5"}, "cutoffs: invalid '3,5'; expected a list"),
        ({"init": 3}, "init: invalid 3; expected a word"),
        ({"tie_projs": 3}, "tie_projs: invalid 3; expected a list"),
    ],
)
def test_invalid_setting_is_refused_with_file_and_name(folder, change, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        load_huggingface(folder)


def test_null_setting_means_omitted_and_old_releases_keep_their_meaning():
    name = {"model_type": "transfo-xl"}
    config = config_from_huggingface(name)
    assert config_from_huggingface(name | dict.fromkeys([*DEFAULTS, "n_token"])) == config
    assert (config.clamp_len, config.tie_projs) == (1000, (False, True, True, True))
    config = config_from_huggingface(name | {"n_token": 300_000, "tie_weight": False})
    assert (config.n_token, config.tie_weight) == (300_000, False)
