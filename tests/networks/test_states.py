"""What all networks with a state have in common: calls, rows and precisions."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers.state_networks import SMALL_NETWORKS
from txl_lightning import networks
from txl_lightning.model.reading import Reader

SIZES = {"n_token": 11, "n_layer": 2, "d_model": 8}


@pytest.fixture(params=SMALL_NETWORKS)
def net(request):
    torch.manual_seed(0)
    config = getattr(networks, f"{request.param}Config")(**SIZES, **SMALL_NETWORKS[request.param])
    return config.build().eval()


@pytest.fixture
def tokens_BL():
    return torch.randint(11, (3, 10))


def triple_logits(module, inputs, output):
    logits_BLV, memory = output
    return 3 * logits_BLV, memory


def add_hook(net):
    net.register_forward_hook(triple_logits)


def derive(net):
    kind = type(net)

    class Derived(kind):
        def forward(self, *inputs, **named):
            return triple_logits(self, inputs, kind.forward(self, *inputs, **named))

    net.__class__ = Derived


def patch(net):
    forward = net.forward
    net.forward = lambda *inputs, **named: triple_logits(net, inputs, forward(*inputs, **named))


@pytest.mark.parametrize("change", [add_hook, derive, patch])
def test_losses_and_readers_have_the_logits_of_a_changed_call(net, change, tokens_BL):
    plain_BLV, _ = net(tokens_BL)
    change(net)
    nats_BL, _ = net.loss(tokens_BL, tokens_BL[:, -4:])
    expected_BL = F.cross_entropy(3 * plain_BLV[:, -4:].mT, tokens_BL[:, -4:], reduction="none")
    torch.testing.assert_close(nats_BL, expected_BL)
    assert not Reader(net).has_states


def test_a_batch_of_no_rows_is_read(net):
    logits_BLV, memory = net(torch.zeros(0, 10, dtype=torch.long))
    assert logits_BLV.shape == (0, 10, 11)
    assert memory.batch_size == 0


def test_a_row_does_not_read_another_whose_state_is_not_a_number(net, tokens_BL):
    _, memory = net(tokens_BL)
    expected_BLV, _ = net(tokens_BL, memory)
    tensors = {
        name: tensor.clone() if tensor.is_floating_point() else tensor
        for name, tensor in memory.tensors().items()
    }
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor[0] = torch.nan
    logits_BLV, _ = net(tokens_BL, memory.restore(tensors))
    torch.testing.assert_close(logits_BLV[1:], expected_BLV[1:])


def test_a_copied_memory_shares_no_tensor(net, tokens_BL):
    _, memory = net(tokens_BL)
    copied = memory.to("cpu", copy=True).tensors()
    for name, tensor in memory.tensors().items():
        assert not tensor.numel() or copied[name].data_ptr() != tensor.data_ptr(), name


def test_a_memory_in_another_precision_is_read_on(net, tokens_BL):
    _, memory = net(tokens_BL)
    expected_BLV, _ = net(tokens_BL, memory)
    logits_BLV, _ = net.double()(tokens_BL, memory.to(torch.double))
    torch.testing.assert_close(logits_BLV.float(), expected_BLV)
