"""A Compressive Transformer learns to compress by a loss of its own."""

import copy

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


def test_a_memory_of_a_call_has_no_gradient_unless_it_is_kept(net):
    tokens = torch.randint(11, (3, 12))
    for memory in (net.empty_memory(3), net.empty_memory(3).keep_gradient()):
        _, after = net(tokens, memory)
        has_gradient = {each.requires_grad for each in after.state_N[0].values()}
        assert has_gradient == {memory.has_gradient}
        _, after = net.loss(tokens, tokens, memory)
        assert after.has_gradient == memory.has_gradient
        has_gradient = [after.tensors()[f"0.{name}"].requires_grad for name in ("h_BNMD", "lost_B")]
        assert has_gradient == [memory.has_gradient, False]


def test_a_call_before_a_loss_leaves_no_gradient_of_its_compression(net):
    tokens = torch.randint(11, (3, 12))
    _, memory = net(tokens)
    # No unit ends in this segment.
    nats, _ = net.loss(tokens[:, :2], tokens[:, :2], copy.deepcopy(memory))
    nats.sum().backward()
    gradients = [p.grad for name, p in net.named_parameters() if is_compression(name)]
    assert not any(each is not None and each.any() for each in gradients)


@pytest.mark.parametrize("mem_len", [0, 1])
def test_a_hooked_network_learns_to_compress_as_well(net, mem_len):
    net.register_forward_hook(lambda module, inputs, output: output)
    tokens = torch.randint(11, (3, 12))
    nats, memory = net.loss(tokens, tokens, net.make_memory(3, mem_len))
    nats.sum().backward()
    gradients = [p.grad for name, p in net.named_parameters() if is_compression(name)]
    assert all(each.any() for each in gradients)
    assert not memory.has_gradient


def test_loss_of_compression_changes_no_value_and_counts_once(net):
    tokens = torch.randint(11, (3, 13))
    nats, memory = net.loss(tokens[:, :-1], tokens[:, 1:])
    assert not memory.tensors()["0.lost_B"].any()
    expected, _ = net.eval().loss(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(nats, expected, rtol=0, atol=1e-12)
