"""Dropout of each token, or of all tokens of a row alike."""

import pytest
import torch

from txl_lightning import TransformerXLConfig
from txl_lightning.model.dropout import VariationalDropout, make_dropout


def test_variational_dropout_drops_the_same_units_of_all_tokens_of_a_row():
    dropped = VariationalDropout(0.5).train()(torch.ones(2, 9, 64))
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 9, -1))
    assert not torch.equal(dropped[0], dropped[1])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_variational_dropout_draws_anew_for_each_segment_and_keeps_the_mean():
    drop, ones = VariationalDropout(0.25).train(), torch.ones(50, 2, 200)
    assert not torch.equal(drop(ones), drop(ones))
    assert drop(ones).mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop.eval()(ones), ones)


@pytest.mark.parametrize(("dropout_type", "same"), [("standard", False), ("variational", True)])
def test_dropout_type_chooses_the_dropout_of_the_whole_network(make_net, dropout_type, same):
    drop = make_dropout(TransformerXLConfig(dropout=0.5, dropout_type=dropout_type)).train()
    dropped = drop(torch.ones(1, 2, 100))
    assert torch.equal(dropped[:, 0], dropped[:, 1]) == same
    net = make_net(dropout=0.3, dropout_type=dropout_type).train()
    kinds = {type(module) for module in net.modules() if isinstance(module, torch.nn.Dropout)}
    assert kinds == {type(drop)}
    tokens = torch.randint(11, (2, 5))
    net.loss(tokens, tokens)[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
