"""The package's other networks train, resume, evaluate, adapt and generate."""

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.helpers.late_device import LateDevice
from tests.helpers.state_networks import SIZES, SMALL_NETWORKS
from txl_lightning import LanguageModel, TransformerXL, generate, score
from txl_lightning.analysis.context_length import score_context
from txl_lightning.data.datamodule import StreamConfig
from txl_lightning.evaluation.scoring import stream_nats
from txl_lightning.files import find_config
from txl_lightning.imports import NETWORKS, OWN
from txl_lightning.model.adaptation import Adaptation
from txl_lightning.model.config import make_config
from txl_lightning.networks.lstm import LSTM
from txl_lightning.networks.mamba2 import Mamba2Config
from txl_lightning.networks.recurrent_memory import RecurrentMemoryTransformerConfig
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.segments import require_whole_units


@pytest.fixture(params=SMALL_NETWORKS)
def make(request):
    """Return a function that makes a LanguageModel of one of the networks."""

    def run(n_segment=1, **changes) -> LanguageModel:
        torch.manual_seed(0)
        settings = (
            {"class_path": NETWORKS[request.param], "dropout": 0.2}
            | SIZES
            | SMALL_NETWORKS[request.param]
        )
        return LanguageModel(make_config(settings | changes), gradient_segments=n_segment)

    return run


def test_each_network_of_the_table_is_tested():
    # Models of transformers are in tests/hub.
    assert SMALL_NETWORKS.keys() == NETWORKS.keys() - {"HuggingFace"}


@pytest.mark.parametrize(
    ("n_segment", "n_part", "options"),
    [(1, 1, {}), (2, 1, {}), (4, 3, {"accumulate_grad_batches": 2, "precision": "bf16-mixed"})],
)
def test_resumed_training_is_bit_for_bit_the_rest(make, fit, tmp_path, n_segment, n_part, options):
    path = tmp_path / "half.ckpt"
    options = {"data": {"tgt_len": 8, "micro_batches": n_part}} | options
    whole = fit(model=make(n_segment), save=(path, 3), **options)
    assert fit(model=make(n_segment), ckpt_path=path, **options).continues(whole)


def test_micro_batches_train_as_the_whole_batch_does(make, fit):
    records = []
    for n_part in (1, 3):
        data = {"tgt_len": 8, "micro_batches": n_part}
        model = make(dropout=0.0)
        records.append(fit(data=data, model=model, precision="64-true", max_steps=3))
    assert records[1].losses == pytest.approx(records[0].losses, rel=1e-6)


def test_average_of_weights_is_saved(make, fit, tmp_path):
    path = tmp_path / "average.ckpt"
    average = WeightAverage(decay=None)
    options = {"data": {"tgt_len": 8}, "max_steps": 2, "callbacks": [average]}
    record = fit(model=make(), save=(path, 2), **options)
    saved = torch.load(path, weights_only=True)["state_dict"]
    for name in record.weights[0]:
        mean = torch.stack([each[name] for each in record.weights]).mean(0)
        torch.testing.assert_close(saved[f"net.{name}"], mean)


def test_candidates_have_the_nats_of_their_text(make):
    net = make().net
    context = [5, 6, 7, 8, 9]
    candidates = [[1], [2, 3, 4]]
    for candidate, nats in zip(candidates, score(net, context, candidates), strict=True):
        text = stream_nats(net, torch.tensor(context + candidate).numpy(), batch_size=1, tgt_len=4)
        torch.testing.assert_close(nats, text[0, 4:].to(nats), rtol=1e-4, atol=1e-4)


def test_recomputed_layers_are_refused_by_the_name_of_the_network(make, fit):
    net = make().net
    model = LanguageModel(net.config, recompute=True)
    expected = rf"^model\.recompute: invalid true; expected .* {type(net).__name__} does not have"
    with pytest.raises(ValueError, match=expected):
        fit(data={"tgt_len": 8}, model=model, max_steps=1)


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


def test_cache_and_steps_help_on_a_text_that_repeats(make):
    ids = torch.randint(20, (10,)).repeat(6).numpy()
    net = make().net
    plain = stream_nats(net, ids, batch_size=1, tgt_len=8)
    for use in (Adaptation(cache_len=20, cache_weight=0.2), Adaptation(rate=0.01)):
        adapted = stream_nats(net, ids, batch_size=1, tgt_len=8, adaptation=use)
        assert adapted.mean() < plain.mean()


def test_segments_that_are_read_again_whole_give_the_same_nats(make):
    ids = torch.randint(20, (40,)).numpy()
    net = make().net
    plain = stream_nats(net, ids, batch_size=1, tgt_len=39)
    again = stream_nats(net, ids, batch_size=1, tgt_len=3, ext_len=9, mem_len=1)
    torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-4)


def test_a_segment_without_tokens_changes_nothing(make):
    net = make().net.eval()
    tokens = torch.randint(20, (2, 5)).to(torch.uint8)
    _, memory = net(tokens)
    logits, after = net(tokens[:, :0], memory)
    assert logits.shape == (2, 0, 256)
    torch.testing.assert_close(after.tensors(), memory.tensors())


def test_context_length_is_measured(make):
    ids = torch.randint(20, (300,)).numpy()
    nats = [score_context(make().net, ids, np.arange(100, 110), context) for context in (5, 50)]
    assert np.isfinite(nats).all()
    assert not np.allclose(*nats)


@pytest.mark.parametrize("n_segment", [1, 2])
def test_a_network_without_memory_trains_with_the_same_settings(make, fit, n_segment):
    record = fit(data={"tgt_len": 8}, model=make(n_segment, mem_len=0), max_steps=2)
    assert math.isfinite(record.losses[-1])


def test_each_weight_has_a_gradient_in_a_segment_of_any_length(make):
    """Otherwise DDP would wait for it."""
    model = make()
    tokens = torch.randint(256, (2, 4))
    for length in (1, 4):
        model.net.zero_grad(set_to_none=True)
        nats, _ = model.net.loss(tokens[:, :length], tokens[:, :length])
        nats.sum().backward()
        assert all(weight.grad is not None for weight in model.net.parameters())


@pytest.mark.parametrize(
    ("lengths", "n_rank", "key"),
    [
        ({}, 1, None),
        ({}, 2, "data.eval_tgt_len"),
        ({"eval_tgt_len": 8}, 2, "data.eval_ext_len"),
        ({"eval_tgt_len": 8, "eval_ext_len": 4}, 2, None),
        ({"tgt_len": 6}, 1, "data.tgt_len"),
    ],
)
def test_segments_have_whole_units_with_several_devices_also_in_evaluation(lengths, n_rank, key):
    net = RecurrentMemoryTransformerConfig(n_layer=1, d_model=8, unit_len=4).build()
    data = StreamConfig(**{"tgt_len": 8, "eval_tgt_len": 6, "eval_ext_len": 3} | lengths)
    with pytest.raises(ValueError, match=key) if key else nullcontext():
        require_whole_units(net, data, n_rank)


def test_each_layer_is_called_as_often_with_documents_as_without(make):
    """fsdp2 gathers weights at each call: all devices call as often, whatever their rows have."""
    net = make(n_layer=3).net
    calls = []
    modules = getattr(net, "layers", [net])
    for module in modules:
        module.register_forward_hook(lambda module, *_: calls.append(module))
    counts = []
    for doc_pos in (
        torch.arange(8).expand(2, -1),
        torch.tensor([[*range(8)], [3, 0, 1, 0, 0, 1, 2, 3]]),
    ):
        calls.clear()
        net(torch.randint(256, (2, 8)), None, doc_pos)
        counts.append([calls.count(module) for module in modules])
    assert counts[0] == counts[1]


def test_a_step_waits_for_a_device_at_most_to_know_where_documents_begin(make):
    net = make(n_layer=3).net
    tokens, targets = torch.randint(256, (2, 2, 8))
    doc_pos = torch.tensor([[*range(8)], [5, 6, 7, 0, 1, 2, 3, 4]])
    with LateDevice() as device:
        _, memory = net.loss(tokens, targets, None, doc_pos)
        net.loss(tokens, targets, memory, doc_pos + 8)
    each = ["nonzero", "tolist"] if type(net) is LSTM else []
    assert device.reads == each * 2


def test_generation_token_by_token_is_that_of_one_call(make):
    net = make().net
    text = [5, 6, 7, *generate(net, [5, 6, 7], 12, temperature=0)]
    with torch.no_grad():
        logits_BLV, _ = net.eval()(torch.tensor([text])[:, :-1])
    assert text[3:] == logits_BLV[0, 2:].argmax(-1).tolist()


@pytest.mark.parametrize("name", ["Mamba2", "TransformerXL"])
@pytest.mark.parametrize("form", ["{} {}", "{}={}", "{}.class_path {}", "{}.class_path={}", ""])
def test_a_network_has_its_name_in_each_form_of_a_setting(parse_fit, form, name):
    config = f"{{model: {{net: {{class_path: {name}, d_model: 64}}}}}}"
    words = form.format("--model.net", name).split() or ["--config", config]
    assert parse_fit(*words).model.net.class_path == OWN[name]


@pytest.mark.parametrize("form", ["--model.net", "--model.net.class_path"])
def test_a_network_in_words_has_no_settings_of_another_one_in_a_config(parse_fit, form):
    config = "{model: {net: {class_path: LSTM, n_layer: 7}}}"
    changed = parse_fit("--config", config, form, "Mamba2").model.net
    assert (changed.class_path, changed.n_layer) == (OWN["Mamba2"], Mamba2Config().n_layer)
    same = parse_fit("--config", config, form, "LSTM").model.net
    assert (same.class_path, same.n_layer) == (OWN["LSTM"], 7)


def test_the_class_of_a_network_in_words_counts_before_that_of_a_config(parse_fit):
    config = "{model: {net: {class_path: LSTM}}}"
    words = ["--model.net.class_path=Mamba2", "--config", config]
    assert parse_fit(*words).model.net.class_path == OWN["Mamba2"]


@pytest.mark.slow
def test_a_network_by_its_name_is_trained_resumed_and_measured(accepted, refused, small):
    for name, other in (("LSTM", "TransformerXL"), ("TransformerXL", "LSTM")):
        words = [*small, f"--trainer.default_root_dir={name}", "--resume=auto"]
        words = [each for each in words if "n_head" not in each] + ["--model.net.mem_len=1"]
        accepted("fit", *words, f"--model.net.class_path={name}")
        accepted("fit", *words, f"--model.net={name}", "--trainer.max_steps=5")
        assert f"{name}Config" in Path(name, "version_0/config.yaml").read_text()
        accepted("test", f"{name}/version_0")
        accepted("test", f"{name}/version_0", f"--model.net.class_path={name}")
        code, line = refused("test", f"{name}/version_0", f"--model.net.class_path={other}")
        expected = f"model.net.class_path: invalid {OWN[other]}; expected {OWN[name]}, as in"
        assert (code, line.startswith(expected)) == (2, True), line


def test_a_network_has_its_name_in_python():
    assert type(LanguageModel({"class_path": "LSTM"} | SIZES).net) is LSTM
    assert type(LanguageModel({"class_path": "TransformerXL"} | SIZES).net) is TransformerXL


def test_prompts_of_several_lengths_are_refused_by_a_network_with_units(make):
    net = make().net
    prompts = [[5, 6, 7], [*range(9)]]
    if not hasattr(net.config, "unit_len"):
        alone = [generate(net, prompt, 5, temperature=0) for prompt in prompts]
        assert generate(net, prompts, 5, temperature=0) == alone
        return
    with pytest.raises(ValueError, match="prompts: invalid lengths 3 to 9; expected one length"):
        generate(net, prompts, 5)


@pytest.mark.parametrize("name", [each for each in NETWORKS if each != "HuggingFace"])
def test_settings_of_another_network_are_refused_with_the_config_of_this_one(refused, name):
    code, line = refused("fit", "--config=quickstart", f"--model.net={name}")
    start, config = line.split(" --config ")
    assert (code, start.endswith(f"a setting of another network; for {name} give")) == (2, True)
    content = yaml.safe_load(Path(find_config(config)).read_text())
    assert content["model"]["net"]["class_path"] == name


def test_settings_of_another_network_are_refused_where_no_config_is_included(refused):
    code, line = refused("fit", "--config=quickstart", "--model.net=HuggingFace")
    assert (code, line.endswith("for HuggingFace give a config of that network")) == (2, True)


def test_an_unknown_setting_of_the_network_of_a_config_is_a_mistake_in_it(refused, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: {net: {class_path: LSTM, n_hed: 2}}")
    code, line = refused("fit", f"--config={path}", "--model.net=LSTM", "--data.path=letters.txt")
    assert (code, line) == (
        2,
        "mine.yaml: model.net.n_hed: unknown key; see --help for the known ones",
    )


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("GatedDeltaNet", "d_key"),
        ("GatedDeltaNet", "d_value"),
        ("GatedDeltaNet", "d_inner"),
        ("CompressiveTransformer", "d_inner"),
        ("RecurrentMemoryTransformer", "d_inner"),
        ("RecurrentMemoryTransformer", "unit_len"),
        ("Mamba2", "d_state"),
    ],
)
def test_a_width_below_1_is_refused_with_its_name(name, field):
    with pytest.raises(ValueError, match=f"^{field}: invalid 0; expected at least 1$"):
        make_config({"class_path": NETWORKS[name], field: 0})


def test_an_unknown_network_is_refused_with_the_known_ones(refused):
    code, line = refused("fit", "--model.net", "Mamba3", "--data.path", "letters.txt")
    assert code == 2
    assert line.endswith(f"or one of {', '.join(OWN)}")


@pytest.mark.parametrize(
    "form", ["--model.net.class_path=Mamba3", "--config={model: {net: {class_path: Mamba3}}}"]
)
def test_an_unknown_class_without_a_package_is_refused_with_the_known_ones(refused, form):
    code, line = refused("fit", form, "--data.path", "letters.txt")
    known = f"one of {', '.join(OWN)}, or a class such as my_package.MyConfig"
    assert (code, line) == (2, f"model.net.class_path: invalid Mamba3; expected {known}")
