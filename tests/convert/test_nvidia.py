"""NVIDIA's checkpoints: weights and words, old file formats, and what is refused."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.checkpoints.contents import export_weights
from txl_lightning.convert import load_any_checkpoint, load_nvidia
from txl_lightning.convert.nvidia import Vocab, convert_vocabulary, map_nvidia_weights
from txl_lightning.convert.original import config_from_original
from txl_lightning.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*another code's files have no checksum")
CHECKPOINT = Path(__file__).parents[1] / "golden" / "nvidia" / "checkpoint_best.pt"


def test_training_checkpoint_gives_golden_nats_and_its_words(open_golden):
    net, vocab, _ = load_any_checkpoint(CHECKPOINT)
    golden = open_golden("nvidia/checkpoint_best")
    golden.check(net)
    assert list(vocab.words) == golden.words
    assert vocab.decode(vocab.encode_text("\n")) == "\n"


def test_checkpoint_may_lack_a_vocabulary_and_its_errors_name_the_file(tmp_path, open_golden):
    golden = open_golden("nvidia/learned_relative")
    path = tmp_path / "a.pt"
    content = {"model_state": golden.weights, "model_config": golden.args}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    net, vocab, _ = load_any_checkpoint(path)
    golden.check(net)
    assert vocab is None
    extra = golden.weights | {"extra": torch.zeros(1)}
    for key, value, message in (
        ("model_state", extra, "state_dict: left over: extra"),
        ("model_state", {"a": "text"}, "not a state_dict"),
        ("model_config", golden.args | {"n_layer": "2"}, "n_layer: invalid '2'; expected a number"),
        ("model_config", 3, r"a setting has a wrong type \(.*not iterable"),
        ("vocab", {"idx2sym": ["a"]}, "vocab: invalid kind; expected words"),
    ):
        torch.save(content | {key: value}, path)
        with pytest.raises(CheckpointError, match=rf"^\S+a\.pt: {message}"):
            load_any_checkpoint(path)


def test_vocabulary_keeps_lower_case_and_refuses_other_units():
    vocab = Vocab()
    vocab.idx2sym = ["<eos>", "the", "<unk>"]
    vocab.delimiter = None
    for vocab.lower_case, index in ((True, 1), (False, 2)):
        assert convert_vocabulary(vocab, 3).encode_text("The").tolist() == [index]
    vocab.delimiter = ""
    with pytest.raises(ValueError, match="vocab: invalid kind; expected words"):
        convert_vocabulary(vocab, 3)


def test_heads_beside_learned_positions_need_not_be_as_wide_as_the_model(open_golden):
    args = open_golden("nvidia/absolute_learned").args | {"d_head": 5}
    net = TransformerXL(config_from_original(args, None))
    theirs = export_weights(net.state_dict(), map_nvidia_weights(net.config))
    assert theirs["r_emb"].shape == (2, 7, 18)
    assert load_nvidia(theirs, args).config == net.config
