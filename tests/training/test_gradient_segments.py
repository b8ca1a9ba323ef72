"""A step of several segments has a gradient through the memories between them."""

from functools import partial

import pytest
import torch

from txl_lightning.data.stream import Stream
from txl_lightning.model.contract import keep_gradient, stop_gradient
from txl_lightning.networks import (
    CompressiveTransformerConfig,
    GatedDeltaNetConfig,
    LSTMConfig,
    Mamba2Config,
    RecurrentMemoryTransformerConfig,
)
from txl_lightning.training.segments import segment_loss

SMALL = {"n_token": 11, "n_layer": 2, "d_model": 8}
NETWORKS = {
    "TransformerXL": None,
    "LSTM": LSTMConfig(**SMALL),
    "GatedDeltaNet": GatedDeltaNetConfig(**SMALL, chunk_len=5),
    "Mamba2": Mamba2Config(**SMALL, d_head=4, d_state=6, chunk_len=5),
    "RecurrentMemoryTransformer": RecurrentMemoryTransformerConfig(**SMALL, unit_len=2),
    "CompressiveTransformer": CompressiveTransformerConfig(
        **SMALL, unit_len=2, n_state=4, n_compressed=3, rate=2
    ),
}


@pytest.fixture(params=NETWORKS)
def net(request, make_net):
    config = NETWORKS[request.param]
    # In training mode, the compression's own loss is that of the last unit of a segment.
    return config.build().double().eval() if config else make_net(mem_len=100)


def make_stream(n_batch, tgt_len):
    ids = torch.randint(11, (n_batch * 61,), generator=torch.Generator().manual_seed(1))
    return Stream.from_tokens(ids.numpy(), n_batch, tgt_len)


def find_gradients(net, segment, memory, **options):
    nats_BL, after = segment_loss(net, segment, memory, **options)
    return nats_BL, after, torch.autograd.grad(nats_BL.mean(), [*net.parameters()])


@pytest.mark.parametrize("part_len", [1, 7, 10])  # also within units
def test_segments_with_gradient_are_one_long_segment(net, part_len):
    """All of the text is in memory, so that each token attends to the same states."""
    segment = make_stream(3, 20).segment(0)
    memory = net.empty_memory(3)
    nats, after, gradients = find_gradients(net, segment, memory)
    cut = find_gradients(net, segment, memory, part_len=part_len)
    torch.testing.assert_close(cut[0], nats, rtol=0, atol=1e-6)
    torch.testing.assert_close(cut[1].tensors(), after.tensors(), rtol=0, atol=1e-10)
    torch.testing.assert_close(cut[2], gradients, rtol=0, atol=1e-7)


@pytest.mark.parametrize("part_len", [3, 8])
def test_with_a_fixed_span_segments_with_gradient_are_one_long_segment(make_net, part_len):
    """A window that is trained as one, on long segments, is a Transformer-XL with more gradient."""
    net = make_net(mem_len=8, same_length="mem_len")
    segment = make_stream(3, 24).segment(1)
    # Less than the span, and more.
    for n_before in (5, 12):
        _, memory = net.loss(*make_stream(3, n_before).segment(0)[:2], net.empty_memory(3))
        nats, after, gradients = find_gradients(net, segment, memory)
        cut = find_gradients(net, segment, memory, part_len=part_len)
        torch.testing.assert_close(cut[0], nats, rtol=0, atol=1e-10)
        torch.testing.assert_close(cut[1].tensors(), after.tensors(), rtol=0, atol=1e-10)
        torch.testing.assert_close(cut[2], gradients, rtol=0, atol=1e-10)


def test_gradient_of_a_step_reaches_its_first_segment_and_not_the_step_before(net):
    stream = make_stream(3, 12)
    _, before = segment_loss(net, stream.segment(0), net.empty_memory(3), part_len=6)
    assert not any(each.requires_grad for each in before.tensors().values())
    segment = stream.segment(1)
    joined = find_gradients(net, segment, before, part_len=6)[2]

    def read_slowly(between):
        """Read two segments one after the other, with a change of the memory between them."""
        first, second = segment.cut(6)
        nats, memory = net.loss(*first[:2], keep_gradient(before), first.doc_pos_BL)
        others, _ = net.loss(*second[:2], between(memory), second.doc_pos_BL)
        return torch.autograd.grad(torch.cat([nats, others], 1).mean(), [*net.parameters()])

    torch.testing.assert_close(joined, read_slowly(lambda memory: memory), rtol=0, atol=1e-12)
    stopped = read_slowly(stop_gradient)
    assert not all(torch.allclose(a, b) for a, b in zip(joined, stopped, strict=True))


@pytest.fixture
def train(fit):
    def run(segments=2, settings=(), **options):
        exact = {"precision": "64-true", "max_steps": 6, "log_every_n_steps": 1}
        net = {"settings": {"gradient_segments": segments, **dict(settings)}}
        data = options.pop("data", {})
        return fit(net, data, **exact | options)

    return run


def test_training_reads_the_segments_of_its_steps_in_order(train, make_model):
    record = train(3, data={"tgt_len": 5})
    model = make_model().double()
    model.load_state_dict(record.model.state_dict())
    assert [each.new_len for each in record.segments] == [15] * 6
    memory = model.net.empty_memory(4)
    with torch.no_grad():
        for segment in record.segments:
            for part in segment.cut(5):
                _, memory = model.net.loss(*part[:2], memory, part.doc_pos_BL)
    assert memory.filled_B.equal(record.memory.filled_B)
    assert not record.memory.h_NBMD.requires_grad


def assert_same_training(actual, expected):
    assert actual.losses == pytest.approx(expected.losses, rel=1e-10)
    parameters = ([*each.model.parameters()] for each in (actual, expected))
    torch.testing.assert_close(*parameters, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [{"data": {"micro_batches": 2}}, {"settings": {"recompute": True}}],
    ids=["micro_batches", "recompute"],
)
def test_ways_to_save_memory_train_the_same(train, options):
    assert_same_training(train(**options), train())


def test_losses_of_an_accumulated_step_are_of_the_same_weights(train, make_model):
    record = train(accumulate_grad_batches=2, max_steps=1)
    torch.manual_seed(3)
    net = make_model().double().net
    memory = net.empty_memory(4)
    for loss, segment in zip(record.losses, record.segments, strict=True):
        nats_BL, memory = segment_loss(net, segment, memory, part_len=8)
        assert loss == pytest.approx(nats_BL.mean().item() / 2, rel=1e-10)


def test_resumed_training_is_bit_for_bit_the_rest(train, tmp_path):
    path = tmp_path / "half.ckpt"
    whole = train(save=(path, 3))
    assert train(ckpt_path=path).continues(whole)


def test_a_pass_is_as_many_steps_as_its_joined_segments(train):
    lengths = [
        sum(each.new_len for each in train(n, max_steps=-1, max_epochs=1).segments) for n in (1, 3)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ext_len": 3}, "data.ext_len: invalid 3; expected 0, as model.gradient_segments is 2"),
        ({"segments": "varlen"}, "data.segments: invalid varlen; expected fixed, as model.grad"),
    ],
    ids=["ext_len", "varlen"],
)
def test_settings_that_cut_segments_otherwise_are_refused(train, data, message):
    with pytest.raises(ValueError, match=message):
        train(data=data)


def test_network_whose_memory_has_no_gradient_is_refused(own_package):
    net = own_package.MyConfig(n_token=11, width=8).build()
    segment = make_stream(2, 12).segment(0)
    find = partial(segment_loss, net, segment, net.empty_memory(2))
    find()
    expected = "model.gradient_segments: invalid 2; expected 1, as the memory of MyNetwork has no"
    with pytest.raises(ValueError, match=expected):
        find(part_len=6)


def test_number_of_segments_is_at_least_one(make_model):
    with pytest.raises(ValueError, match="gradient_segments: invalid 0; expected at least 1"):
        make_model(settings={"gradient_segments": 0})
