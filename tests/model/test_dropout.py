"""Dropout of each token, or of all tokens of a row alike."""

import pytest
import torch

from txl_lightning import TransformerXLConfig
from txl_lightning.model.dropout import LockedDropout, dropout


def test_locked_all_tokens_of_a_row_drop_the_same_units_and_rows_differ():
    dropped = LockedDropout(0.5).train()(torch.ones(2, 9, 64))
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 9, -1))
    assert not torch.equal(dropped[0], dropped[1])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_locked_every_segment_draws_anew_and_the_mean_stays():
    drop = LockedDropout(0.25).train()
    ones = torch.ones(50, 2, 200)
    assert not torch.equal(drop(ones), drop(ones))
    assert drop(ones).mean().item() == pytest.approx(1.0, abs=0.02)


def test_in_evaluation_nothing_is_dropped():
    h = torch.randn(2, 3, 4)
    assert torch.equal(LockedDropout(0.9).eval()(h), h)


@pytest.mark.parametrize(("mask", "same"), [("fresh", False), ("locked", True)])
def test_the_setting_says_which(mask, same):
    drop = dropout(TransformerXLConfig(dropout=0.5, dropout_mask=mask)).train()
    dropped = drop(torch.ones(1, 2, 100))
    assert torch.equal(dropped[:, 0], dropped[:, 1]) == same


def test_a_network_trains_with_locked_dropout_everywhere(make_net):
    net = make_net(dropout=0.3, dropout_mask="locked").train()
    kinds = {type(module) for module in net.modules() if isinstance(module, torch.nn.Dropout)}
    assert kinds == {LockedDropout}
    tokens = torch.randint(11, (2, 5))
    net.loss(tokens, tokens)[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
