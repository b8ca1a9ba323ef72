"""One setting compiles the network, and nothing else changes."""

from copy import deepcopy

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch._dynamo.testing import CompileCounter

from txl_lightning import CorpusDataModule, LanguageModel, TransformerXL, TransformerXLConfig
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.training.compiling import compile_in_place


@pytest.fixture
def counter():
    """Counts graphs; they are then run as they are, so that nothing takes long."""
    torch._dynamo.reset()
    counter = CompileCounter()
    torch.compiler.set_default_backend(counter)
    yield counter
    torch.compiler.set_default_backend(None)
    torch._dynamo.reset()


class Record(Callback):
    """Every loss, and how many graphs there were after each segment."""

    def __init__(self, counter=None):
        self.counter, self.losses, self.graphs = counter, [], {"train": [], "val": []}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.count("train")

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.count("val")

    def count(self, stage):
        if self.counter:
            self.graphs[stage].append(self.counter.frame_count)


def test_an_adaptive_vocabulary_is_compiled_but_for_its_loss(counter):
    sizes = {"n_token": 12, "n_layer": 1, "n_head": 1, "d_model": 4, "mem_len": 4}
    net = TransformerXL(TransformerXLConfig(cutoffs=(3, 6), div_val=2, **sizes))
    compile_in_place(net)
    memory = net.empty_memory(2)
    for _ in range(5):
        tokens = torch.randint(12, (2, 3))
        nats, memory = net.loss(tokens, tokens, memory)
        nats.sum().backward()
    assert counter.frame_count == 1


def model_of(make_model, compile=True, **changes) -> LanguageModel:
    seed_everything(3, verbose=False)
    made = make_model(**changes)
    model = LanguageModel(made.net.config, made.optim, compile=compile)
    model.load_state_dict(made.state_dict())
    return model


@pytest.fixture
def fit(make_trainer, make_data):
    def fit(model, counter=None, ckpt_path=None, data=(), **options) -> tuple[Record, object]:
        record = Record(counter)
        trainer = make_trainer(callbacks=[record], **{"limit_val_batches": 0} | options)
        trainer.fit(model, datamodule=make_data(**dict(data)), ckpt_path=ckpt_path)
        return record, trainer

    return fit


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_has_one_graph_and_the_losses_it_had(
    make_model, fit, counter, precision, accumulate
):
    options = {"precision": precision, "accumulate_grad_batches": accumulate, "max_steps": 6}
    plain, _ = fit(model_of(make_model, compile=False), counter, **options)
    assert counter.frame_count == 0
    compiled, _ = fit(model_of(make_model), counter, **options)
    assert compiled.losses == plain.losses
    assert compiled.graphs["train"] == [1] * 6 * accumulate


def test_a_validation_amid_training_costs_it_nothing(make_model, fit, counter):
    """Its segments have a graph of their own, its last and shorter one another."""
    options = {"limit_val_batches": 1.0, "val_check_interval": 3, "num_sanity_val_steps": 2}
    record, trainer = fit(model_of(make_model), counter, data={"eval_tgt_len": 5}, **options)
    assert trainer.val_dataloaders.stream.segment(15).tokens_BL.size(1) == 5
    per_pass = len(trainer.val_dataloaders.stream)
    first, second = record.graphs["val"][2 : 2 + per_pass], record.graphs["val"][2 + per_pass :]
    assert record.graphs["val"][:2] == [1, 1]
    assert record.graphs["train"] == [2, 2, 2, 3, 3, 3]
    assert first == [2] * (per_pass - 1) + [3]
    assert second == [3] * per_pass


def test_segments_of_many_lengths_have_two_graphs(make_model, fit, counter):
    """One for the first length, one for all others."""
    options = {"data": {"segments": "varlen", "tgt_len": 12}, "max_steps": 12}
    record, trainer = fit(model_of(make_model), counter, **options)
    stream = trainer.train_dataloader.stream
    assert len({stream.segment(n).tokens_BL.size(1) for n in range(12)}) > 4
    assert record.graphs["train"][-1] == 2


@pytest.mark.parametrize("mem_len", [12, 20, 7])
def test_a_memory_that_was_saved_needs_no_other_graph(make_model, fit, counter, tmp_path, mem_len):
    path = tmp_path / "a.ckpt"
    fit(model_of(make_model, compile=False), max_steps=3)[1].save_checkpoint(path)
    model = model_of(make_model, mem_len=mem_len)
    with pytest.warns(match="compile: was False, is True"):
        record, _ = fit(model, counter, ckpt_path=path, max_steps=7)
    assert record.graphs["train"] == [1] * 4


@pytest.mark.parametrize("compile", [False, True])
def test_a_checkpoint_is_the_same_compiled_or_not(make_model, fit, counter, tmp_path, compile):
    path, optim = tmp_path / "a.ckpt", {"schedule": "constant"}
    whole, _ = fit(model_of(make_model, compile, optim=optim), max_steps=7)
    saved, trainer = fit(model_of(make_model, compile, optim=optim), max_steps=3)
    trainer.save_checkpoint(path)
    other = LanguageModel.load_from_checkpoint(path, compile=not compile)
    assert LanguageModel.load_from_checkpoint(path).hparams["compile"] is compile
    counter.clear()
    with pytest.warns(match=f"compile: was {compile}, is {not compile}"):
        resumed, _ = fit(other, ckpt_path=path, max_steps=7)
    assert saved.losses + resumed.losses == whole.losses
    assert counter.frame_count == (0 if compile else 1)


def test_a_task_is_compiled_where_its_answers_are_counted(make_model, make_trainer, counter):
    data = CorpusDataModule(corpus="copy", task=TaskConfig(length=3, n_eval=16), batch_size=4)
    trainer, found = make_trainer(), []
    for compile in (False, True):
        assert counter.frame_count == 0
        model = model_of(make_model, compile, n_token=12)
        found.append(trainer.validate(model, datamodule=data, verbose=False)[0])
    assert found[0] == found[1]
    assert counter.frame_count == 1


def test_a_copy_computes_with_its_own_weights(make_model, counter):
    net = model_of(make_model).net
    compile_in_place(net)
    copy = deepcopy(net)
    for parameter in copy.parameters():
        torch.nn.init.zeros_(parameter)
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    nats_BL, _ = copy.loss(tokens_BL, tokens_BL)
    torch.testing.assert_close(nats_BL, torch.full((1, 3), 256.0).log())
    assert counter.frame_count == 1


def test_however_many_networks_a_process_trains_each_is_compiled(counter):
    """Torch compiles a function so many times and then gives up, unless it is told otherwise."""
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    with torch._dynamo.config.patch(recompile_limit=2):
        sizes = [{"n_layer": 1, "n_head": 1, "d_model": width} for width in (2, 4, 6, 8, 10, 12)]
        # All of them at once: what was compiled for a network goes with it.
        for net in [TransformerXL(TransformerXLConfig(**size)) for size in sizes]:
            compile_in_place(net)
            net.loss(tokens_BL, tokens_BL)
    assert counter.frame_count == 6


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_torchs_own_compiler_gives_the_losses_of_eager(make_model, fit):
    torch._dynamo.reset()
    options = {"n_layer": 1, "optim": {"lr": 1e-2}}
    losses = []
    for compile in (False, True):
        model = model_of(make_model, compile, **options)
        losses.append(fit(model, max_steps=4)[0].losses)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[1][-1] < losses[0][0] - 0.1
