"""Comparison with Hugging Face's code, run by another Python: see tests/reference/."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from txl_lightning import TransformerXL, TransformerXLConfig, stream_nats
from txl_lightning.convert import load_huggingface, save_huggingface

UNVERIFIED = pytest.mark.filterwarnings("ignore:.*another code's files have no checksum")
pytestmark = [pytest.mark.reference, UNVERIFIED]

SCRIPT = Path(__file__).parents[1] / "reference" / "transfo_xl.py"
SIZES = {
    "vocab_size": 97, "cutoffs": [20, 41, 70], "d_model": 18, "d_embed": 18, "n_head": 3,
    "d_head": 5, "d_inner": 29, "div_val": 1, "n_layer": 2, "mem_len": 11, "clamp_len": -1,
    "same_length": False, "dropout": 0.0,
}  # fmt: skip
THEIRS = {
    "plain": {"cutoffs": [], "vocab_size": 61},
    "shared_biases": {"untie_r": False},
    "projected": {"d_embed": 14, "untie_r": False},
    "narrowing": {"div_val": 2, "d_embed": 24, "same_length": True, "clamp_len": 9},
    "nothing_tied": {
        "div_val": 4, "d_embed": 64, "proj_share_all_but_first": False,
        "tie_word_embeddings": False,
    },
    "pre": {"pre_lnorm": True, "layer_norm_epsilon": 0.01},
    "no_memory": {"mem_len": 0},
}  # fmt: skip
OURS = {
    "ours": {"n_token": 61},
    "biases": {"n_token": 61, "untie_r": True, "clamp_len": 9, "same_length": "mem_len"},
    "ours_pre": {"norm": "pre", "final_norm": False, "norm_eps": 0.01, "tie_weight": False},
    "clusters": {"cutoffs": (20, 41), "d_embed": 14, "tie_projs": (True, False, True)},
    "ours_narrowing": {"cutoffs": (20, 41, 70), "d_embed": 40, "div_val": 3, "untie_r": True},
}


def run_reference(verb: str, root: Path) -> None:
    """Run the script of tests/reference in the other Python."""
    python = os.environ.get("TXL_REFERENCE_PYTHON")
    assert python, "TXL_REFERENCE_PYTHON must be a Python with tests/reference/requirements.txt"
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [python, SCRIPT, verb, root], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


TOKENS_BT = np.random.default_rng(0).integers(0, 10**6, (3, 50))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Networks of theirs, our exports of these, and exports of ours, measured by their code."""
    root = tmp_path_factory.mktemp("networks")
    settings = {name: SIZES | THEIRS[name] for name in THEIRS}
    (root / "settings.json").write_text(json.dumps(settings))
    np.save(root / "tokens.npy", TOKENS_BT)
    run_reference("make", root)
    for name in THEIRS:
        save_huggingface(load_huggingface(root / name)[0], root / f"{name}-back")
    sizes = {"n_token": 97, "n_layer": 2, "n_head": 3, "d_head": 5, "d_model": 18, "mem_len": 11}
    for name in OURS:
        torch.manual_seed(0)
        net = TransformerXL(TransformerXLConfig(**sizes | OURS[name])).eval()
        for parameter in net.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
        save_huggingface(net, root / name)
    run_reference("measure", root)
    return root


@pytest.mark.parametrize("name", [*THEIRS, *[f"{name}-back" for name in THEIRS], *OURS])
def test_nats_are_those_of_hugging_face(root, name):
    net, _ = load_huggingface(root / name)
    tokens = (TOKENS_BT % net.config.n_token).flatten()
    actual = stream_nats(net, tokens, batch_size=3, tgt_len=7)
    expected = torch.from_numpy(np.load(root / name / "nats.npy"))
    print(f"{name}: greatest difference {(actual - expected).abs().max():.1e} nats")
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", THEIRS)
def test_converted_network_is_bit_identical_after_a_round_trip(root, name):
    folders = (root / name, root / f"{name}-back")
    assert np.array_equal(*(np.load(folder / "nats.npy") for folder in folders))
    # Biases that all layers share are in another file there.
    if THEIRS[name].get("untie_r", True):
        written, back = (load_file(folder / "model.safetensors") for folder in folders)
        torch.testing.assert_close(back, written, rtol=0, atol=0)
        written, back = (json.loads((folder / "config.json").read_text()) for folder in folders)
        del written["transformers_version"]
        assert written == back
