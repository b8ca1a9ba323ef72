"""Frequencies of rotary positions when a network changes its precision."""

import pytest
import torch
from torch import nn

from txl_lightning.networks.rotary import KeepFrequencies


@pytest.fixture
def module():
    """A network with frequencies, in a module, as Lightning has it."""
    net = KeepFrequencies()
    net.weight = nn.Parameter(torch.ones(3))
    net.inner = nn.Module()
    net.inner.inv_freq = nn.Buffer(10000 ** -torch.linspace(0, 1, 5), persistent=False)
    net.inner.embed_scale = nn.Buffer(torch.tensor(5.6), persistent=False)
    outer = nn.Module()
    outer.net = net
    return outer


@pytest.mark.parametrize("change", [nn.Module.bfloat16, nn.Module.half, nn.Module.double])
def test_a_change_of_precision_leaves_frequencies_and_changes_the_rest(module, change):
    before = module.net.inner.inv_freq.clone()
    change(module)
    torch.testing.assert_close(module.net.inner.inv_freq, before, rtol=0, atol=0)
    assert module.net.weight.dtype is module.net.inner.embed_scale.dtype is not torch.float32


def test_frequencies_go_to_the_device_of_the_rest(module):
    module.to("meta", torch.bfloat16)
    frequencies = module.net.inner.inv_freq
    assert frequencies.is_meta
    assert frequencies.dtype is torch.float32
