"""Micro-batches give the same steps as whole segments, with less memory."""

from dataclasses import replace

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from txl_lightning.data.stream import Stream, share_rows
from txl_lightning.training.ranks import FSDP2Strategy, count_parts
from txl_lightning.training.segments import describe_memory, segment_loss


@pytest.fixture
def train(fit):
    def run(micro_batches, net=(), reading=(), **options):
        exact = {"precision": "64-true", "gradient_clip_val": 0.25, "max_steps": 7}
        data = {"micro_batches": micro_batches} | dict(reading)
        return fit(net, data, **exact | {"log_every_n_steps": 1} | options)

    return run


def assert_same(actual, expected):
    assert actual.losses == pytest.approx(expected.losses, rel=1e-10)
    for name in ("train/tokens_seen", "train/nats", "train/mem_filled"):
        values, others = ([row.get(name, 0) for row in each.logged] for each in (actual, expected))
        assert values == pytest.approx(others, rel=1e-6)
    assert torch.equal(actual.memory.filled_B, expected.memory.filled_B)
    tensors = ([*each.model.parameters(), each.memory.h_NBMD] for each in (actual, expected))
    torch.testing.assert_close(*tensors, rtol=0, atol=1e-10)


LINES = {"order": "shuffled", "document_unit": "lines"}
VARLEN = {"order": "rolled", "segments": "varlen", "ext_len": 5, "split": (0.04, 0.48, 0.48)}


@pytest.mark.parametrize(
    ("counts", "changes"),
    [
        ((2, 3, 4), {"reading": LINES}),
        ((2,), {"accumulate_grad_batches": 2}),
        ((2,), {"overfit_batches": 3}),
        ((2,), {"net": {"mem_len": 0}}),
        ((2,), {"net": {"cutoffs": [20, 110], "loss_chunk_size": 5}}),
        ((2,), {"reading": VARLEN}),
    ],
    ids=str,
)
def test_micro_batches_train_as_the_whole_batch_does(train, text_file, counts, changes):
    # Lines of different lengths, so that rows have different numbers of targets.
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text[3000::37] = b"\n" * len(text[3000::37])
    text_file.write_bytes(text)
    expected = train(1, **changes)
    for micro_batches in counts:
        assert_same(train(micro_batches, **changes), expected)


@pytest.fixture
def step(make_net):
    """Return a network with dropout, a segment of four rows, and a memory."""
    net = make_net(dropout=0.3, dropatt=0.2).train()
    stream = Stream.from_tokens(torch.randint(11, (80,)).numpy(), 4, 6)
    with torch.no_grad():
        _, memory = segment_loss(net, stream.segment(0), net.empty_memory(4))
    return net, stream.segment(1), memory


def test_backward_pass_draws_the_same_dropout_again(step):
    net, segment, memory = step
    torch.manual_seed(5)
    parts = [slice(0, 2), slice(2, 4)]
    nats = [segment_loss(net, segment.rows(rows), memory.rows(rows))[0] for rows in parts]
    expected = torch.autograd.grad(torch.cat(nats).sum(), list(net.parameters()))
    torch.manual_seed(5)
    nats_BL, _ = segment_loss(net, segment, memory, 2)
    assert torch.equal(nats_BL, torch.cat(nats))
    actual = torch.autograd.grad(nats_BL.sum(), list(net.parameters()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_only_one_micro_batch_has_activations_in_memory(step, count_bytes):
    net, segment, memory = step
    whole, parts = (count_bytes(lambda n=n: segment_loss(net, segment, memory, n)) for n in (1, 2))
    assert parts < whole / 10


def test_resume_with_other_micro_batches_is_a_warning(train, tmp_path):
    train(2, save=(path := tmp_path / "a.ckpt", 4))
    with pytest.warns(match="micro_batches: was 2, is 4"):
        assert len(train(4, ckpt_path=path).losses) == 3


class Ddp(DDPStrategy):
    world_size = 3


class Sharded(FSDP2Strategy):
    world_size = 3


def test_only_devices_that_gather_weights_together_compute_equally_many_parts(make_data):
    """Of 7 rows on 3 devices, one has 3 rows."""
    for asked, sharded in ((2, 2), (3, 2)):
        data = make_data(batch_size=7, micro_batches=asked)
        assert count_parts(data, Sharded()) == sharded
        assert count_parts(data, Ddp()) == asked
    assert count_parts(None, Ddp()) == 1


def test_states_in_memory_are_a_mean_over_rows_that_ranks_share_unequally(make_net):
    memory = make_net().empty_memory(5)
    memory = replace(memory, filled_B=torch.tensor([0, 1, 2, 3, 3]))
    parts = [memory.rows(share_rows(5, rank, 2)) for rank in range(2)]
    means = [describe_memory(part, 5 / 2)["mem_filled"] for part in parts]
    assert sum(means) / 2 == pytest.approx(9 / 5)


@pytest.mark.parametrize("n_row", [2, 3])
def test_a_part_of_rows_that_cannot_be_shared_equally_has_one_more(make_net, n_row):
    n_part = 2
    net = make_net()
    n_row_of_parts = []
    net.embedding.register_forward_hook(lambda _, inputs, __: n_row_of_parts.append(len(inputs[0])))
    stream = Stream.from_tokens(torch.randint(11, (80,)).numpy(), n_row, 6)
    segment_loss(net, stream.segment(0), net.empty_memory(n_row), n_part)
    assert n_row_of_parts == [n_row - 1, 1]
