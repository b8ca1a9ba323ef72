"""FLOPs per token, by the usual count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.speed.cases import count_flops

SMALL = {"n_token": 10, "n_layer": 1, "n_head": 1, "d_model": 4, "d_head": 4, "d_inner": 8}


def test_flops_are_those_of_weights_softmax_and_attention(make_net):
    projections, feed_forward, softmax = 4 * 16, 2 * 32, 40
    attention = 3 * 4 * (6 + 2)
    expected = 6 * (projections + feed_forward + softmax + attention)
    assert count_flops(make_net(**SMALL, mem_len=6).config, 3) == expected


def test_flops_are_unknown_where_the_text_decides_which_clusters_are_computed(make_net):
    assert count_flops(make_net(**SMALL, cutoffs=(5,)).config, 3) is None


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"d_embed": 6}])
def test_forward_of_one_token_takes_a_third_of_its_flops(make_net, changes):
    """The difference is the keys of two distances; the second one is only padding."""
    net = make_net(**SMALL, **changes, mem_len=0)
    with FlopCounterMode(display=False) as counter:
        net(torch.tensor([[3]]))
    two_distances, scores_of_the_second = 2 * 2 * 16, 2 * 4
    embedding = 2 * 6 * 4 * ("d_embed" in changes)
    others = two_distances + scores_of_the_second + embedding
    expected = count_flops(net.config, 1) / 3 + others
    assert counter.get_total_flops() == pytest.approx(expected)
