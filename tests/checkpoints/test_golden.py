"""What an earlier release has written is read, and means what it meant."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "golden"
NATS = {"0.1.0": 3.267171859741211}
"""Of the validation text, as make_checkpoint.py has printed it."""


@pytest.fixture(params=NATS)
def release(request):
    return request.param


@pytest.fixture
def made(repository):
    """How they were made."""
    spec = importlib.util.spec_from_file_location("made", GOLDEN / "make_checkpoint.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    Path("text.txt").write_bytes(module.TEXT)
    return module


# Of another machine, it goes on to rounding only, and says so.
@pytest.mark.filterwarnings("ignore:the order of the text is exact")
def test_it_goes_on_is_measured_and_writes_on(txl, made, release):
    path = f"--ckpt_path={GOLDEN / f'checkpoint-{release}.ckpt'}"
    assert os.path.getsize(path.split("=")[1]) < 100_000
    code, output = txl("validate", *made.DATA, "--trainer.accelerator=cpu", path)
    assert code == 0
    found = float(output.out.split("val/nats")[1].split("│")[1])
    assert found == pytest.approx(NATS[release], rel=1e-4)
    code, output = txl("fit", *made.OPTIONS, "--trainer.max_steps=23", path)
    assert (code, "error" in output.err) == (0, False)
    held = torch.load("version_0/checkpoints/last.ckpt", weights_only=True)
    position = held["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert (held["global_step"], position["consumed"]) == (23, 23)
    assert held["txl_lightning"]["exact"]
    code, output = txl("generate", path, "--prompt=the lazy", "--length=20")
    assert (code, output.out[:8]) == (0, "the lazy")


def test_there_is_one_of_each_release():
    kept = {path.stem.removeprefix("checkpoint-") for path in GOLDEN.glob("*.ckpt")}
    assert kept == set(NATS)
