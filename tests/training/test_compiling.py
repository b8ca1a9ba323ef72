"""One setting compiles the network, and nothing else changes."""

from copy import deepcopy

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch._dynamo.testing import CompileCounter

from txl_lightning import LanguageModel, TransformerXL, TransformerXLConfig
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


@pytest.fixture
def seeded(make_model):
    def make(compile=True, **changes) -> LanguageModel:
        seed_everything(3, verbose=False)
        made = make_model(**changes)
        model = LanguageModel(made.net.config, made.optim, compile=compile)
        model.load_state_dict(made.state_dict())
        return model

    return make


@pytest.fixture
def fit(make_trainer, make_data):
    def fit(model, counter=None, ckpt_path=None, data=(), **options) -> tuple[Record, object]:
        record = Record(counter)
        trainer = make_trainer(callbacks=[record], **{"limit_val_batches": 0} | options)
        trainer.fit(model, datamodule=make_data(**dict(data)), ckpt_path=ckpt_path)
        return record, trainer

    return fit


def test_adaptive_vocabulary_is_compiled_but_for_its_loss(counter):
    sizes = {"n_token": 12, "n_layer": 1, "n_head": 1, "d_model": 4, "mem_len": 4}
    net = TransformerXL(TransformerXLConfig(cutoffs=(3, 6), div_val=2, **sizes))
    compile_in_place(net)
    memory = net.empty_memory(2)
    for _ in range(3):
        tokens = torch.randint(12, (2, 3))
        nats, memory = net.loss(tokens, tokens, memory)
        nats.sum().backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("precision", "accumulate"), [("32-true", 2), ("bf16-mixed", 1), ("bf16-true", 1)]
)
def test_compiled_training_has_one_graph_and_the_losses_of_eager(
    seeded, fit, counter, precision, accumulate
):
    options = {"precision": precision, "accumulate_grad_batches": accumulate, "max_steps": 4}
    eager, _ = fit(seeded(compile=False), counter, **options)
    assert counter.frame_count == 0
    compiled, _ = fit(seeded(), counter, **options)
    assert compiled.losses == eager.losses
    assert compiled.graphs["train"] == [1] * 4 * accumulate


def test_validation_compiles_graphs_of_its_own_once(seeded, fit, counter):
    """One for its segments, and one for the last and shorter one."""
    options = {"limit_val_batches": 1.0, "val_check_interval": 3, "num_sanity_val_steps": 2}
    record, trainer = fit(seeded(), counter, data={"eval_tgt_len": 5}, **options)
    n_segment = len(trainer.val_dataloaders)
    assert record.graphs["train"] == [2, 2, 2, 3, 3, 3]
    first, second = [2] * (n_segment - 1) + [3], [3] * n_segment
    assert record.graphs["val"] == [1, 1, *first, *second]


def test_segments_of_many_lengths_have_two_graphs(seeded, fit, counter):
    """One for the first length, one for all others."""
    options = {"data": {"segments": "varlen", "tgt_len": 12}, "max_steps": 12}
    record, trainer = fit(seeded(), counter, **options)
    stream = trainer.train_dataloader.stream
    assert len({stream.segment(n).tokens_BL.size(1) for n in range(12)}) > 4
    assert record.graphs["train"][-1] == 2


@pytest.mark.parametrize("compile", [False, True])
def test_checkpoint_is_the_same_compiled_or_not(seeded, fit, counter, tmp_path, compile):
    path, optim = tmp_path / "a.ckpt", {"schedule": "constant"}
    whole, _ = fit(seeded(compile, optim=optim), max_steps=5)
    saved, trainer = fit(seeded(compile, optim=optim), max_steps=3)
    trainer.save_checkpoint(path)
    assert LanguageModel.load_from_checkpoint(path).hparams["compile"] is compile
    other = LanguageModel.load_from_checkpoint(path, compile=not compile)
    counter.clear()
    with pytest.warns(match=f"compile: was {compile}, is {not compile}"):
        resumed, _ = fit(other, ckpt_path=path, max_steps=5)
    assert saved.losses + resumed.losses == whole.losses
    assert counter.frame_count == (0 if compile else 1)


def test_copy_of_a_compiled_network_computes_with_its_own_weights(seeded, counter):
    net = seeded().net
    compile_in_place(net)
    copy = deepcopy(net)
    for parameter in copy.parameters():
        torch.nn.init.zeros_(parameter)
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    nats_BL, _ = copy.loss(tokens_BL, tokens_BL)
    torch.testing.assert_close(nats_BL, torch.full((1, 3), 256.0).log())
    assert counter.frame_count == 1


def test_each_of_many_networks_in_a_process_is_compiled(counter):
    """Torch compiles a function so many times and then gives up, unless it is told otherwise."""
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    sizes = [{"n_layer": 1, "n_head": 1, "d_model": width} for width in (2, 4, 6, 8)]
    with torch._dynamo.config.patch(recompile_limit=2):
        # All of them at once: what was compiled for a network goes with it.
        for net in [TransformerXL(TransformerXLConfig(**size)) for size in sizes]:
            compile_in_place(net)
            net.loss(tokens_BL, tokens_BL)
    assert counter.frame_count == 4


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_losses_of_torchs_own_compiler_are_those_of_eager(seeded, fit):
    torch._dynamo.reset()
    eager, compiled = (
        fit(seeded(compile, n_layer=1, optim={"lr": 1e-2}), max_steps=4)[0].losses
        for compile in (False, True)
    )
    assert compiled == pytest.approx(eager, abs=1e-4)
    assert compiled[-1] < eager[0] - 0.1
