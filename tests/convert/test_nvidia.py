"""NVIDIA's checkpoints: weights and words, old file formats, and what is refused."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.convert import load_any_checkpoint, load_nvidia
from txl_lightning.convert.nvidia import Vocab, convert_vocabulary, map_nvidia_weights
from txl_lightning.convert.original import config_from_original
from txl_lightning.convert.weight_names import export_weights
from txl_lightning.errors import CheckpointError

CHECKPOINT = Path(__file__).parents[1] / "golden" / "nvidia" / "checkpoint_best.pt"


def test_training_checkpoint_gives_golden_nats_and_its_words(open_golden):
    net, vocab = load_any_checkpoint(CHECKPOINT)
    golden = open_golden("nvidia/checkpoint_best")
    golden.check(net)
    assert list(vocab.words) == golden.words
    assert vocab.options.line_end == "eos"
    assert vocab.decode(vocab.encode_text("\n")) == "\n"


def test_checkpoint_may_lack_a_vocabulary_and_its_errors_name_the_file(tmp_path, open_golden):
    golden, path = open_golden("nvidia/learned_relative"), tmp_path / "a.pt"
    content = {"model_state": golden.weights, "model_config": golden.args}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    net, vocab = load_any_checkpoint(path)
    golden.check(net)
    assert vocab is None
    cases = {
        r"a\.pt: state_dict: left over: extra": {
            "model_state": golden.weights | {"extra": torch.zeros(1)}
        },
        r"a\.pt: not a state_dict": {"model_state": {"a": "text"}},
        r"a\.pt: n_layer: invalid '2'; expected a number": {
            "model_config": golden.args | {"n_layer": "2"}
        },
        r"a\.pt: a setting is of a wrong kind \(.*not iterable": {"model_config": 3},
        r"a\.pt: vocab: invalid kind; expected words": {"vocab": {"idx2sym": ["a"]}},
    }
    for message, change in cases.items():
        torch.save(content | change, path)
        with pytest.raises(CheckpointError, match=message) as refusal:
            load_any_checkpoint(path)
        assert str(refusal.value).count("a.pt") == 1


def test_vocabulary_keeps_lower_case_and_refuses_other_units():
    vocab = Vocab()
    vocab.idx2sym, vocab.delimiter, vocab.lower_case = ["<eos>", "the", "<unk>"], None, True
    assert convert_vocabulary(vocab, 3).encode_text("The").tolist() == [1]
    vocab.lower_case = False
    assert convert_vocabulary(vocab, 3).encode_text("The").tolist() == [2]
    for wrong in ({"delimiter": ""}, {"idx2sym": {"the": 0}}):
        other = Vocab()
        vars(other).update(vars(vocab) | wrong)
        with pytest.raises(ValueError, match="vocab: invalid kind; expected words"):
            convert_vocabulary(other, 3)


def test_heads_beside_learned_positions_need_not_be_as_wide_as_the_model(open_golden):
    args = open_golden("nvidia/absolute_learned").args | {"d_head": 5}
    net = TransformerXL(config_from_original(args, None))
    theirs = export_weights(net.state_dict(), map_nvidia_weights(net.config))
    assert theirs["r_emb"].shape == (2, 7, 18)
    assert load_nvidia(theirs, args).config == net.config
