"""The package's other networks train, resume, evaluate, adapt and generate."""

import math

import pytest
import torch
import yaml

from txl_lightning import LanguageModel, generate
from txl_lightning.evaluation.scoring import stream_nats
from txl_lightning.imports import NETWORKS, find_network_class
from txl_lightning.model.adaptation import Adaptation
from txl_lightning.model.config import make_config

SIZES = {"n_layer": 2, "d_model": 16}
SETTINGS = {
    "CompressiveTransformer": {"unit_len": 4, "n_state": 8, "n_compressed": 4, "rate": 2},
    "GatedDeltaNet": {"chunk_len": 5},
    "LSTM": {},
    "Mamba2": {"d_head": 8, "d_state": 6, "chunk_len": 5},
    "RecurrentMemoryTransformer": {"unit_len": 4, "n_memory": 3},
}


@pytest.fixture(params=SETTINGS)
def make(request):
    """Return a function that makes a LanguageModel of one of the networks."""

    def run(n_segment=1, **changes) -> LanguageModel:
        torch.manual_seed(0)
        settings = (
            {"class_path": NETWORKS[request.param], "dropout": 0.2}
            | SIZES
            | SETTINGS[request.param]
        )
        return LanguageModel(make_config(settings | changes), gradient_segments=n_segment)

    return run


def test_each_network_of_the_table_is_tested():
    assert SETTINGS.keys() == NETWORKS.keys()


@pytest.mark.parametrize("n_segment", [1, 2])
def test_resumed_training_is_bit_for_bit_the_rest(make, fit, tmp_path, n_segment):
    path = tmp_path / "half.ckpt"
    data = {"tgt_len": 8}
    whole = fit(data=data, model=make(n_segment), save=(path, 3))
    assert fit(data=data, model=make(n_segment), ckpt_path=path).continues(whole)


def test_shuffled_lines_and_segments_that_are_read_again_train(make, fit, text_file):
    text = bytearray(text_file.read_bytes())
    text[::23] = b"\n" * len(text[::23])
    text_file.write_bytes(text)
    data = {"order": "shuffled", "document_unit": "lines", "ext_len": 3}
    record = fit(data=data, model=make())
    assert all(math.isfinite(loss) for loss in record.losses)


def test_a_text_is_evaluated_the_same_in_segments_of_any_length(make):
    ids = torch.randint(256, (60,)).numpy()
    net = make().net
    nats = [stream_nats(net, ids, batch_size=1, tgt_len=tgt_len) for tgt_len in (59, 7, 1)]
    torch.testing.assert_close(nats[0], nats[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(nats[0], nats[2], rtol=1e-4, atol=1e-4)


def test_evaluation_adapts_with_a_cache_and_with_steps(make):
    ids = torch.randint(20, (60,)).numpy()
    net = make().net
    plain = stream_nats(net, ids, batch_size=1, tgt_len=8)
    for use in (Adaptation(cache_len=20, cache_weight=0.2), Adaptation(rate=0.01)):
        adapted = stream_nats(net, ids, batch_size=1, tgt_len=8, adaptation=use)
        assert adapted.mean() < plain.mean()


def test_generation_token_by_token_is_that_of_one_call(make):
    net = make().net
    text = [5, 6, 7, *generate(net, [5, 6, 7], 12, temperature=0)]
    with torch.no_grad():
        logits_BLV, _ = net.eval()(torch.tensor([text])[:, :-1])
    assert text[3:] == logits_BLV[0, 2:].argmax(-1).tolist()


@pytest.mark.parametrize("form", ["--model.net", "--model.net.class_path", "config"])
def test_a_network_has_its_name_in_each_form_of_a_setting(txl, tmp_path, form):
    config = tmp_path / "net.yaml"
    config.write_text("model: {net: {class_path: Mamba2, d_model: 64}}")
    words = ["--config", str(config)] if form == "config" else [form, "Mamba2"]
    code, output = txl("fit", *words, "--data.path", "letters.txt", "--print_config")
    assert code == 0
    name = yaml.safe_load(output.out)["model"]["net"]["class_path"]
    assert find_network_class(name) == NETWORKS["Mamba2"]


def test_an_unknown_network_is_refused_with_the_known_ones(refused):
    code, line = refused("fit", "--model.net", "Mamba3", "--data.path", "letters.txt")
    assert code == 2
    assert line.endswith(f"or one of {', '.join(NETWORKS)}")
