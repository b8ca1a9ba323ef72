"""A segment computed in micro-batches is the segment: the same steps, with less memory."""

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from txl_lightning.data.stream import Stream
from txl_lightning.evaluation.scoring import segment_nats
from txl_lightning.training.micro_batches import nats_in_micro_batches

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


def assert_same(found, expected, rtol=1e-10):
    (steps, model), (expected_steps, expected_model) = found, expected
    assert steps.losses == pytest.approx(expected_steps.losses, rel=rtol)
    for values, expected_values in zip(steps.logged, expected_steps.logged, strict=True):
        assert values == pytest.approx(expected_values, rel=1e-6)
    pairs = zip(model.parameters(), expected_model.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=rtol)
    memory, expected_memory = (
        each.memory_bank.committed["train", 0] for each in (model, expected_model)
    )
    torch.testing.assert_close(memory.h_NBMD, expected_memory.h_NBMD, rtol=0, atol=rtol)
    assert torch.equal(memory.filled_B, expected_memory.filled_B)


@pytest.fixture
def lines(text_file):
    """Lines of many lengths, so that not every row has as much to predict."""
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text[3000::37] = b"\n" * len(text[3000::37])
    text_file.write_bytes(text)


@pytest.mark.parametrize("micro_batches", [2, 3, 4])
def test_micro_batches_train_as_the_whole_batch_does(train, lines, micro_batches):
    reading = {"order": "shuffled", "document_unit": "lines"}
    assert_same(train(micro_batches, **reading), train(1, **reading))


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
def segment_of(make_net):
    """A network with dropout, a segment of four rows, and a memory."""

    def make(**changes):
        net = make_net(**changes).train()
        stream = Stream.from_tokens(torch.randint(11, (80,)).numpy(), 4, 6)
        with torch.no_grad():
            _, memory = segment_nats(net, stream.segment(0), net.empty_memory(4))
        return net, stream.segment(1), memory

    return make


def test_the_backward_pass_draws_the_same_dropout_again(segment_of):
    net, segment, memory = segment_of(dropout=0.3, dropatt=0.2)
    torch.manual_seed(5)
    parts = [slice(0, 2), slice(2, 4)]
    nats = [segment_nats(net, segment.rows(rows), memory.rows(rows))[0] for rows in parts]
    expected = torch.autograd.grad(torch.cat(nats).sum(), list(net.parameters()))
    torch.manual_seed(5)
    nats_BL, _ = nats_in_micro_batches(net, segment, memory, 0, 2)
    assert torch.equal(nats_BL, torch.cat(nats))
    found = torch.autograd.grad(nats_BL.sum(), list(net.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_activations_are_kept_of_one_micro_batch_at_a_time(segment_of):
    net, segment, memory = segment_of()
    kept = []

    def measure(n_part):
        kept.append(0)

        def pack(tensor):
            kept[-1] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            nats_in_micro_batches(net, segment, memory, 0, n_part)
        return kept[-1]

    assert measure(2) < measure(1) / 10


def interrupted(train, tmp_path, now) -> list[float]:
    """The losses of a run of two micro-batches that stops after four steps and goes on."""
    model = {"dropout": 0.2, "optim": {"schedule": "constant"}}
    first, stopped = train(2, model, {"max_steps": 4})
    stopped.trainer.save_checkpoint(tmp_path / "a.ckpt")
    return first.losses + train(now, model, fit={"ckpt_path": tmp_path / "a.ckpt"})[0].losses


def test_training_interrupted_with_micro_batches_equals_uninterrupted(train, tmp_path):
    model = {"dropout": 0.2, "optim": {"schedule": "constant"}}
    assert interrupted(train, tmp_path, 2) == train(2, model)[0].losses


def test_another_number_of_micro_batches_is_warned_of(train, tmp_path):
    with pytest.warns(match="micro_batches: was 2, is 4"):
        assert len(interrupted(train, tmp_path, 4)) == 7
