"""A network as a folder of safetensors and JSON."""

import json
import os
import resource

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning import TransformerXLConfig
from txl_lightning.checkpoints import load_folder, load_run, save_folder
from txl_lightning.data.vocab import Characters, WordOptions, Words
from txl_lightning.errors import CheckpointError, StorageError
from txl_lightning.files import replace_file

VOCAB = Characters("abcdefghijk")
KINDS = [
    {},
    {"positions": "shaw", "clamp_len": 4, "recurrence": "same", "norm": "pre"},
    {"positions": "absolute_learned", "clamp_len": 30, "norm": "pre_keys"},
    {"cutoffs": (3, 7), "div_val": 2, "tie_projs": (False, True, True), "d_embed": 12},
    {"d_embed": 12, "tie_projs": (True,), "same_length": "mem_len+1"},
    {"tie_weight": False, "untie_r": True},
]


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_as_it_was(make_net, tmp_path, kind):
    net = make_net(**kind)
    save_folder(net, tmp_path, VOCAB)
    back, vocab = load_folder(tmp_path)
    assert back.config == net.config
    assert vocab == VOCAB
    assert not back.training
    state, other = net.state_dict(), back.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    # Weights that were shared still are.
    shared = [len(list(each.parameters())) for each in (net, back)]
    assert shared[0] == shared[1] == len(load_file(tmp_path / "model.safetensors"))


def test_it_holds_plain_json_and_each_weight_once(make_net, tmp_path):
    net = make_net()
    save_folder(net, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    held = json.loads((tmp_path / "config.json").read_text())
    assert held["txl_lightning"] == {"format": 1}
    assert TransformerXLConfig(**held["net"]) == net.config
    assert "head.out.weight" not in load_file(tmp_path / "model.safetensors")
    assert load_folder(tmp_path)[1] is None


def test_a_run_can_be_loaded_from_it(make_net, tmp_path):
    save_folder(make_net(), tmp_path, VOCAB)
    model, vocab = load_run(tmp_path)
    assert (model.config.n_layer, vocab) == (2, VOCAB)


@pytest.fixture
def saved(make_net, tmp_path):
    save_folder(make_net(), tmp_path, VOCAB)
    return tmp_path


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_wrong_with_the_settings_is_said_of_their_file(saved):
    path = saved / "config.json"
    net = json.loads(path.read_text())["net"]
    cases = {
        r"config\.json: written by a later release": {"txl_lightning": {"format": 2}},
        r"config\.json: n_layer: invalid 0": {"net": net | {"n_layer": 0}},
        r"config\.json: a setting is of a wrong kind \(.*colour": {"net": net | {"colour": 1}},
        r"config\.json: a setting is of a wrong kind \('format": {"txl_lightning": {}},
    }
    whole = path.read_text()
    for said, changes in cases.items():
        change(path, **changes)
        with pytest.raises(CheckpointError, match=said):
            load_folder(saved)
        path.write_text(whole)
    for text in ("[]", "{", "\x00", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json: "):
            load_folder(saved)


def test_missing_foreign_and_misshapen_weights_are_named(saved):
    path = saved / "model.safetensors"
    whole = load_file(path)
    name = "layers.0.attention.q_net.weight"
    cases = {
        f"missing, or not of this network: {name}$": {n: whole[n] for n in whole if n != name},
        "missing, or not of this network: extra$": whole | {"extra": torch.zeros(1)},
        rf"{name}: invalid \[1\]; expected \[8, 8\]": whole | {name: torch.zeros(1)},
        rf"{name}: invalid \[8, 8\]": whole | {name: whole[name].long()},
    }
    for said, weights in cases.items():
        save_file(weights, path)
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: {said}"):
            load_folder(saved)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_weights_that_are_cut_off_are_refused(saved, kept):
    path = saved / "model.safetensors"
    os.truncate(path, kept if kept >= 0 else path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged, or not a safetensors"):
        load_folder(saved)


def test_missing_files_are_named(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: no such file"):
        load_folder(saved)
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        load_folder(saved)


def test_a_vocabulary_of_another_size_is_refused(saved):
    (saved / "vocab.json").write_text(Words(("a", "<unk>"), WordOptions()).to_json())
    with pytest.raises(ValueError, match=r"vocab\.json: it has 2 tokens; the network has 11"):
        load_folder(saved)


def test_another_folder_is_to_be_converted_first(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "transfo-xl"}')
    with pytest.raises(CheckpointError, match=r"config\.json: not written by convert; convert "):
        load_folder(tmp_path)


def test_a_full_disk_is_said_so_and_leaves_nothing(make_net, tmp_path):
    net = make_net(d_model=64)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        said = r"model\.safetensors: cannot be written \(File too large; "
        with pytest.raises(StorageError, match=said):
            save_folder(net, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_named(make_net, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot be written \(Not a directory; "):
        save_folder(make_net(), tmp_path / "file" / "folder")


def test_a_file_that_is_cut_off_takes_no_place(tmp_path):
    def cut_off(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"a\.json: cannot be written \(No space left"):
        replace_file(tmp_path / "a.json", cut_off)
    assert list(tmp_path.iterdir()) == []
