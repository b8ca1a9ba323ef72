"""The validation probe measures what the model does, and training is as without it."""

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.analysis.attention_distance import record_attention
from txl_lightning.data.stream import IGNORED
from txl_lightning.evaluation.scoring import segment_hidden, segment_nats
from txl_lightning.model import EvalLengths
from txl_lightning.training import module as module_of
from txl_lightning.training.callbacks import validation_probe
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage

GAIN = "val/memory_gain"


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train with these callbacks; the model, its losses and the trainer."""

    def run(*callbacks: Callback, sizes=(), data=(), scale: float = 1.0, **options):
        torch.manual_seed(0)
        losses, model = [], make_model(**{"dropout": 0.1} | dict(sizes))
        with torch.no_grad():
            for parameter in model.net.parameters():
                parameter.mul_(scale)
        model.on_train_batch_end = lambda outputs, *_: losses.append(outputs["loss"].item())
        trainer = make_trainer(callbacks=[*callbacks], **{"val_check_interval": 3} | options)
        trainer.fit(model, datamodule=make_data(**dict(data)))
        return model, losses, trainer

    return run


def test_training_is_bit_for_bit_as_without_the_probe(train):
    _, alone, first = train()
    _, probed, second = train(ValidationProbe())
    assert probed == alone
    assert second.callback_metrics["val/nats"] == first.callback_metrics["val/nats"]
    assert GAIN in train(ValidationProbe(0), limit_val_batches=5)[2].callback_metrics


def test_samples_continue_the_beginning_of_the_validation_text(train):
    probe = ValidationProbe(sample_len=50)
    _, _, trainer = train(probe, limit_val_batches=8, data={"eval_warmup_len": 16})
    assert [step for step, _ in probe.samples] == [3, 6]
    prompt = bytes(trainer.datamodule.store.ids("val")[:32].tolist()).decode()
    for _, sample in probe.samples:
        assert sample.startswith(prompt)
        assert len(sample) > probe.prompt_len == 32


def test_nats_by_position_are_means_over_the_validation(train):
    probe, found = ValidationProbe(), []
    model, _, trainer = train(probe, val_check_interval=6, limit_val_batches=3)
    step = model.validation_step
    model.validation_step = lambda *args: (found.append(step(*args)), found[-1])[1]
    trainer.validate(model, datamodule=trainer.datamodule, verbose=False)
    nats_L = torch.cat([nats_BL.double() for nats_BL in found]).nanmean(dim=0)
    assert [position for position, _ in probe.nats_by_position] == list(range(8))
    nats = [nats for _, nats in probe.nats_by_position]
    assert nats == pytest.approx(nats_L.tolist(), rel=1e-6)


def attention_on_memory(trainer, net, n_warm: int) -> list[float]:
    """Count it by hand, in whole segments, once the memory is full."""
    stream = trainer.val_dataloaders
    memory, on_memory, n_query = net.empty_memory(1), torch.zeros(2, 2).double(), 0
    for index in range(min(len(stream), n_warm + 4)):
        row = stream.segment(index).rows(slice(1))
        with record_attention(net) as sums, torch.no_grad():
            _, memory = segment_hidden(net, row, memory, stream.ext_len)
        if index >= n_warm and row.new_len == 8:
            on_memory += torch.stack([each.memory_H for each in sums])
            n_query += float(sums[0].distance_HS[0].sum())
    assert n_query >= 16
    return (on_memory / n_query).flatten().tolist()


ATTENTION = [({}, 2, 6000), ({"eval_warmup_len": 16}, 4, 6000), ({"ext_len": 5}, 3, 6000)]
# Of the last text, the last segment is shorter: it is left out.
ATTENTION.append(({"eval_batch_size": 1}, 2, 860))


@pytest.mark.parametrize(("data", "n_warm", "size"), ATTENTION)
def test_attention_is_that_of_the_validation_text(train, text_file, data, n_warm, size):
    text_file.write_bytes(text_file.read_bytes()[:size])
    probe = ValidationProbe(sample_len=0)
    model, _, trainer = train(probe, data=data, val_check_interval=6, limit_val_batches=1.0)
    expected = attention_on_memory(trainer, model.net.eval(), n_warm)
    assert [row["on_memory"] for row in probe.attention] == pytest.approx(expected)
    assert probe.samples == []


def test_a_validation_too_short_for_a_full_memory_measures_only_nats(train):
    probe = ValidationProbe()
    _, _, trainer = train(probe, limit_val_batches=2)
    assert probe.attention == []
    assert GAIN not in trainer.callback_metrics
    assert probe.nats_by_position


def test_notes_survive_a_resume_up_to_its_step(train, tmp_path):
    path, probe, fresh = tmp_path / "probe.json", ValidationProbe(20), ValidationProbe(20)
    train(probe, limit_val_batches=5)
    probe.save(path)
    fresh.load(path, global_step=0)
    assert fresh.samples == []
    fresh.load(path, global_step=3)
    assert [step for step, _ in fresh.samples] == [3]
    fresh.load(path, global_step=6)
    for name in validation_probe.NOTES:
        assert getattr(fresh, name) == getattr(probe, name) != ValidationProbe(20).__dict__[name]


@pytest.fixture
def train_task(make_trainer, text_file):
    """Train on examples that do not see each other."""

    def run(probe: ValidationProbe, corpus: str, length: int, limit_val_batches: int):
        task = {"length": length, "n_symbol": 4, "n_eval": 64}
        sizes = {"tgt_len": 8, "batch_size": 4, "data_dir": text_file.parent}
        data = CorpusDataModule(corpus=corpus, task=task, **sizes)
        sizes = {"n_layer": 1, "n_head": 2, "d_model": 8, "mem_len": 8}
        model = LanguageModel(TransformerXLConfig(n_token=data.n_token, **sizes))
        how = {"val_check_interval": 6, "limit_val_batches": limit_val_batches}
        trainer = make_trainer(callbacks=[probe], **how)
        trainer.fit(model, datamodule=data)
        return trainer

    return run


def test_positions_without_scored_targets_are_left_out(train_task):
    probe = ValidationProbe(sample_len=0)
    trainer = train_task(probe, "copy", length=3, limit_val_batches=1)
    scored_L = trainer.val_dataloaders.segment(0).targets_BL.ne(IGNORED).any(dim=0)
    assert 0 < scored_L.sum() < 8
    positions = [position for position, _ in probe.nats_by_position]
    assert positions == scored_L.nonzero().flatten().tolist()


def test_attention_stays_within_documents(train_task):
    probe = ValidationProbe(sample_len=0)
    train_task(probe, "sort", length=4, limit_val_batches=5)
    assert [row["on_memory"] for row in probe.attention] == [0, 0]
    train_task(probe, "sort", length=8, limit_val_batches=5)
    assert all(0 < row["on_memory"] < 0.5 for row in probe.attention)


def test_attention_is_measured_with_the_evaluation_lengths(make_data, make_trainer):
    """Heads that see the same four states alike look half way back."""
    probe = ValidationProbe(sample_len=0)
    config = TransformerXLConfig(n_token=256, n_layer=1, n_head=2, d_model=8, mem_len=12)
    still = OptimConfig(lr=1e-9)
    model = LanguageModel(config, still, eval_mem_len=4, eval_same_length="mem_len")
    with torch.no_grad():
        for parameter in model.net.positions.parameters():
            parameter.zero_()
        for layer in model.net.layers:
            layer.attention.q_net.weight.zero_()
    trainer = make_trainer(callbacks=[probe], val_check_interval=6, limit_val_batches=5)
    trainer.fit(model, datamodule=make_data())
    assert [row["mean"] for row in probe.attention] == pytest.approx([1.5, 1.5], rel=1e-4)


def test_samples_are_of_the_averaged_weights(make_model, make_data, make_trainer):
    are_average = {}

    class Compared(ValidationProbe):
        def add_sample(self, trainer, pl_module):
            weights, mean = pl_module.net.state_dict(), average.average.state_dict()
            are_average[trainer.global_step] = all(weights[k].equal(mean[k]) for k in weights)

    average = WeightAverage(decay=0.5)
    # In the command line's order: callbacks of a config first.
    trainer = make_trainer(callbacks=[average, Compared(5)], val_check_interval=3)
    trainer.fit(make_model(), datamodule=make_data())
    assert are_average == {3: True, 6: True}


def test_only_the_first_of_several_texts_is_measured(train, monkeypatch):
    one, two = ValidationProbe(0), ValidationProbe(0)
    options = {"limit_val_batches": 4, "val_check_interval": 6}
    _, _, first = train(one, **options)
    val, test = CorpusDataModule.val_dataloader, CorpusDataModule.test_dataloader
    monkeypatch.setattr(CorpusDataModule, "val_dataloader", lambda self: [val(self), test(self)])
    model, _, second = train(two, **options)
    assert two.nats_by_position == one.nats_by_position
    assert second.callback_metrics[GAIN] == first.callback_metrics[GAIN]
    second.validate(model, datamodule=second.datamodule, verbose=False)
    assert GAIN not in second.callback_metrics


@pytest.mark.parametrize(
    "sizes", [{"mem_len": 0}, {"positions": "absolute_sinusoidal"}], ids=["no memory", "absolute"]
)
def test_a_model_that_cannot_remember_samples_with_ext_len(train, sizes, monkeypatch):
    given, generate = [], validation_probe.generate
    monkeypatch.setattr(
        validation_probe,
        "generate",
        lambda *args, **how: (given.append(how["ext_len"]), generate(*args, **how))[1],
    )
    _, _, trainer = train(ValidationProbe(5), sizes={"mem_len": 0} | sizes, val_check_interval=6)
    assert given == [validation_probe.PROMPT_LEN]
    assert GAIN not in trainer.callback_metrics


def test_a_compiled_model_is_measured_only_in_nats(make_data, make_trainer, monkeypatch):
    monkeypatch.setattr(module_of, "compile_in_place", lambda net: None)
    probe, sizes = ValidationProbe(5), {"n_token": 256, "n_layer": 1, "n_head": 2, "d_model": 8}
    model = LanguageModel(TransformerXLConfig(**sizes, mem_len=8), compile=True)
    trainer = make_trainer(callbacks=[probe], val_check_interval=6, limit_val_batches=5)
    trainer.fit(model, datamodule=make_data())
    assert (probe.samples, probe.attention) == ([], [])
    assert GAIN not in trainer.callback_metrics
    assert probe.nats_by_position


def nats_saved(net, stream, segments: range) -> float:
    nats, count = torch.zeros(2).double(), 0
    for at, mem_len in enumerate((0, net.config.mem_len)):
        memory = net.empty_memory(stream.batch_size, EvalLengths(mem_len))
        for index in range(segments.stop):
            segment = stream.segment(index)
            nats_BL, memory = segment_nats(net, segment, memory, stream.ext_len)
            if index in segments:
                nats[at] += nats_BL.sum()
                count += (segment.targets_BL != IGNORED).sum().item() * at
    return ((nats[0] - nats[1]) / count).item()


@pytest.mark.parametrize(
    ("data", "n_warm"), [({}, 2), ({"eval_warmup_len": 16}, 4), ({"ext_len": 5}, 3)]
)
def test_memory_gain_is_what_tokens_cost_more_without_memory(train, monkeypatch, data, n_warm):
    monkeypatch.setattr(validation_probe, "N_GAIN", 3)
    options = {"val_check_interval": 6, "limit_val_batches": 1.0}
    # Scaled, or what is remembered would change next to nothing.
    model, _, trainer = train(ValidationProbe(0), data=data, scale=8.0, **options)
    segments = range(n_warm, n_warm + 3)
    with torch.no_grad():
        expected = nats_saved(model.net.eval(), trainer.val_dataloaders, segments)
    assert abs(expected) > 1e-2
    assert trainer.callback_metrics[GAIN].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_memory_gain_of_an_empty_memory_is_0(train, monkeypatch, precision):
    """The same computation, in the same precision and by the same distances, to the last bit."""
    monkeypatch.setattr(validation_probe, "n_warmup_segments", lambda *_: 0)
    monkeypatch.setattr(validation_probe, "N_GAIN", 1)
    lengths = Callback()
    lengths.setup = lambda trainer, model, stage: setattr(
        model.memory_bank, "eval_lengths", EvalLengths(None, 2)
    )
    _, _, trainer = train(lengths, ValidationProbe(0), scale=8.0, precision=precision)
    assert trainer.callback_metrics[GAIN] == 0
