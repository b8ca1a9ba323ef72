"""A segment computed in micro-batches is the segment: the same steps, with less memory."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from txl_lightning.data.stream import Stream
from txl_lightning.evaluation.scoring import segment_nats
from txl_lightning.training.computing import nats_in_micro_batches

EXACT = {"precision": "64-true", "gradient_clip_val": 0.25, "limit_val_batches": 0, "max_steps": 7}


class StepLosses(Callback):
    """The loss of every segment, and what is logged of it."""

    def __init__(self):
        self.losses, self.logged = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        names = ("train/tokens_seen", "train/nats", "train/mem_filled")
        self.logged.append([float(trainer.callback_metrics.get(name, 0)) for name in names])


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train with a number of micro-batches: what was logged, and the model."""

    def run(micro_batches, net=(), trainer=(), fit=(), **reading):
        seed_everything(3, verbose=False)
        steps, model = StepLosses(), make_model(**dict(net))
        options = {**EXACT, "log_every_n_steps": 1, "callbacks": [steps], **dict(trainer)}
        data = make_data(micro_batches=micro_batches, **reading)
        make_trainer(**options).fit(model, datamodule=data, **dict(fit))
        return steps, model

    return run


def assert_same(found, expected):
    (steps, model), (expected_steps, expected_model) = found, expected
    assert steps.losses == pytest.approx(expected_steps.losses, rel=1e-10)
    assert np.array(steps.logged) == pytest.approx(np.array(expected_steps.logged), rel=1e-6)
    memory, other = (each.memory_bank.committed["train", 0] for each in (model, expected_model))
    assert torch.equal(memory.filled_B, other.filled_B)
    tensors = [*model.parameters(), memory.h_NBMD], [*expected_model.parameters(), other.h_NBMD]
    torch.testing.assert_close(*tensors, rtol=0, atol=1e-10)


@pytest.fixture
def lines(text_file):
    """Lines of many lengths, so that not every row has as much to predict."""
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text[3000::37] = b"\n" * len(text[3000::37])
    text_file.write_bytes(text)


def test_micro_batches_train_as_the_whole_batch_does(train, lines):
    reading = {"order": "shuffled", "document_unit": "lines"}
    expected = train(1, **reading)
    for micro_batches in (2, 3, 4):
        assert_same(train(micro_batches, **reading), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": {"accumulate_grad_batches": 2}},
        {"trainer": {"overfit_batches": 3}},
        {"net": {"mem_len": 0}},
        {"net": {"cutoffs": [20, 110], "loss_chunk_size": 5}},
        {"order": "rolled", "segments": "varlen", "ext_len": 5, "split": (0.04, 0.48, 0.48)},
    ],
    ids=str,
)
def test_micro_batches_train_as_the_whole_batch_does_under_other_settings(train, changes):
    assert_same(train(2, **changes), train(1, **changes))


@pytest.fixture
def step(make_net):
    """A network with dropout, a segment of four rows, and a memory."""
    net = make_net(dropout=0.3, dropatt=0.2).train()
    stream = Stream.from_tokens(torch.randint(11, (80,)).numpy(), 4, 6)
    with torch.no_grad():
        _, memory = segment_nats(net, stream.segment(0), net.empty_memory(4))
    return net, stream.segment(1), memory


def test_backward_pass_draws_the_same_dropout_again(step):
    net, segment, memory = step
    torch.manual_seed(5)
    parts = [slice(0, 2), slice(2, 4)]
    nats = [segment_nats(net, segment.rows(rows), memory.rows(rows))[0] for rows in parts]
    expected = torch.autograd.grad(torch.cat(nats).sum(), list(net.parameters()))
    torch.manual_seed(5)
    nats_BL, _ = nats_in_micro_batches(net, segment, memory, 0, 2)
    assert torch.equal(nats_BL, torch.cat(nats))
    found = torch.autograd.grad(nats_BL.sum(), list(net.parameters()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_activations_are_kept_of_one_micro_batch_at_a_time(step):
    net, segment, memory = step

    def kept_bytes(n_part):
        kept = []
        pack = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
        with pack:
            nats_in_micro_batches(net, segment, memory, 0, n_part)
        return sum(tensor.nbytes for tensor in kept)

    assert kept_bytes(2) < kept_bytes(1) / 10


def test_interrupted_training_equals_uninterrupted_unless_micro_batches_change(train, tmp_path):
    model, fit = {"dropout": 0.2, "optim": {"schedule": "constant"}}, {"ckpt_path": tmp_path / "a"}
    first, stopped = train(2, model, {"max_steps": 4})
    stopped.trainer.save_checkpoint(tmp_path / "a")
    rest, _ = train(2, model, fit=fit)
    assert first.losses + rest.losses == train(2, model)[0].losses
    with pytest.warns(match="micro_batches: was 2, is 4"):
        assert len(train(4, model, fit=fit)[0].losses) == 3
