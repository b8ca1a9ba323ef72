"""Decoding states in files."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning.errors import DataError
from txl_lightning.generation import Sampling, decode_steps, start_decoding
from txl_lightning.generation.state import load_state, save_state
from txl_lightning.model import pack_weights

LENGTHS = [
    {"mem_len": 6, "clamp_len": 3, "same_length": "mem_len"},
    {"mem_len": 0},
    {"mem_len": 4, "positions": "absolute_learned", "clamp_len": 9},
]
SHA256 = "the checkpoint's"


def continue_state(net, state, count):
    for after in decode_steps(net, state, count, Sampling(repetition_penalty=1.2, seed=3)):
        state = after
    return state


@pytest.fixture
def written(make_net, tmp_path):
    """A network, and a file with one of its states."""
    net = make_net()
    state = continue_state(net, start_decoding(net, [torch.tensor([1, 2])], ext_len=2), 5)
    save_state(tmp_path / "a", state, SHA256)
    return net, tmp_path / "a"


@pytest.mark.parametrize(
    ("lengths", "dtype", "n_before"),
    [*((lengths, torch.float64, 9) for lengths in LENGTHS), ({}, torch.bfloat16, 9),
     ({}, torch.float64, 0)],
    ids=str,
)  # fmt: skip
def test_a_loaded_state_continues_bit_for_bit(make_net, tmp_path, lengths, dtype, n_before):
    net = make_net(**lengths).to(dtype)
    start = start_decoding(net, [torch.tensor([1]), torch.randint(11, (9,))], ext_len=2)
    whole, state = continue_state(net, start, 20), continue_state(net, start, n_before)
    save_state(tmp_path / "a", state, SHA256)
    assert load_file(tmp_path / "a")["tokens_BL"].shape == (2, 9 + n_before)
    loaded = continue_state(net, load_state(tmp_path / "a", net, SHA256, ext_len=2), 20 - n_before)
    assert loaded.ext_len == 2
    assert torch.equal(loaded.tokens_BL, whole.tokens_BL)
    assert torch.equal(loaded.length_B, whole.length_B)
    for name, tensor in whole.memory.tensors().items():
        assert torch.equal(loaded.memory.tensors()[name], tensor)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.bfloat16
def test_a_state_of_a_network_with_bfloat16_weights_keeps_its_precision(make_net, tmp_path):
    net = pack_weights(make_net().float(), "bf16")
    state = continue_state(net, start_decoding(net, [torch.tensor([1, 2])]), 9)
    save_state(tmp_path / "a", state, SHA256)
    loaded = load_state(tmp_path / "a", net, SHA256)
    assert loaded.memory.tensors()["k_NHBKM"].dtype == torch.bfloat16
    both = [continue_state(net, each, 9).tokens_BL for each in (loaded, state)]
    assert torch.equal(*both)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sha256": "x"}, DataError, "state_file: .*a: written with another checkpoint"),
        ({"mem_len": 7}, ValueError, "mem_len: invalid 7; expected 6, as in .*a"),
        ({"ext_len": 0}, ValueError, "ext_len: invalid 0; expected 2, as in"),
    ],
)
def test_a_state_of_another_checkpoint_or_length_is_refused(written, options, error, message):
    net, path = written
    with pytest.raises(error, match=message):
        load_state(path, net, **{"sha256": SHA256} | options)


def test_a_damaged_file_or_another_kind_of_file_is_refused(written):
    net, path = written
    content = path.read_bytes()
    save_file({"a": torch.ones(1)}, path)
    others = [b"", b"\0" * 64, b"{}", path.read_bytes(), content[:-9]]
    cases = [(other, r"state_file: .*a: not written by generate") for other in others]
    for place in (-1, -400):
        damaged = bytearray(content)
        damaged[place] ^= 1
        cases.append((damaged, "state_file: .*a: damaged"))
    for wrong, message in cases:
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=message) as caught:
            load_state(path, net, SHA256)
        assert "\n" not in str(caught.value)
