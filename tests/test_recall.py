"""Recall of values by distance is measured as experiments/state_bytes says."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from experiments import common
from experiments.copying.rows import FAST
from experiments.state_bytes import pairs, recall
from tests.helpers.one_layer import count_seen, draw_text, predict
from txl_lightning.data.stream import Stream


def format_pairs(drawn):
    return "".join(f"{chr(1000 + key)}{chr(97 + value)}" for key, value in drawn)


@pytest.mark.parametrize("easy", [0, 5000])
def test_a_repeated_key_has_the_value_of_that_distance(easy):
    drawn = pairs.draw_pairs(np.random.default_rng(0), 5000, easy)
    text = format_pairs(drawn)
    distance_N = pairs.find_distances(text, n_row=1)
    assert not distance_N[::2].any()
    repeats = np.flatnonzero(distance_N)
    assert 0.5 < len(repeats) / len(drawn) < 0.8
    assert distance_N.max() <= 2 * pairs.LONGEST
    for place in repeats:
        before = place - distance_N[place]
        assert text[before - 1 : before + 1] == text[place - 1 : place + 1]
        assert text[place - 1] not in text[before : place - 1]


def test_distances_of_a_curriculum_grow_to_the_longest_and_stay():
    text = format_pairs(pairs.draw_pairs(np.random.default_rng(0), 8000, easy=4000))
    distance_N = pairs.find_distances(text, n_row=1)
    longest = [each.max() for each in distance_N.reshape(8, -1)]
    assert longest[0] < 2 * pairs.EASIEST * (pairs.LONGEST / pairs.EASIEST) ** 0.25 + 2
    assert longest[0] < longest[1] < longest[2] < longest[3]
    assert min(longest[4:]) > 1.9 * pairs.LONGEST


def test_a_value_in_another_row_cannot_be_recalled():
    # Rows of two pairs; the third pair repeats the second, the fourth the third.
    text = format_pairs([(0, 1), (5, 2), (5, 2), (5, 2)])
    assert pairs.find_distances(text, n_row=1).tolist() == [0, 0, 0, 0, 0, 2, 0, 2]
    assert pairs.find_distances(text, n_row=2).tolist() == [0, 0, 0, 0, 0, 0, 0, 2]


def test_rows_of_training_are_curricula_and_texts_differ_by_seed(tmp_path):
    sizes = recall.replace(recall.SIZES, steps=40, batch_size=4, segment=32)
    texts = {}
    for seed in (1, 2):
        paths = recall.write_texts(tmp_path / str(seed), seed, sizes)
        texts[seed] = [Path(path).read_text() for path in paths]
        assert len(texts[seed][0]) == 40 * 32 * 4
        assert len(texts[seed][2]) == 2 * recall.TEST_PAIRS
    for first, second in zip(*texts.values(), strict=True):
        assert first != second
    train, _, test = texts[1]
    for row in range(4):
        text = train[row * 1280 : (row + 1) * 1280]
        assert pairs.find_distances(text[:160], n_row=1).max() < 40
    assert pairs.find_distances(test[:1280], n_row=1).max() > 300
    assert recall.write_texts(tmp_path / "1", 9, sizes)[0] == str(tmp_path / "1" / "train.txt")
    assert (tmp_path / "1" / "train.txt").read_text() == train
    recall.write_texts(tmp_path / "1", 1, recall.replace(sizes, steps=39))
    assert len((tmp_path / "1" / "train.txt").read_text()) == 39 * 32 * 4


def test_each_row_of_each_split_begins_with_a_key(tmp_path):
    paths = recall.write_texts(tmp_path, 1, recall.replace(recall.SIZES, steps=40))
    for path in paths:
        ids = np.array([ord(each) for each in Path(path).read_text()])
        stream = Stream.from_tokens(ids, recall.SIZES.batch_size, recall.SIZES.segment)
        first_B = next(iter(stream)).tokens_BL[:, 0]
        assert (first_B >= pairs.FIRST_KEY).all(), path


def test_a_curriculum_is_read_in_order_with_the_memory_of_its_arm(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "train", lambda args, name, seed, options: options)
    monkeypatch.setattr(recall, "write_texts", lambda folder, seed, sizes: [f"{folder}"])
    args = Namespace(fast=False, runs=tmp_path)
    options = recall.train(args, "Transformer-XL, memory of 512", 3, 6e-3)
    assert options["data.order"] == "ordered"
    assert options["data.path"] == [f"{tmp_path / 'pairs' / '3 in 8 rows'}"]
    assert options["model.net.mem_len"] == 512
    assert (options["data.tgt_len"], options["data.batch_size"]) == (128, 8)
    assert options["trainer.max_steps"] == recall.SIZES.steps
    options = recall.train(args, "Gated DeltaNet, 2 rows of 512", 3, 6e-3)
    assert options["data.path"] == [f"{tmp_path / 'pairs' / '3 in 2 rows'}"]
    assert (options["data.tgt_len"], options["data.batch_size"]) == (512, 2)


def test_a_recalled_value_is_looked_up_where_it_is_in_the_text(make_net):
    net = make_net(n_layer=1, mem_len=16)
    ids = draw_text(5)
    row_len = len(ids) // FAST.batch_size
    places = np.setdiff1d(np.arange(len(ids)), np.arange(FAST.batch_size) * row_len)
    seen = count_seen(places % row_len, FAST.segment, 16)
    right_N = np.zeros(len(ids), bool)
    right_N[places] = predict(net, ids, places, seen).argmax(-1).numpy() == ids[places]
    assert (recall.find_right_tokens(net, ids, FAST) == right_N).all()
    assert right_N.sum() > 30
