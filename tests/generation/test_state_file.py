"""Texts in a file, to go on another day."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning import TransformerXL
from txl_lightning.errors import DataError, StorageError
from txl_lightning.generation import Sampling, begun, continued, load, save, state_file

LENGTHS = [
    {"mem_len": 6},
    {"mem_len": 6, "clamp_len": 3, "same_length": "mem_len"},
    {"mem_len": 0},
    {"mem_len": 4, "positions": "absolute_learned", "clamp_len": 9},
]


def steps(net, texts, length):
    """The texts after so many tokens."""
    for after in continued(net, texts, length, Sampling(repetition_penalty=1.2), 3, ext_len=2):
        texts = after
    return texts


@pytest.fixture
def texts(make_net):
    """A network and what it has written."""
    net = make_net()
    return net, steps(net, begun(net, [torch.tensor([1, 2])], None), 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_what_is_continued_from_a_file_is_what_was_never_broken_off(
    make_net, tmp_path, lengths, dtype
):
    net = make_net(**lengths).to(dtype)
    prompts = [torch.tensor([1]), torch.randint(11, (9,))]
    whole = steps(net, begun(net, prompts, None), 20)
    save(tmp_path / "a", net, steps(net, begun(net, prompts, None), 9), 2)
    taken_up, ext_len = load(tmp_path / "a", net)
    found = steps(net, taken_up, 11)
    assert ext_len == 2
    assert torch.equal(found.tokens_BL, whole.tokens_BL)
    assert torch.equal(found.length_B, whole.length_B)
    for name, tensor in whole.memory.tensors().items():
        assert torch.equal(found.memory.tensors()[name], tensor)
    assert os.listdir(tmp_path) == ["a"]


def test_what_nothing_is_read_of_can_be_kept_too(make_net, tmp_path):
    net = make_net()
    save(tmp_path / "a", net, begun(net, [torch.tensor([1, 2])], None), 2)
    found = steps(net, load(tmp_path / "a", net)[0], 4)
    expected = steps(net, begun(net, [torch.tensor([1, 2])], None), 4)
    assert torch.equal(found.tokens_BL, expected.tokens_BL)


def test_other_weights_are_refused(make_net, texts, tmp_path):
    net, written = texts
    save(tmp_path / "a", net, written, 0)
    twin = TransformerXL(net.config).double()
    twin.load_state_dict(net.state_dict())
    load(tmp_path / "a", twin)
    twin.layers[0].attention.q_net.weight.data[0, 0] += 1e-12
    for other in (twin, make_net(n_layer=3), net.float()):
        with pytest.raises(DataError, match=r"memory: .*a: of other weights; it needs"):
            load(tmp_path / "a", other)


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 64, json.dumps({}).encode()])
def test_another_file_is_refused(texts, tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=r"memory: .*a: not a memory that generate wrote") as caught:
        load(tmp_path / "a", texts[0])
    assert "\n" not in str(caught.value)


def test_a_file_of_another_release_is_refused(texts, tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(state_file, "FORMAT", "txl_lightning memory 1")
        save(tmp_path / "a", *texts, 0)
    with pytest.raises(DataError, match="not a memory that generate wrote, or of another release"):
        load(tmp_path / "a", texts[0])


def test_other_tensors_are_refused(texts, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "a")
    with pytest.raises(DataError, match="not a memory that generate wrote"):
        load(tmp_path / "a", texts[0])


@pytest.mark.parametrize("where", [-1, -400])
def test_a_damaged_file_is_refused(texts, tmp_path, where):
    save(tmp_path / "a", *texts, 0)
    content = bytearray((tmp_path / "a").read_bytes())
    content[where] ^= 1
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load(tmp_path / "a", texts[0])
    (tmp_path / "a").write_bytes(content[:-9])
    with pytest.raises(DataError, match="not a memory"):
        load(tmp_path / "a", texts[0])


def test_other_lengths_than_it_was_written_with_are_refused(texts, tmp_path):
    save(tmp_path / "a", *texts, 2)
    load(tmp_path / "a", texts[0], mem_len=6, ext_len=2)
    with pytest.raises(ValueError, match=r"mem_len: invalid 7; expected the 6 of .*a"):
        load(tmp_path / "a", texts[0], mem_len=7)
    with pytest.raises(ValueError, match="ext_len: invalid 0; expected the 2 of"):
        load(tmp_path / "a", texts[0], ext_len=0)


def test_it_holds_tensors_and_no_pickle(texts, tmp_path):
    save(tmp_path / "a", *texts, 0)
    assert load_file(tmp_path / "a")["tokens_BL"].tolist() == texts[1].tokens_BL.tolist()


def test_a_place_that_cannot_be_written_is_one_line_and_keeps_what_was_there(texts, tmp_path):
    with pytest.raises(StorageError, match=r"memory: .*none/a: cannot be written"):
        save(tmp_path / "none" / "a", *texts, 0)
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match=r"memory: .*a: cannot be written"):
        save(tmp_path / "a", *texts, 0)
    assert os.listdir(tmp_path) == ["a"]
