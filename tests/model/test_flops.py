"""Model FLOP of a token."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from txl_lightning.model.flops import flops_per_token

SIZES = {"n_token": 10, "n_layer": 1, "n_head": 1, "d_model": 4, "d_head": 4, "d_inner": 8}


def test_flops_are_those_of_weights_softmax_and_attention(make_net):
    projections, feed_forward, softmax = 4 * 16, 2 * 32, 40
    attention = 3 * 4 * (6 + 2)
    expected = 6 * (projections + feed_forward + softmax + attention)
    assert flops_per_token(make_net(**SIZES, mem_len=6), 3) == expected


def test_forward_of_one_token_takes_a_third_of_its_flops(make_net):
    """What is left are the keys of two distances, the second of which is only a place."""
    net = make_net(**SIZES, mem_len=0)
    with FlopCounterMode(display=False) as counter:
        net(torch.tensor([[3]]))
    two_distances, scores_of_the_second = 2 * 2 * 16, 2 * 4
    expected = flops_per_token(net, 1) / 3 + two_distances + scores_of_the_second
    assert counter.get_total_flops() == pytest.approx(expected)
