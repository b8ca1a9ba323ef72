"""What several tests start from."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.__main__ import UNHEARD

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
os.environ.setdefault("WANDB_MODE", "offline")


def pytest_configure(config):
    for message in UNHEARD:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture
def text_file(tmp_path) -> Path:
    """A text of 26 letters, long enough for a few passes."""
    letters = np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8)
    path = tmp_path / "letters.txt"
    path.write_bytes(letters.tobytes())
    return path


@pytest.fixture
def make_net():
    """A small network in float64 and eval mode, whose every parameter is away from its start."""

    def make(**changes) -> TransformerXL:
        sizes = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 6}
        net = TransformerXL(TransformerXLConfig(**sizes | changes)).double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return net

    return make
