"""Settings are refused before anything is built."""

import pytest
from jsonargparse import Namespace

from txl_lightning import TransformerXLConfig
from txl_lightning.training.resume import check_same_model


def test_learned_positions_refuse_another_clamp_len_than_the_checkpoints():
    net = TransformerXLConfig(n_token=9, positions="learned", clamp_len=4).to_dict()
    given = Namespace(net=Namespace(**net | {"clamp_len": 5}))
    check_same_model(given, {"net": net | {"clamp_len": 5}}, training=False)
    with pytest.raises(
        ValueError, match=r"model\.net\.clamp_len: invalid 5; expected 4, as in the"
    ):
        check_same_model(given, {"net": net}, training=False)
