"""Dropout of each token, or of all tokens of a row alike."""

import pytest
import torch

from txl_lightning.model.dropout import VariationalDropout


def test_variational_dropout_drops_the_same_units_of_a_row_and_others_of_each_segment():
    drop, ones = VariationalDropout(0.25).train(), torch.ones(50, 9, 200)
    dropped = drop(ones)
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 9, -1))
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(drop(ones), dropped)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop.eval()(ones), ones)


@pytest.mark.parametrize(
    ("dropout_type", "kind"),
    [("standard", torch.nn.Dropout), ("variational", VariationalDropout)],
)
def test_dropout_type_chooses_the_dropout_of_the_whole_network(make_net, dropout_type, kind):
    net = make_net(dropout=0.3, dropout_type=dropout_type)
    drops = [module for module in net.modules() if isinstance(module, torch.nn.Dropout)]
    assert {(type(drop), drop.p) for drop in drops} == {(kind, 0.3)}
