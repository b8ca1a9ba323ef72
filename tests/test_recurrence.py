"""Words of groups are what experiments/recurrence says, and so is how far a network can see."""

import math
from argparse import Namespace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.recurrence import figures, run
from experiments.recurrence.groups import GROUPS, draw_words, multiply
from experiments.recurrence.training import (
    FAST,
    Arm,
    Sizes,
    build,
    join_segments,
    measure_accuracy,
    open_words,
    read_update,
)
from experiments.results import load_records

FOLDER = Path(run.__file__).parent
SMALL = Sizes(width=8, longest=16)
ARMS = run.list_arms(SMALL)
SEES_ALL = [name for name, arm in ARMS.items() if run.find_limit(arm, SMALL) == SMALL.longest]


def count_orders(table_EE):
    """Return how many elements have each order."""
    orders = []
    for element in range(len(table_EE)):
        power = element
        order = 1
        while power:
            power = table_EE[power, element]
            order += 1
        orders.append(order)
    return {order: orders.count(order) for order in sorted(set(orders))}


@pytest.mark.parametrize(
    ("group", "orders", "is_abelian"),
    [
        # Of Z60, as many elements have an order as numbers up to it have no common factor with it.
        ("S3", {1: 1, 2: 3, 3: 2}, False),
        ("A5", {1: 1, 2: 15, 3: 20, 5: 24}, False),
        (
            "Z60",
            {n: sum(math.gcd(n, k) == 1 for k in range(n)) for n in range(1, 61) if 60 % n == 0},
            True,
        ),
    ],
)
def test_a_table_is_that_of_its_group(group, orders, is_abelian):
    table_EE = GROUPS[group]
    each_E = np.arange(len(table_EE))
    # Element 0 is the identity, each row and column has each element once, and brackets may move.
    assert (table_EE[0] == each_E).all()
    assert (table_EE[:, 0] == each_E).all()
    assert (np.sort(table_EE, axis=0) == each_E[:, None]).all()
    assert (np.sort(table_EE, axis=1) == each_E).all()
    left_EEE = table_EE[table_EE]
    right_EEE = table_EE[each_E[:, None, None], table_EE]
    assert (left_EEE == right_EEE).all()
    assert count_orders(table_EE) == orders
    assert (table_EE == table_EE.T).all() == is_abelian


def draw(lengths, n_segment=64, n_row=7, group="A5"):
    words = draw_words(GROUPS[group], np.random.default_rng(5), n_row, 4, lengths)
    return join_segments(words, n_segment)


def test_targets_are_the_products_of_a_word_from_its_beginning():
    tokens_BL, states_BL, doc_pos_BL = (each.numpy() for each in draw([1, 2, 4]))
    for row in range(len(tokens_BL)):
        for place, (token, doc_pos) in enumerate(zip(tokens_BL[row], doc_pos_BL[row], strict=True)):
            before = states_BL[row, place - 1] if doc_pos else 0
            assert states_BL[row, place] == GROUPS["A5"][before, token]
            assert doc_pos == 0 or doc_pos == doc_pos_BL[row, place - 1] + 1


def test_words_begin_with_a_segment_and_have_the_lengths_with_equal_shares():
    doc_pos_BL = draw([1, 2, 4], n_segment=1200).doc_pos_BL
    begins = [(row == 0).nonzero()[:, 0] for row in doc_pos_BL]
    assert all((begin % 4 == 0).all() for begin in begins)
    lengths = torch.cat([begin.diff() for begin in begins]) // 4
    assert set(lengths.tolist()) == {1, 2, 4}
    for length in (1, 2, 4):
        assert (lengths == length).sum() * length / lengths.sum() == pytest.approx(1 / 3, abs=0.03)


def test_a_word_without_its_first_token_says_nothing_of_its_states():
    # Each first token gives another state at each later place.
    tokens_BL = np.tile(draw([16], 16, n_row=1, group="S3").tokens_BL.numpy(), (6, 1))
    tokens_BL[:, 0] = np.arange(6)
    states_BL = multiply(GROUPS["S3"], np.zeros(6, int), tokens_BL)
    assert (np.sort(states_BL, axis=0) == np.arange(6)[:, None]).all()


def test_splits_and_seeds_have_other_words_and_the_same_seed_the_same():
    def first(split, seed):
        return next(open_words("S3", split, seed, 8, 4, [64])).tokens_BL

    assert (first("test", 1) == first("test", 1)).all()
    for other in (first("train", 1), first("val", 1), first("test", 2)):
        assert (first("test", 1) != other).any()


def read_logits(name, change):
    """Return logits_SBGE of each segment of a word, after a change of its first token."""
    arm = ARMS[name]
    net = build(arm.config, "S3", seed=3).double().eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.5)
        segments = list(islice(open_words("S3", "test", 1, 2, 4, [SMALL.longest]), SMALL.longest))
        segments[0].tokens_BL[:, 0] = (segments[0].tokens_BL[:, 0] + change) % 6
        words = iter(segments)
        memory = None
        logits = []
        for _ in range(SMALL.longest // arm.joined):
            tokens_BL, _, doc_pos_BL = join_segments(words, arm.joined)
            logits_BLE, memory = net(tokens_BL, memory or net.empty_memory(2), doc_pos_BL)
            logits += logits_BLE.split(4, dim=1)
    return torch.stack(logits)


@pytest.mark.parametrize("name", ARMS)
def test_the_first_token_of_a_word_reaches_the_predicted_segment_and_no_other(name):
    same_SBGE, changed_SBGE = (read_logits(name, change) for change in (0, 1))
    reached = (same_SBGE != changed_SBGE).any(-1).any(-1).any(-1).nonzero()[:, 0] + 1
    limit = run.find_limit(ARMS[name], SMALL)
    assert reached.max() == limit
    assert limit == (SMALL.longest if name in SEES_ALL else 1 + ARMS[name].config.n_layer)


@pytest.mark.parametrize("name", ARMS)
@torch.inference_mode()
def test_targets_are_no_input_and_a_word_knows_nothing_of_those_before(name):
    net = build(ARMS[name].config, "S3", seed=3).eval()
    first, second, third = islice(open_words("S3", "val", 1, 2, 4, [2]), 3)
    memories = []
    for states_BL in (first.states_BL, (first.states_BL + 1) % 6):
        empty = net.empty_memory(2)
        _, memory = net.loss(first.tokens_BL, states_BL, empty, first.doc_pos_BL)
        memories.append(memory)
    logits = [net(second.tokens_BL, each, second.doc_pos_BL)[0] for each in memories]
    assert (logits[0] == logits[1]).all()
    # The third segment begins a word.
    fresh, after = (
        net(third.tokens_BL, each, third.doc_pos_BL)[0] for each in (net.empty_memory(2), memory)
    )
    torch.testing.assert_close(after, fresh)


@pytest.mark.parametrize("name", ["Transformer-XL, 2 layers", "RMT, gradient 2"])
def test_an_update_has_a_gradient_through_as_many_segments_as_the_arm_says(name):
    arm = ARMS[name]
    net = build(arm.config, "S3", seed=3)
    embedded = []
    net.embedding.register_forward_hook(lambda *call: embedded.append(call[2]))
    words = open_words("S3", "train", 1, 2, 4, [16])
    for n_segment in (1, 2):
        embedded.clear()
        nats_BL, _ = read_update(net, arm._replace(gradient_segments=n_segment), words, None)
        assert nats_BL.shape == (2, 4 * n_segment)
        last = nats_BL[:, -4:].sum()
        grads = torch.autograd.grad(last, embedded, allow_unused=True)
        assert all(grad is not None and grad.any() for grad in grads)


def score_first_segment(table_EE, tokens_BL):
    """Return right_BL of the best network that cannot count a token while no other came before."""
    states_BL = multiply(table_EE, np.zeros(len(tokens_BL), int), tokens_BL)
    is_repeated_BL = np.logical_and.accumulate(tokens_BL == tokens_BL[:, :1], axis=1)
    return (states_BL == tokens_BL) | ~is_repeated_BL


@pytest.mark.parametrize("name", [name for name in ARMS if name.startswith("Transformer-XL")])
@torch.inference_mode()
def test_a_transformer_xl_cannot_count_a_token_that_is_repeated_from_the_start_of_a_word(name):
    net = build(ARMS[name].config, "S3", seed=3).double().eval()
    for weight in net.parameters():
        weight.normal_(0, 0.5)
    tokens_BL = torch.tensor([[2, 2, 2, 2], [2, 3, 2, 2]])
    logits_BLE, _ = net(tokens_BL, net.empty_memory(2), torch.arange(4).expand(2, 4))
    same, other = (each - each[0] for each in logits_BLE)
    assert same.abs().max() < 1e-9
    assert other[1:].abs().amax(dim=-1).min() > 1e-3


def test_the_most_that_a_transformer_xl_can_have_in_segment_1_is_that_of_the_page():
    every_BL = np.stack(np.meshgrid(*[np.arange(6)] * 4), axis=-1).reshape(-1, 4)
    most = 100 * score_first_segment(GROUPS["S3"], every_BL).mean()
    page = " ".join((FOLDER / "README.md").read_text().split())
    assert f"has at most {most:.1f} % in segment 1" in page
    assert "With 4 and 8 layers, each seed is within 0.2 points of the most" in page
    records = load_records(FOLDER / "results.json")
    arms = [name for name in figures.list_arms(records, "S3") if name.startswith("Transformer-XL")]
    for name in (name for name in arms if "2 layers" not in name):
        for seed, accuracy in figures.collect(records, "S3", name).items():
            tokens_BL = next(open_words("S3", "test", seed, 256, 4, [64])).tokens_BL.numpy()
            lost = score_first_segment(GROUPS["S3"], tokens_BL).mean() - accuracy[0]
            assert 0 <= lost < 0.002, (name, seed)


class Oracle:
    """A network that knows the state in its first two segments of a word, and then guesses 0."""

    def eval(self):
        return self

    def empty_memory(self, n_row):
        return np.zeros(n_row, int), 0

    def __call__(self, tokens_BL, memory, doc_pos_BL):
        state_B, n_read = memory
        states_BL = torch.from_numpy(multiply(GROUPS["S3"], state_B, tokens_BL.numpy()))
        known_BL = states_BL if n_read < 2 else torch.zeros_like(states_BL)
        logits_BLE = torch.nn.functional.one_hot(known_BL, 6).float()
        return logits_BLE, (states_BL[:, -1].numpy(), n_read + 1)


def test_the_accuracy_is_that_of_each_segment_of_the_word():
    words = open_words("S3", "test", 1, 500, 4, [8])
    found = measure_accuracy(Oracle(), Arm(None), words, 8)
    assert found[:2] == [1, 1]
    assert found[2:] == pytest.approx([1 / 6] * 6, abs=0.04)
    assert figures.count_known(found) == 2


def test_the_table_counts_known_segments_and_compares_means_of_all():
    curves = {
        "RMT, gradient 2": {1: [1, 0.9, 0.8, 0.95], 2: [1, 0.6, 0.5, 0.3]},
        "Transformer-XL, 2 layers": {1: [0.95, 0.2, 0.15, 0.15]},
    }
    records = {}
    for arm, by_seed in curves.items():
        for seed, accuracy in by_seed.items():
            record = {"group": "S3", "arm": arm, "kind": f"S3 {arm}", "seed": seed, "rate": 0.004}
            records[f"S3 {arm} {seed}"] = record | {
                "limit": 3,
                "parameters": 9000,
                "accuracy": accuracy,
            }
    [(_, rmt, xl)] = figures.list_tables(records)
    assert rmt == [
        "RMT, gradient 2",
        "9,000",
        "0.004",
        3,
        "1 to 2 (2)",
        "100",
        "75",
        "65",
        "62",
        *[""] * 4,
    ]
    assert xl[4:9] == ["1 (1)", "95", "20", "15", "15"]
    [effect] = [each.effects for each in figures.list_contrasts(records) if len(each.effects)]
    assert effect == pytest.approx([100 * (3.65 - 1.45) / 4])


def test_the_front_table_has_a_column_for_each_kind_of_words_that_was_trained():
    records = {}
    for kind, arm, accuracy in (
        ("S3", "LSTM, 1 layer", [1.0, 0.5]),
        ("S3", "Gated DeltaNet", [0.5, 0.5]),
        ("Z60", "LSTM, 1 layer", [1.0, 1.0]),
    ):
        record = {"group": kind, "arm": arm, "kind": f"{kind} {arm}", "seed": 1, "rate": 0.004}
        records[f"{kind} {arm} 1"] = record | {
            "limit": 64,
            "parameters": 9000,
            "accuracy": accuracy,
        }
    assert figures.list_front(records) == [
        ["network", "segments that reach it", "known segments of S3 (seeds)", "of Z60"],
        ["LSTM, 1 layer", 64, "1 (1)", "2 (1)"],
        ["Gated DeltaNet", 64, "0 (1)", ""],
    ]


def test_a_training_that_was_repeated_is_beside_the_first_one_and_in_no_other_table():
    first = {"group": "S3", "arm": "LSTM, 1 layer", "kind": "S3 LSTM, 1 layer", "seed": 2}
    first |= {"rate": 0.004, "limit": 64, "parameters": 9000, "accuracy": [1.0, 0.5]}
    again = first | {"kind": "S3 LSTM, 1 layer, again", "accuracy": [0.9, 0.5]}
    alone = figures.list_tables({"first": first})
    both = figures.list_tables({"first": first, "again": again})
    assert both[:-1] == alone
    assert both[-1][1:] == [
        ["S3: LSTM, 1 layer, % of the states", "2", "75.0000", "70.0000", "-5.0000"]
    ]


def test_all_arms_read_as_many_tokens_in_an_update():
    sizes = Sizes()
    for arm in run.list_arms(sizes).values():
        n_segment = arm.count_rows(sizes.segments) * arm.gradient_segments * arm.joined
        assert n_segment == sizes.segments


def test_a_seed_reaches_the_weights_and_the_words():
    args = Namespace(fast=True)
    texts = set()
    nats = set()
    for seed in (1, 1, 2):
        found = run.train_arm(args, "S3", "LSTM, 1 layer", seed, 1e-3)
        assert len(found.curve) == FAST.updates
        texts.add(found.text)
        nats.add(found.nats)
    assert len(texts) == len(nats) == 2


@pytest.mark.parametrize(("words", "longest"), [("S3", 64), ("S3, short words", 8)])
def test_short_words_are_those_of_training_and_validation_alone(monkeypatch, words, longest):
    drawn = {}
    monkeypatch.setattr(run, "train", lambda net, arm, optim, segments, updates: [0.0])
    monkeypatch.setattr(
        run,
        "measure_nats",
        lambda net, arm, segments, count: drawn.update(
            n_token=1 + max(each.doc_pos_BL.max().item() for each in islice(segments, 500))
        ),
    )
    args = Namespace(fast=False)
    run.train_arm(args, words, "LSTM, 1 layer", 1, 1e-3)
    assert drawn["n_token"] == longest * 4
    assert run.choose_sizes(args, words).longest == 64
