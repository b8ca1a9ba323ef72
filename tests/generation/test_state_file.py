"""Decoding states in files."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning.errors import DataError, StorageError
from txl_lightning.generation import Sampling, decode_steps, start_decoding
from txl_lightning.generation.state_file import load_state, save_state

LENGTHS = [
    {"mem_len": 6, "clamp_len": 3, "same_length": "mem_len"},
    {"mem_len": 0},
    {"mem_len": 4, "positions": "absolute_learned", "clamp_len": 9},
]
SHA256 = "the checkpoint's"


def continue_state(net, state, count):
    """Return the state after `count` tokens."""
    for after in decode_steps(net, state, count, Sampling(repetition_penalty=1.2), 3, ext_len=2):
        state = after
    return state


@pytest.fixture
def written(make_net, tmp_path):
    """A network, and the file of a state of its."""
    net = make_net()
    state = continue_state(net, start_decoding(net, [torch.tensor([1, 2])]), 5)
    save_state(tmp_path / "a", state, SHA256, 2)
    return net, tmp_path / "a"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_loaded_state_continues_bit_for_bit(make_net, tmp_path, lengths, dtype):
    net = make_net(**lengths).to(dtype)
    prompts = [torch.tensor([1]), torch.randint(11, (9,))]
    whole = continue_state(net, start_decoding(net, prompts), 20)
    state = continue_state(net, start_decoding(net, prompts), 9)
    save_state(tmp_path / "a", state, SHA256, 2)
    loaded, ext_len = load_state(tmp_path / "a", net, SHA256)
    loaded = continue_state(net, loaded, 11)
    assert ext_len == 2
    assert torch.equal(loaded.tokens_BL, whole.tokens_BL)
    assert torch.equal(loaded.length_B, whole.length_B)
    for name, tensor in whole.memory.tensors().items():
        assert torch.equal(loaded.memory.tensors()[name], tensor)
    assert os.listdir(tmp_path) == ["a"]


def test_a_state_of_an_unread_prompt_can_be_saved(make_net, tmp_path):
    net, prompts = make_net(), [torch.tensor([1, 2])]
    save_state(tmp_path / "a", start_decoding(net, prompts), SHA256, 2)
    loaded = continue_state(net, load_state(tmp_path / "a", net, SHA256)[0], 4)
    expected = continue_state(net, start_decoding(net, prompts), 4)
    assert torch.equal(loaded.tokens_BL, expected.tokens_BL)


def test_a_state_of_another_checkpoint_is_refused(written):
    with pytest.raises(DataError, match=r"state_file: .*a: written with another checkpoint"):
        load_state(written[1], written[0], "another's")


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 64, json.dumps({}).encode(), None])
def test_a_file_of_something_else_is_refused(written, content):
    net, path = written
    if content is None:
        save_file({"a": torch.ones(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"state_file: .*a: not written by generate") as caught:
        load_state(path, net, SHA256)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [-1, -400])
def test_a_damaged_file_is_refused(written, place):
    net, path = written
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load_state(path, net, SHA256)
    path.write_bytes(content[:-9])
    with pytest.raises(DataError, match="not written by generate"):
        load_state(path, net, SHA256)


def test_other_lengths_than_the_file_has_are_refused(written):
    net, path = written
    load_state(path, net, SHA256, mem_len=6, ext_len=2)
    with pytest.raises(ValueError, match=r"mem_len: invalid 7; expected 6, as in .*a"):
        load_state(path, net, SHA256, mem_len=7)
    with pytest.raises(ValueError, match="ext_len: invalid 0; expected 2, as in"):
        load_state(path, net, SHA256, ext_len=0)


def test_a_state_file_is_a_safetensors_file(written):
    assert load_file(written[1])["tokens_BL"].tolist()[0][:2] == [1, 2]


def test_a_path_that_cannot_be_written_is_refused(make_net, tmp_path):
    net = make_net()
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match=r".*a: cannot be written"):
        save_state(tmp_path / "a", start_decoding(net, [torch.tensor([1])]), SHA256, 0)
    assert os.listdir(tmp_path) == ["a"]
