"""The validation probe measures the model, and does not change training."""

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.analysis.attention_distance import record_attention
from txl_lightning.data.stream import IGNORED
from txl_lightning.model import EvalLengths
from txl_lightning.model.reading import score_segment
from txl_lightning.training import module as module_of
from txl_lightning.training.callbacks import validation_probe
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage

GAIN = "val/memory_gain"
ONCE = {"val_check_interval": 6}
TINY = {"n_layer": 1, "n_head": 2, "d_model": 8}


def scale_weights(trainer, model) -> None:
    """Scale the weights; otherwise memory would have almost no effect."""
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(8.0)


SCALED = LambdaCallback(on_fit_start=scale_weights)


def test_the_probe_changes_no_bit_of_training(fit):
    def train(*probes: ValidationProbe) -> tuple:
        options = {"val_check_interval": 3, "limit_val_batches": 5, "sizes": {"dropout": 0.1}}
        metrics = fit(*probes, **options).callback_metrics
        return GAIN in metrics, fit.record.losses, fit.record.val_nats

    _, *without = train()
    assert train(ValidationProbe()) == (True, *without)


def test_samples_continue_the_beginning_of_the_validation_text(fit):
    probe = ValidationProbe(sample_len=50)
    options = {"limit_val_batches": 8, "val_check_interval": 3}
    trainer = fit(probe, data={"eval_warmup_len": 16}, **options)
    assert [step for step, _ in probe.samples] == [3, 6]
    prompt = bytes(trainer.datamodule.store.ids("val")[:32].tolist()).decode()
    for _, sample in probe.samples:
        assert sample.startswith(prompt)
        assert len(sample) > probe.prompt_len == 32


def test_nats_by_position_are_means_over_the_validation(fit):
    outputs = []
    probe = ValidationProbe()
    look = LambdaCallback(on_validation_batch_end=lambda *args: outputs.append(args[2]))
    fit(probe, look, **ONCE)
    nats_L = torch.cat([nats_BL.double() for nats_BL in outputs]).nanmean(dim=0)
    positions, nats = zip(*probe.nats_by_position, strict=True)
    assert positions == tuple(range(8))
    assert nats == pytest.approx(nats_L.tolist(), rel=1e-6)


def attention_on_memory(trainer, net, n_warm: int) -> list[float]:
    """Compute it by hand, from whole segments, once the memory is full."""
    stream = trainer.val_dataloaders
    memory = net.empty_memory(1)
    on_memory = torch.zeros(2, 2).double()
    n_query = 0
    for index in range(min(len(stream), n_warm + 4)):
        row = stream.segment(index).rows(slice(1))
        with record_attention(net) as sums, torch.no_grad():
            _, memory = score_segment(net, row, memory)
        if index >= n_warm and row.new_len == 8:
            on_memory += torch.stack([each.memory_H for each in sums])
            n_query += float(sums[0].distance_HS[0].sum())
    assert n_query >= 16
    return (on_memory / n_query).flatten().tolist()


def memory_gain(trainer, net, segments: range) -> tuple[float, float]:
    """Return mean nats without memory minus those with memory, and the standard error."""
    stream = trainer.val_dataloaders
    nats = [[], []]
    counts = []
    for at, mem_len in enumerate((0, net.config.mem_len)):
        memory = net.empty_memory(stream.batch_size, EvalLengths(mem_len))
        for index in range(segments.stop):
            segment = stream.segment(index)
            with torch.no_grad():
                nats_BL, memory = score_segment(net, segment, memory)
            if index in segments:
                nats[at].append(nats_BL.double().sum(dim=1))
                counts += [(segment.targets_BL != IGNORED).sum(dim=1)] * at
    gain_N = torch.cat(nats[0]) - torch.cat(nats[1])
    count_N = torch.cat(counts)
    mean_N = gain_N / count_N
    return (gain_N.sum() / count_N.sum()).item(), (mean_N.std() / len(mean_N) ** 0.5).item()


@pytest.mark.parametrize(
    ("data", "n_warm", "size"),
    [
        ({}, 2, 6000),
        ({"eval_warmup_len": 16}, 4, 6000),
        ({"ext_len": 5}, 3, 6000),
        # The last segment of the last text is shorter: attention leaves it out.
        ({"eval_batch_size": 1}, 2, 860),
    ],
)
def test_attention_and_memory_gain_are_those_of_the_validation_text_once_the_memory_is_full(
    fit, text_file, monkeypatch, data, n_warm, size
):
    monkeypatch.setattr(validation_probe, "N_GAIN", 3)
    text_file.write_bytes(text_file.read_bytes()[:size])
    probe = ValidationProbe(sample_len=0)
    trainer = fit(SCALED, probe, data=data, limit_val_batches=1.0, **ONCE)
    net = trainer.lightning_module.net.eval()
    on_memory = attention_on_memory(trainer, net, n_warm)
    assert [row["on_memory"] for row in probe.attention] == pytest.approx(on_memory)
    gain, error = memory_gain(trainer, net, range(n_warm, n_warm + 3))
    assert abs(gain) > 1e-2
    assert trainer.callback_metrics[GAIN].item() == pytest.approx(gain, rel=1e-4)
    assert trainer.callback_metrics[f"{GAIN}_error"].item() == pytest.approx(error, rel=1e-3)
    assert probe.samples == []


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_memory_gain_of_an_empty_memory_is_0(fit, monkeypatch, precision):
    """Both use the same precision and distances; only the order of sums may differ (AVX2)."""
    monkeypatch.setattr(validation_probe, "count_warmup_segments", lambda *_: 0)
    monkeypatch.setattr(validation_probe, "N_GAIN", 1)

    def clamp(trainer, model) -> None:
        model.memory_bank.eval_lengths = EvalLengths(None, 2)

    clamped = LambdaCallback(on_fit_start=clamp)
    trainer = fit(SCALED, clamped, ValidationProbe(0), precision=precision, **ONCE)
    assert abs(trainer.callback_metrics[GAIN]) < 1e-6


def test_a_validation_too_short_or_a_compiled_model_is_measured_only_in_nats(fit, monkeypatch):
    monkeypatch.setattr(module_of, "compile_in_place", lambda net: None)
    compiled = LanguageModel(TransformerXLConfig(256, **TINY, mem_len=8), compile=True)
    for model, n_batch in ((None, 2), (compiled, 5)):
        probe = ValidationProbe(5 if model else 0)
        trainer = fit(probe, model=model, limit_val_batches=n_batch, **ONCE)
        assert (probe.samples, probe.attention) == ([], [])
        assert GAIN not in trainer.callback_metrics
        assert probe.nats_by_position


@pytest.fixture
def probe_task(fit, text_file):
    """Return a probe and the Trainer of a run on examples that do not attend to each other."""

    def run(corpus: str, length: int, n_batch: int):
        task = {"length": length, "n_symbol": 4, "n_eval": 64}
        sizes = {"tgt_len": 8, "batch_size": 4, "data_dir": text_file.parent}
        data = CorpusDataModule(corpus=corpus, task=task, **sizes)
        model = LanguageModel(TransformerXLConfig(data.n_token, **TINY, mem_len=8))
        probe = ValidationProbe(sample_len=0)
        return probe, fit(probe, model=model, data=data, limit_val_batches=n_batch, **ONCE)

    return run


def test_positions_without_scored_targets_are_left_out_and_attention_stays_within_documents(
    probe_task,
):
    probe, trainer = probe_task("copy", 3, 1)
    scored_L = trainer.val_dataloaders.segment(0).targets_BL.ne(IGNORED).any(dim=0)
    assert 0 < scored_L.sum() < 8
    positions = [position for position, _ in probe.nats_by_position]
    assert positions == scored_L.nonzero().flatten().tolist()
    probe, _ = probe_task("sort", 4, 5)
    assert [row["on_memory"] for row in probe.attention] == [0, 0]
    probe, _ = probe_task("sort", 8, 5)
    assert all(0 < row["on_memory"] < 0.5 for row in probe.attention)


def test_attention_is_measured_with_the_evaluation_lengths(fit):
    """Uniform attention over four states has a mean distance of 1.5."""
    probe = ValidationProbe(sample_len=0)
    config = TransformerXLConfig(256, **TINY, mem_len=12)
    lengths = {"eval_mem_len": 4, "eval_same_length": "mem_len"}
    model = LanguageModel(config, OptimConfig(lr=1e-9), **lengths)
    with torch.no_grad():
        for parameter in model.net.positions.parameters():
            parameter.zero_()
        for layer in model.net.layers:
            layer.attention.q_net.weight.zero_()
    fit(probe, model=model, limit_val_batches=5, **ONCE)
    assert [row["mean"] for row in probe.attention] == pytest.approx([1.5, 1.5], rel=1e-4)


def test_samples_are_of_the_averaged_weights(fit):
    are_average = {}

    class Compared(ValidationProbe):
        def add_sample(self, trainer, pl_module):
            weights = pl_module.net.state_dict()
            mean = average.average.state_dict()
            are_average[trainer.global_step] = all(weights[k].equal(mean[k]) for k in weights)

    average = WeightAverage(decay=0.5)
    # In the order of the command line: callbacks of a config first.
    fit(average, Compared(5), val_check_interval=3)
    assert are_average == {3: True, 6: True}


def test_only_the_first_of_several_texts_is_measured(fit, monkeypatch):
    one = ValidationProbe(0)
    two = ValidationProbe(0)
    first = fit(one, limit_val_batches=4, **ONCE)
    val = CorpusDataModule.val_dataloader
    test = CorpusDataModule.test_dataloader
    monkeypatch.setattr(CorpusDataModule, "val_dataloader", lambda self: [val(self), test(self)])
    second = fit(two, limit_val_batches=4, **ONCE)
    assert two.nats_by_position == one.nats_by_position
    assert second.callback_metrics[GAIN] == first.callback_metrics[GAIN]
    second.validate(second.lightning_module, datamodule=second.datamodule, verbose=False)
    assert GAIN not in second.callback_metrics


@pytest.mark.parametrize("sizes", [{}, {"positions": "absolute_sinusoidal"}], ids=str)
def test_a_model_that_cannot_remember_samples_with_ext_len(fit, sizes, monkeypatch):
    generate = validation_probe.generate
    ext_lens = []

    def note(*args, **options):
        ext_lens.append(options["ext_len"])
        return generate(*args, **options)

    monkeypatch.setattr(validation_probe, "generate", note)
    trainer = fit(ValidationProbe(5), sizes={"mem_len": 0} | sizes, **ONCE)
    assert ext_lens == [validation_probe.PROMPT_LEN]
    assert GAIN not in trainer.callback_metrics
