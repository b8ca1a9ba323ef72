"""One setting compiles the network, and changes nothing else."""

from copy import deepcopy
from functools import partial
from inspect import signature
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from torch._dynamo.testing import CompileCounter

from txl_lightning import LanguageModel, TransformerXL, TransformerXLConfig
from txl_lightning.training.segments import compile_in_place, recompute_layers

COMPILED = {"settings": {"compile": True}}
# torch looks whether states have a gradient, and hides this warning, but not where it is an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture
def counter(monkeypatch):
    """A backend that counts graphs and runs them uncompiled, which is fast."""
    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    yield counter
    torch._dynamo.reset()


@pytest.fixture
def graphs(counter):
    """A callback that records the number of graphs after each segment of a stage."""

    class Graphs(Callback):
        train: ClassVar = []
        val: ClassVar = []

        def on_train_batch_end(self, *_):
            self.train.append(counter.frame_count)

        def on_validation_batch_end(self, *_):
            self.val.append(counter.frame_count)

    return Graphs()


def test_adaptive_vocabulary_is_compiled_except_for_its_loss(counter):
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
    fit, counter, graphs, precision, accumulate
):
    options = {"precision": precision, "accumulate_grad_batches": accumulate, "max_steps": 4}
    # torch.compile can trace sdpa; in eager mode, auto is a kernel with other rounding errors.
    net = {"kernel": "sdpa"}
    eager = fit(net, **options)
    assert counter.frame_count == 0
    losses = fit(net | COMPILED, callbacks=[graphs], **options).losses
    # By the processor, compiled code rounds one of these eight losses to the neighbouring number.
    assert losses == pytest.approx(eager.losses, rel=1e-6, abs=0)
    assert graphs.train == [1] * 4 * accumulate


def test_validation_compiles_its_own_graphs_once(fit, graphs):
    """One for most segments, and one for the last, shorter one."""
    options = {"limit_val_batches": 1.0, "val_check_interval": 3, "num_sanity_val_steps": 2}
    record = fit(COMPILED, {"eval_tgt_len": 5}, callbacks=[graphs], **options)
    n_segment = len(record.trainer.val_dataloaders)
    assert graphs.train == [2, 2, 2, 3, 3, 3]
    assert graphs.val == [1, 1, *[2] * (n_segment - 1), *[3] * (n_segment + 1)]


def test_segments_of_many_lengths_have_two_graphs(fit, counter):
    """One for the first length, one for all others."""
    record = fit(COMPILED, {"segments": "varlen", "tgt_len": 12}, max_steps=12)
    assert len({segment.tokens_BL.size(1) for segment in record.segments}) > 4
    assert counter.frame_count == 2


@pytest.mark.parametrize("compile", [False, True])
def test_checkpoint_is_the_same_compiled_or_not(fit, counter, tmp_path, compile):
    path = tmp_path / "a.ckpt"
    optim = {"schedule": "constant"}
    how = [{"optim": optim, "settings": {"compile": each}} for each in (compile, not compile)]
    whole = fit(how[0], max_steps=5, save=(path, 3))
    assert LanguageModel.load_from_checkpoint(path).hparams["compile"] is compile
    counter.clear()
    with pytest.warns(match=f"compile: was {compile}, is {not compile}"):
        resumed = fit(how[1], ckpt_path=path, max_steps=5)
    assert resumed.losses == whole.losses[3:]
    assert counter.frame_count == (0 if compile else 1)


def test_own_networks_loss_is_compiled_whole(counter):
    """A network of the contract needs no layers."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Embedding(9, 9)

        def loss(self, tokens_BL, targets_BL, memory=None):
            return torch.nn.functional.cross_entropy(
                self.logits(tokens_BL).mT, targets_BL, reduction="none"
            ), memory

    net = Own()
    tokens_BL = torch.randint(9, (2, 3))
    expected, _ = net.loss(tokens_BL, tokens_BL)
    for _ in range(2):
        compile_in_place(net)
        nats_BL, _ = net.loss(tokens_BL, tokens_BL)
        torch.testing.assert_close(nats_BL, expected)
    assert counter.frame_count == 1


def test_copy_of_a_compiled_network_computes_with_its_own_weights(make_model, counter):
    net = make_model().net
    compile_in_place(net)
    copy = deepcopy(net)
    for parameter in copy.parameters():
        torch.nn.init.zeros_(parameter)
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    nats_BL, _ = copy.loss(tokens_BL, tokens_BL)
    torch.testing.assert_close(nats_BL, torch.full((1, 3), 256.0).log())
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "changes", [(compile_in_place, recompute_layers), (recompute_layers, compile_in_place)]
)
def test_compiled_layers_are_recomputed_in_either_order_of_the_two(
    make_net, count_bytes, counter, changes
):
    net = make_net(n_layer=3, kernel="sdpa", dropout=0.2, dropatt=0.1).train()
    names = list(net.state_dict())
    tokens_BL = torch.randint(11, (2, 9))

    def compute() -> list[torch.Tensor]:
        torch.manual_seed(1)
        nats_BL, _ = net.loss(tokens_BL, tokens_BL, net.empty_memory(2))
        return [nats_BL, *torch.autograd.grad(nats_BL.sum(), list(net.parameters()))]

    expected = compute()
    kept = count_bytes(compute)
    for change in 2 * changes:
        change(net)
    torch.testing.assert_close(compute(), expected, rtol=1e-12, atol=1e-12)
    assert count_bytes(compute) < 0.5 * kept
    assert counter.frame_count == 1
    assert list(net.state_dict()) == names


@pytest.mark.skipif(
    "isolate_recompiles" not in signature(torch.compile).parameters, reason="needs torch 2.13"
)
def test_each_of_many_networks_in_a_process_is_compiled(counter):
    """By default, torch stops compiling a function after a number of times."""
    tokens_BL = torch.zeros(1, 3, dtype=torch.long)
    sizes = [{"n_layer": 1, "n_head": 1, "d_model": width} for width in (2, 4, 6, 8)]
    with torch._dynamo.config.patch(recompile_limit=2):
        # All at once: a deleted network takes its graphs with it.
        for net in [TransformerXL(TransformerXLConfig(**size)) for size in sizes]:
            compile_in_place(net)
            net.loss(tokens_BL, tokens_BL)
    assert counter.frame_count == 4


@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize(
    ("accelerator", "precision", "limit"),
    [
        pytest.param("cpu", "32-true", 1e-4, marks=pytest.mark.faults),
        pytest.param("gpu", "32-true", 5e-3, marks=pytest.mark.gpu),
        pytest.param("gpu", "bf16-mixed", 0.05, marks=pytest.mark.gpu),
    ],
)
def test_torchs_own_compiler_makes_one_graph_with_the_losses_of_eager(
    fit, accelerator, precision, limit
):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = {"n_layer": 1, "optim": {"lr": 1e-2, "schedule": "constant"}}
    options = {"accelerator": accelerator, "precision": precision, "max_steps": 4}
    eager, compiled = (fit(net | how, **options).losses for how in ({}, COMPILED))
    assert compiled == pytest.approx(eager, abs=limit)
    assert compiled[-1] < eager[0] - 0.1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
