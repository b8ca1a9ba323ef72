"""What the check of a GPU measures beside our own steps: ids of words, peers, parts of a layer."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from experiments.gpu import check, ids, kernels, minutes, operations, peers, speed
from experiments.speed import contestants
from experiments.speed.cases import Case
from tests.helpers.late_device import imitate_graphs
from txl_lightning.training import cuda_graph

CASE = Case("small", {"n_token": 23, "d_model": 8}, rows=2, tgt_len=4, mem_len=8, trains=True)


class Peer:
    """A peer that adds up what it has remembered."""

    has_memory = True

    def __init__(self, case=CASE):
        self.net = nn.Sequential(nn.Embedding(23, 8), nn.Tanh(), nn.Linear(8, 23))
        self.memory = [torch.zeros(case.rows, 8)]

    def __call__(self, tokens_BL, targets_BL):
        own_BLD = self.net[:2](tokens_BL)
        h_BLD = own_BLD + self.memory[0][:, None]
        self.memory = [0.5 * self.memory[0] + own_BLD[:, -1].detach()]
        return F.cross_entropy(self.net[2](h_BLD).float().mT, targets_BL, reduction="none")


@pytest.mark.parametrize("n_token", [1, 9, 300, 20_000, 20_001, 267_735])
def test_drawn_words_are_ids_of_the_vocabulary(n_token):
    drawn = ids.draw_words(n_token, (50, 40))
    assert drawn.shape == (50, 40)
    assert 0 <= drawn.min() <= drawn.max() < n_token


@pytest.mark.parametrize("bound", [1, 10, 19_997, 20_000, 40_000, 200_000])
def test_as_many_words_are_drawn_below_an_id_as_its_share_says(bound):
    drawn = ids.draw_words(267_735, (300_000,))
    share = (drawn < bound).double().mean().item()
    assert share == pytest.approx(ids.share_before(bound, 267_735), abs=0.004)
    assert ids.share_before(267_735, 267_735) == pytest.approx(1, abs=1e-4)


def test_batches_of_words_are_rarely_in_the_last_clusters(monkeypatch):
    case = speed.load_published("paper/wt103_base", smoke=False)
    tokens_BL, targets_BL = speed.draw_batch(case)
    assert tokens_BL.shape == targets_BL.shape == (case.rows, case.tgt_len)
    assert torch.equal(tokens_BL[:, 1:], targets_BL[:, :-1])
    assert (targets_BL >= 20_000).double().mean() == pytest.approx(0.025, abs=0.01)


def test_a_share_of_peak_is_the_operations_per_second_over_those_of_the_card():
    case = speed.load_published("paper/enwik8_base", smoke=False)
    operations_per_token = operations.count_operations(case) / case.tokens
    assert operations.share_of_peak(case, 1e6) == pytest.approx(operations_per_token * 1e6 / 989e12)


def test_captured_steps_of_a_peer_are_its_plain_steps(monkeypatch):
    batches = [torch.randint(23, (2, 2, 4)) for _ in range(4)]
    results = []
    for captures in (False, True):
        torch.manual_seed(0)
        peer = Peer()
        with imitate_graphs(monkeypatch, cuda_graph):
            step = (peers.capture_step if captures else prepare_steps)(peer, CASE, 0.1)
            losses = torch.stack([step(*batch) for batch in batches])
        results.append([losses, *(weight.detach() for weight in peer.net.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def prepare_steps(peer, case, lr):
    """Read as often as before a capture, in its warm-up, and in the capture: then take steps."""
    static = speed.draw_batch(case)
    optimizer = torch.optim.Adam(peer.net.parameters(), lr=lr)
    for _ in range(3 + 1 + 1):
        with torch.autocast("cpu", torch.bfloat16):
            peer(*static)
    return lambda *batch: peers.take_step(peer, optimizer, *batch)


@pytest.mark.parametrize("name", sorted(peers.SEGMENTS))
def test_peers_that_are_not_installed_are_named(monkeypatch, name):
    monkeypatch.setattr(contestants, "has", lambda module: False)
    monkeypatch.setattr(minutes, "train_and_score", lambda *_: {})
    for part in (peers.measure_peers, minutes.train_equal_time):
        found = {row.get("peer", row.get("network")): row for row in part(True, math.inf)}
        assert "not installed" in found[name]


@pytest.mark.parametrize(
    "measure",
    [kernels.measure_kernels, pytest.param(kernels.profile_steps, marks=pytest.mark.slow)],
)
def test_each_part_of_each_network_has_a_time_at_tiny_sizes(measure):
    found = list(measure(True, math.inf))
    assert {row["config"] for row in found} == {*speed.PUBLISHED}
    for row in [each for each in found if not {"rule", "not measured"} & {*each}]:
        assert "error" not in row, row
        forward = row.get("seconds_forward", row.get("busy_seconds_per_step"))
        assert forward > 0


def update_with_other_rates(update):
    for lr in (0.1, 0.2, 0.3, 0.4):
        update.__self__.param_groups[0]["lr"] = lr
        update()


def test_a_compiled_update_by_lamb_is_the_plain_one(monkeypatch):
    """By a backend that runs what it is given; one more graph is of any learning rate."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr(kernels, "time_by_events", update_with_other_rates)
    nets = []
    for compiles in (False, True):
        torch.manual_seed(1)
        nets.append(nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7)))
        monkeypatch.setattr(kernels, "make_network", lambda case: nets[-1])
        kernels.time_update(CASE, compiles)
    for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(ours, theirs)
    assert counter.frame_count == 2
    torch._dynamo.reset()


def test_a_network_of_equal_minutes_is_scored_on_text_that_it_has_not_read(monkeypatch):
    monkeypatch.setattr(peers, "make_peer", lambda name, case: Peer(case))
    monkeypatch.setattr(Peer, "has_memory", True)
    read = []
    split = minutes.split_batches
    monkeypatch.setattr(
        minutes, "split_batches", lambda *given: read.append(given[0]) or split(*given)
    )
    text = torch.arange(4000).remainder(23).to(torch.uint8)
    found = minutes.train_and_score("Llama", text, smoke=True)
    assert found["right"]
    assert 0 < found["bits_per_byte"] < 6
    assert [len(part) for part in read] == [3600, 400]


def test_batches_of_a_text_continue_in_each_row():
    text = torch.arange(40).to(torch.uint8)
    found = [each for each, _ in zip(minutes.split_batches(text, CASE), range(5), strict=False)]
    tokens_BT = torch.cat([tokens_BL for tokens_BL, _ in found[:4]], dim=1)
    assert tokens_BT.tolist() == [[*range(16)], [*range(20, 36)]]
    for tokens_BL, targets_BL in found:
        assert torch.equal(tokens_BL + 1, targets_BL)
    assert torch.equal(found[4][0], found[0][0])


def test_no_part_takes_longer_than_a_machine_that_is_lent():
    assert all(seconds <= check.LIMIT for _, seconds in check.PARTS.values())
    always = [name for name in check.PARTS if name not in check.ON_REQUEST]
    assert "peers" not in always
