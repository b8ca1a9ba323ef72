"""Checkpoints of earlier releases still load for evaluation and generation."""

import runpy
from pathlib import Path

import pytest

from txl_lightning import stream_nats
from txl_lightning.checkpoints import load

GOLDEN = Path(__file__).parents[1] / "golden"
NATS = {"0.1.0": 3.267171859741211}  # nats of the validation text, as printed by make_checkpoint.py


@pytest.mark.parametrize("release", NATS)
def test_checkpoint_of_an_earlier_release_gives_its_nats_and_generates(txl, release):
    text = runpy.run_path(str(GOLDEN / "make_checkpoint.py"))["TEXT"]
    path = GOLDEN / f"checkpoint-{release}.ckpt"
    net, vocab = load(path)
    start, stop = (int(len(text) * share) for share in (0.9, 0.95))
    ids = vocab.encode_text(text[start:stop].decode())
    nats = stream_nats(net, ids, batch_size=2, tgt_len=8).mean().item()
    assert nats == pytest.approx(NATS[release], rel=1e-4)
    code, output = txl("generate", f"--ckpt_path={path}", "--prompt=the lazy")
    assert (code, output.out[:8]) == (0, "the lazy")
