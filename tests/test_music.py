"""Nats per note are those of the tokens."""

import json
from argparse import Namespace

import numpy as np
import pytest

from experiments import common
from experiments.music import run
from tests.helpers.one_layer import count_seen, draw_text, nats_of

NAMES = ["PAD_None", "Bar_None", *(f"Pitch_{n}" for n in range(4))]
NAMES += [f"Position_{n}" for n in range(5)]


@pytest.mark.parametrize(("kind", "way"), [(k, way) for k in run.KINDS for way in run.WAYS[k]])
def test_nats_per_note_are_those_of_all_tokens_of_pieces_read_alone(make_net, kind, way):
    net = make_net(n_layer=1, mem_len=run.KINDS[kind]["model.net.mem_len"])
    pieces = [draw_text(1, 150), draw_text(2, 90)]
    nats, notes = 0.0, 0
    for ids_T in pieces:
        places = np.arange(1, len(ids_T))
        # A window starts with one segment, of which each token sees all before it.
        seen = {
            "memory": places,
            "zero memory": count_seen(places, 64, 0),
            "segments": count_seen(places, 64, 0),
            "cached": np.minimum(places, 64),
            "window": np.where(places < 8, places, np.minimum(places, 57 + (places - 1) % 8)),
        }[way]
        nats += nats_of(net, ids_T, places, seen).sum()
        notes += sum(2 <= index < 6 for index in ids_T)
    found = run.measure_nats(net, pieces, NAMES, run.WAYS[kind][way])
    assert found == pytest.approx(nats / notes, rel=1e-6)


def test_a_seed_of_music_reaches_weights_and_the_order_of_pieces(monkeypatch, tmp_path):
    fits = []
    monkeypatch.setattr(common, "fit", lambda folder, options: fits.append((folder, options)))
    (tmp_path / "names.json").write_text(json.dumps(NAMES))
    where = {"ids": tmp_path, "runs": tmp_path}
    args = Namespace(fast=False, precision="32-true", accelerator="cpu", **where)
    for seed in (5, 6):
        run.train(args, "memory", seed)
    names = ("seed_everything", "data.seed", "data.id_options.n_token")
    assert [[options[name] for name in names] for _, options in fits] == [[5, 5, 11], [6, 6, 11]]
    assert fits[0][0] != fits[1][0]
