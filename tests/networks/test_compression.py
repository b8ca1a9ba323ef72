"""A Compressive Transformer learns to compress by a loss of its own."""

import pytest
import torch

from txl_lightning.networks import CompressiveTransformerConfig


@pytest.fixture
def net():
    sizes = {"n_layer": 2, "d_model": 8, "unit_len": 4, "n_state": 4, "n_compressed": 3, "rate": 2}
    return CompressiveTransformerConfig(n_token=11, **sizes).build().double().train()


def is_compression(name):
    return "compression" in name


def test_compression_learns_by_its_own_loss_alone(net):
    """In a segment of two units nothing compressed is read, so that nats have no gradient of it."""
    tokens = torch.randint(11, (3, 9))
    gradients = {}
    for is_training in (True, False):
        net.train(is_training).zero_grad()
        nats, _ = net.loss(tokens[:, :-1], tokens[:, 1:])
        nats.sum().backward()
        gradients[is_training] = {
            name: weight.grad for name, weight in net.named_parameters() if weight.grad is not None
        }
    learned = gradients[True]
    plain = gradients[False]
    assert not any(plain[name].any() for name in plain if is_compression(name))
    compressions = [name for name in learned if is_compression(name)]
    assert compressions
    assert all(learned[name].any() for name in compressions)
    others = [name for name in learned if not is_compression(name)]
    torch.testing.assert_close([learned[name] for name in others], [plain[name] for name in others])


def test_loss_of_compression_changes_no_value_and_counts_once(net):
    tokens = torch.randint(11, (3, 13))
    nats, memory = net.loss(tokens[:, :-1], tokens[:, 1:])
    assert not memory.tensors()["0.lost_B"].any()
    expected, _ = net.eval().loss(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(nats, expected, rtol=0, atol=1e-12)
