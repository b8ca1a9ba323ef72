"""Networks and checkpoints of NVIDIA's code: their outputs, and what is refused."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.convert import load_nvidia, load_nvidia_state
from txl_lightning.convert.nvidia import Vocab, map_nvidia_weights, vocabulary_from_words
from txl_lightning.convert.original import config_from_keywords
from txl_lightning.convert.weight_names import export_weights, import_weights
from txl_lightning.errors import CheckpointError

FOLDER = Path(__file__).parents[1] / "golden" / "nvidia"
CHECKPOINT = FOLDER / "checkpoint_best.pt"
GOLDEN = sorted(path for path in FOLDER.glob("*.npz") if path.stem != CHECKPOINT.stem)


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request, golden_of):
    return golden_of(f"nvidia/{request.param.stem}")


def test_it_gives_what_nvidias_code_gives(golden):
    golden.check(load_nvidia_state(golden.weights, golden.args))


def test_every_tensor_goes_there_and_back(golden):
    net = load_nvidia_state(golden.weights, golden.args)
    names = map_nvidia_weights(net.config)
    back = export_weights(import_weights(golden.weights, names, net.config), names)
    assert back.keys() >= golden.weights.keys() - {"pos_emb.inv_freq"}
    for name, tensor in golden.weights.items():
        assert name == "pos_emb.inv_freq" or torch.equal(tensor, back[name]), name


def test_a_checkpoint_of_its_training_gives_what_it_gave(golden_of):
    net, vocab = load_nvidia(CHECKPOINT)
    golden = golden_of("nvidia/checkpoint_best")
    golden.check(net)
    assert list(vocab.words) == golden.words
    assert vocab.options.line_end == "eos"
    assert vocab.decode(vocab.encode_text("\n")) == "\n"


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_may_be_of_an_old_torch_and_without_a_vocabulary(tmp_path, golden, zipped):
    held = {"model_state": golden.weights, "model_config": golden.args}
    torch.save(held, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    net, vocab = load_nvidia(tmp_path / "a.pt")
    assert vocab is None
    golden.check(net)


def test_what_is_wrong_with_a_checkpoint_is_said_of_its_file(tmp_path, golden_of):
    golden, path = golden_of("nvidia/learned_relative"), tmp_path / "a.pt"
    whole = {"model_state": golden.weights, "model_config": golden.args}
    biases = "crit.out_layers_biases.0"
    cases = {
        rf"a\.pt: state_dict: missing: {biases}": {
            "model_state": {n: golden.weights[n] for n in golden.weights if n != biases}
        },
        r"a\.pt: state_dict: left over: extra": {
            "model_state": golden.weights | {"extra": torch.zeros(1)}
        },
        r"a\.pt: not a state_dict": {"model_state": {"a": "text"}},
        r"a\.pt: args: n_layer missing": {
            "model_config": {n: golden.args[n] for n in golden.args if n != "n_layer"}
        },
        r"a\.pt: n_layer: invalid '2'; expected a number": {
            "model_config": golden.args | {"n_layer": "2"}
        },
        r"a\.pt: a setting is of a wrong kind \(.*not iterable": {"model_config": 3},
        r"a\.pt: vocab: it must be words": {"vocab": {"idx2sym": ["a"]}},
    }
    for said, change in cases.items():
        torch.save(whole | change, path)
        with pytest.raises(CheckpointError, match=said) as refusal:
            load_nvidia(path)
        assert str(refusal.value).count("a.pt") == 1
    torch.save({"weights": {}}, path)
    with pytest.raises(CheckpointError, match=r"a\.pt: not a checkpoint of NVIDIA's"):
        load_nvidia(path)


def test_words_are_told_apart_as_its_vocabulary_does():
    held = Vocab()
    held.idx2sym, held.delimiter, held.lower_case = ["<eos>", "the", "<unk>"], None, True
    assert vocabulary_from_words(held, 3).encode_text("The").tolist() == [1]
    held.lower_case = False
    assert vocabulary_from_words(held, 3).encode_text("The").tolist() == [2]
    for wrong in ({"delimiter": ""}, {"idx2sym": {"the": 0}}):
        other = Vocab()
        vars(other).update(vars(held) | wrong)
        with pytest.raises(ValueError, match="vocab: it must be words between white space"):
            vocabulary_from_words(other, 3)


def test_heads_beside_learned_places_need_not_be_as_wide_as_the_model(golden_of):
    args = golden_of("nvidia/absolute_learned").args | {"d_head": 5}
    net = TransformerXL(config_from_keywords(args, None))
    theirs = export_weights(net.state_dict(), map_nvidia_weights(net.config))
    assert theirs["r_emb"].shape == (2, 7, 18)
    assert load_nvidia_state(theirs, args).config == net.config
