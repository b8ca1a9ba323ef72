"""Evaluation that adapts to its text: the continuous cache, and dynamic evaluation."""

import copy
import math
import re
import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import TransformerXLConfig, stream_nats
from txl_lightning.data.store import EvalText
from txl_lightning.data.tokens import TextTokens
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import NonFiniteError
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.evaluation.scoring import evaluate, score_text
from txl_lightning.evaluation.tuning import measure_rms
from txl_lightning.generation.state import read_to_end, start_decoding
from txl_lightning.model import EvalLengths, TransformerXL, pack_weights
from txl_lightning.model.adaptation import Adaptation
from txl_lightning.model.reading import Reader
from txl_lightning.model.state_cache import StateCache, sum_matches

CACHE = Adaptation(cache_len=7, cache_theta=9.0, cache_weight=0.3).fill()
DYNAMIC = Adaptation(rate=0.3, decay=0.02).fill()
BOTH = Adaptation(cache_len=30, cache_weight=0.6, rate=0.1).fill()
EACH = pytest.mark.parametrize("use", [CACHE, DYNAMIC, BOTH], ids=["cache", "dynamic", "both"])


@pytest.fixture(scope="module")
def net():
    """A small network in float64, in eval mode, without symmetries."""
    torch.manual_seed(1)
    config = TransformerXLConfig(n_token=11, n_layer=2, n_head=2, d_model=8, mem_len=6)
    net = config.build().double().eval()
    for weight in net.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    return net


def mix_slowly(states, ids, p_V, use):
    """Return the probabilities after the last of `states`, by the equations of Grave et al."""
    p_cache_V = torch.zeros_like(p_V)
    now = len(states) - 1
    for i in range(max(now - use.cache_len, 0), now):
        cosine = torch.cosine_similarity(states[now], states[i], dim=0)
        p_cache_V[ids[i + 1]] += torch.exp(use.cache_theta * cosine)
    if not p_cache_V.any():
        return p_V
    return (1 - use.cache_weight) * p_V + use.cache_weight * p_cache_V / p_cache_V.sum()


def step_plainly(use, net, trained):
    for weight, before in zip(net.parameters(), trained.parameters(), strict=True):
        step = use.decay * (before.data - weight.data)
        weight.data += step - use.rate * (0 if weight.grad is None else weight.grad)


def score_slowly(net, ids, tgt_len, use, mem_len, ext_len=0, place=0, step=step_plainly):
    """Return the nats of all tokens but the first of a document at a place in a text.

    The steps of Krause et al. are taken after each segment of the text.
    """
    net = copy.deepcopy(net)
    states = []
    nats = []
    trained = copy.deepcopy(net)
    memory = net.empty_memory(1, EvalLengths(mem_len))
    bounds = [0, *range(tgt_len - place % tgt_len, len(ids) - 1, tgt_len), len(ids) - 1]
    for start, stop in pairwise(bounds):
        targets_L = ids[start + 1 : stop + 1]
        begin = max(start - ext_len, 0)
        inputs = ids[None, begin:stop], memory, None, min(ext_len, stop)
        h_BLD, memory = net.hidden(*inputs)
        h_BLD = h_BLD[:, start - begin :]
        p_LV = net.head(h_BLD)[0].softmax(-1)
        for h_D, p_V, target in zip(h_BLD[0].detach(), p_LV.detach(), targets_L, strict=True):
            states.append(h_D)
            nats.append(-mix_slowly(states, ids, p_V, use)[target].log())
        loss = -p_LV.gather(1, targets_L[:, None]).log().mean()
        net.zero_grad()
        loss.backward()
        step(use, net, trained)
    return torch.stack(nats)


@EACH
@pytest.mark.parametrize(
    ("tgt_len", "mem_len", "changes"),
    [(1, 6, {}), (7, 3, {"norm": "pre"}), (13, 0, {}), (33, 5, {}), (5, 6, {"cutoffs": [4, 8]})],
)
def test_adapted_nats_are_those_of_the_papers_equations(make_net, use, tgt_len, mem_len, changes):
    net = make_net(**changes)
    ids = torch.randint(11, (70,))
    expected = score_slowly(net, ids, tgt_len, use, mem_len)
    how = {"batch_size": 1, "tgt_len": tgt_len, "mem_len": mem_len, "adaptation": use}
    actual = stream_nats(net, ids, **how)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    assert (
        actual - stream_nats(net, ids, **how | {"adaptation": Adaptation()})[0]
    ).abs().max() > 0.01


def nats_by_position(net, ids, use, starts=(0,), **lengths):
    """Return the nats of each token of a text with documents; nan if it is not scored."""
    nats_N = torch.full((len(ids),), torch.nan, dtype=torch.float64)
    protocol = Protocol(**{"tgt_len": 5} | lengths, adaptation=use)
    text = TextTokens(np.array([*map(int, ids)]), np.array(starts))
    for part in score_text(net, text, protocol):
        nats_N[part.position_K] = part.nats_K
    return nats_N


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("layers.1.*", r"layers\.1\."),
        # The matrix of the softmax is that of the embedding.
        ("*norm*, head.*", r".*norm|head\.|embedding\.weight"),
        ("head.out.bias", r"head\.out\.bias"),
        ("embedding.weight", "emb"),
    ],
)
def test_only_weights_whose_names_are_given_take_steps(make_net, patterns, chosen):
    net = make_net(norm="pre")
    ids = torch.randint(11, (40,))

    def step(use, net, trained):
        before = copy.deepcopy(net)
        step_plainly(use, net, trained)
        for (name, weight), old in zip(net.named_parameters(), before.parameters(), strict=True):
            if not re.match(chosen, name):
                weight.data = old.data

    expected = score_slowly(net, ids, 7, DYNAMIC, 6, step=step)
    use = replace(DYNAMIC, rate_weights=patterns)
    actual = stream_nats(net, ids, batch_size=1, tgt_len=7, adaptation=use)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    assert not torch.allclose(actual, score_slowly(net, ids, 7, DYNAMIC, 6))


def test_steps_by_the_rms_of_gradients_are_those_of_the_papers_equations(make_net):
    net = make_net(norm="pre")
    read = torch.randint(11, (45,))
    ids = torch.randint(11, (40,))
    use = Adaptation(rate=0.01, decay=0.3, rms_tokens=40)
    squares = []
    memory = net.empty_memory(1)
    for start, stop in pairwise([*range(0, 40, 7), 40]):
        nats, memory = net.loss(read[None, start:stop], read[None, start + 1 : stop + 1], memory)
        gradients = torch.autograd.grad(nats.mean(), list(net.parameters()))
        squares.append([gradient**2 for gradient in gradients])
    rms = [torch.stack(each).mean(0).sqrt() for each in zip(*squares, strict=True)]
    mean = torch.cat([each.flatten() for each in rms]).mean()

    def step(use, net, trained):
        for weight, before, scale in zip(net.parameters(), trained.parameters(), rms, strict=True):
            back = torch.minimum(use.decay * scale / mean, torch.ones_like(scale))
            weight.data += back * (before.data - weight.data)
            weight.data -= use.rate * weight.grad / (scale + 0.1 * mean)

    found = measure_rms(net, TextTokens(read.numpy()), Protocol(tgt_len=7, adaptation=use))
    actual = stream_nats(net, ids, batch_size=1, tgt_len=7, adaptation=found)[0]
    expected = score_slowly(net, ids, 7, found.fill(), 6, step=step)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    # Some way back is shorter than the whole one, and some is the whole one.
    assert (use.decay * torch.cat([each.flatten() for each in rms]) > mean).unique().numel() == 2


@pytest.mark.bfloat16
@pytest.mark.parametrize("starts", [[0], [0, 20, 41]], ids=str)
def test_steps_and_new_documents_reach_the_next_tokens_also_within_one_autocast(make_net, starts):
    net = make_net().float()
    text = TextTokens(torch.randint(11, (64,)).numpy(), np.array(starts))
    found = []
    for has_cache in (True, False):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=has_cache):
            parts = score_text(net, text, Protocol(tgt_len=8, adaptation=DYNAMIC))
            found.append(join_nats(parts))
    assert found[0] == found[1]


def test_steps_that_need_gradients_of_the_training_text_are_refused_without_them(net):
    use = Adaptation(rate=0.1, rms_tokens=9)
    expected = r"rms_tokens: invalid 9; expected null: gradients of the training text"
    with pytest.raises(ValueError, match=expected):
        stream_nats(net, torch.arange(9), batch_size=1, tgt_len=4, adaptation=use)


@pytest.mark.parametrize("patterns", ["layer.1.*", "head.*, layer.1.*"])
def test_names_of_weights_that_the_network_lacks_are_refused(net, patterns):
    use = Adaptation(rate=0.1, rate_weights=patterns)
    expected = "rate_weights: invalid layer.1.\\*; expected names of weights, such as head.out.bias"
    with pytest.raises(ValueError, match=expected):
        stream_nats(net, torch.arange(9), batch_size=1, tgt_len=4, adaptation=use)


def test_the_rms_of_gradients_is_that_of_segments_with_a_step(net):
    use = Adaptation(rate=0.1, rms_tokens=8)
    ids = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9])
    protocol = Protocol(tgt_len=1, adaptation=use)
    # Four of the eight targets begin a document, so that they are not scored.
    documents = TextTokens(ids, np.array([0, 2, 4, 6, 8]))
    squares = []
    for token, target in zip(ids[:8:2], ids[1::2], strict=True):
        nats, _ = net.loss(torch.tensor([[token]]), torch.tensor([[target]]))
        gradients = torch.autograd.grad(nats.mean(), list(net.parameters()))
        squares.append([gradient**2 for gradient in gradients])
    expected = tuple(torch.stack(each).mean(0).sqrt() for each in zip(*squares, strict=True))
    torch.testing.assert_close(measure_rms(net, documents, protocol).rms, expected)


def test_weights_without_any_gradient_in_the_training_text_are_refused(make_net):
    use = Adaptation(rate=0.1, rms_tokens=20, rate_weights="embedding.tables.2.*")
    # Tokens of the first cluster alone.
    tokens = TextTokens(np.arange(30) % 3)
    expected = "rms_tokens: invalid 20; expected more: in these tokens, the weights"
    with pytest.raises(ValueError, match=expected):
        measure_rms(
            make_net(cutoffs=(3, 6), div_val=2), tokens, Protocol(tgt_len=5, adaptation=use)
        )


@EACH
def test_dropout_of_a_network_in_training_is_off_while_it_adapts(make_net, use):
    net = make_net(dropout=0.5, dropatt=0.5)
    ids = torch.randint(11, (70,))
    how = {"batch_size": 1, "tgt_len": 7, "adaptation": use}
    expected = stream_nats(net, ids, **how)
    assert torch.equal(stream_nats(net.train(), ids, **how), expected)
    assert net.training
    torch.testing.assert_close(expected[0], score_slowly(net.eval(), ids, 7, use, 6))


@pytest.mark.parametrize("lengths", [{"tgt_len": 1, "ext_len": 8}, {"tgt_len": 2}], ids=str)
def test_without_memory_a_cache_has_the_states_of_the_warm_up(net, lengths):
    ids = torch.randint(11, (60,))
    how = {"mem_len": 0, "adaptation": replace(CACHE, cache_len=12)}
    one = stream_nats(net, ids, batch_size=1, **how, **lengths)[0]
    two = stream_nats(net, ids, batch_size=2, warmup_len=26, **how, **lengths).flatten()
    torch.testing.assert_close(two[30:], one[29:])


@EACH
@settings(max_examples=15)
@given(
    ids=st.lists(st.integers(0, 10), min_size=3, max_size=40),
    place=st.integers(1, 39),
    starts=st.sets(st.integers(1, 39), max_size=3),
    lengths=st.fixed_dictionaries(
        {
            "tgt_len": st.integers(1, 9),
            "ext_len": st.integers(0, 5),
            "warmup_len": st.integers(0, 3),
        }
    ),
)
def test_later_text_never_changes_an_earlier_number(net, use, ids, place, starts, lengths):
    place = min(place, len(ids) - 1)
    starts = sorted({0, *(start for start in starts if start < place)})
    before = nats_by_position(net, ids, use, starts, **lengths)
    # Other tokens, and another document.
    changed = [*ids[:place], *((index + 1) % 11 for index in ids[place:])]
    after = nats_by_position(net, changed, use, [*starts, place], **lengths)
    # Products of parts of a segment are rounded otherwise than those of the whole.
    torch.testing.assert_close(after[:place], before[:place], rtol=0, atol=1e-10, equal_nan=True)


@EACH
@pytest.mark.parametrize("place", [3, 20, 24, 25])
def test_probabilities_of_all_targets_sum_to_one(net, use, place):
    ids = torch.randint(11, (26,))
    total = 0.0
    for target in range(11):
        # A target that is known before its score would have too much.
        nats_N = nats_by_position(net, [*ids[:place], target, *ids[place + 1 :]], use)
        total += math.exp(-nats_N[place])
    assert total == pytest.approx(1, abs=1e-9)


@EACH
@pytest.mark.parametrize("ext_len", [0, 3])
@pytest.mark.parametrize("others", [(), (1,), (2, 3)], ids=str)
def test_documents_at_every_place_of_a_segment_are_those_of_a_loop_over_documents(
    net, use, ext_len, others
):
    ids = torch.randint(11, (19,))
    for place in range(5, 10):
        starts = [0, place, *(place + other for other in others)]
        actual = nats_by_position(net, ids, use, starts, ext_len=ext_len)
        for start, stop in pairwise([*starts, 19]):
            assert actual[start].isnan()
            if stop - start > 1:
                lengths = {"mem_len": 6, "ext_len": ext_len, "place": start}
                expected = score_slowly(net, ids[start:stop], 5, use, **lengths)
                found = actual[start + 1 : stop]
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@EACH
@pytest.mark.parametrize("lengths", [{}, {"ext_len": 3}, {"tgt_len": 1}, {"tgt_len": 40}], ids=str)
def test_a_document_is_scored_as_if_nothing_were_before_it(net, use, lengths):
    ids = torch.randint(11, (60,))
    starts = (0, 9, 10, 23, 41, 58)
    nats = nats_by_position(net, ids, use, starts, **lengths)
    for start, stop in zip(starts, (*starts[1:], 60), strict=True):
        # The same places in segments, after another text.
        other = torch.cat([torch.randint(11, (start,)), ids[start:stop]])
        alone = nats_by_position(net, other, use, sorted({0, start}), **lengths)
        torch.testing.assert_close(nats[start:stop], alone[start:], equal_nan=True)


def test_a_memory_knows_what_is_read_again_also_beyond_the_last_document(net):
    reader = Reader(net, BOTH)
    tokens_BL = torch.randint(11, (1, 5))
    doc_pos_BL = torch.tensor([[5, 6, 7, 8, 0]])
    _, memory = reader.loss(tokens_BL, tokens_BL, reader.empty_memory(1), doc_pos_BL, 3)
    assert memory.n_reread == 3


def test_rows_have_caches_of_their_own(net):
    ids = torch.randint(11, (3 * 25,))
    nats = stream_nats(net, ids, batch_size=3, tgt_len=4, adaptation=CACHE)
    for row, nats_L in zip(ids.view(3, 25), nats, strict=True):
        alone = stream_nats(net, row, batch_size=1, tgt_len=4, adaptation=CACHE)[0]
        torch.testing.assert_close(nats_L, alone)
    expected = "rate: invalid 0.3; expected 0, or a single row, not 3"
    with pytest.raises(ValueError, match=expected):
        stream_nats(net, ids, batch_size=3, tgt_len=4, adaptation=DYNAMIC)


@pytest.mark.parametrize("tgt_len", [1, 3, 149, 500])
def test_segments_and_tiles_have_no_effect_on_a_cache(net, monkeypatch, tgt_len):
    ids = torch.randint(11, (150,))
    how = {"batch_size": 1, "mem_len": 200, "adaptation": CACHE}
    expected = stream_nats(net, ids, tgt_len=7, **how)
    monkeypatch.setattr("txl_lightning.model.state_cache.QUERIES", 11)
    monkeypatch.setattr("txl_lightning.model.state_cache.ROOM", 5)
    torch.testing.assert_close(stream_nats(net, ids, tgt_len=tgt_len, **how), expected)


@EACH
@pytest.mark.parametrize("stop", [None, RuntimeError, SystemExit])
def test_an_evaluation_leaves_everything_as_it_was(net, monkeypatch, use, stop):
    net = copy.deepcopy(net).train()
    net.layers[0].requires_grad_(False)
    _, memory = net(torch.randint(11, (1, 9)))
    before = copy.deepcopy((net.state_dict(), memory.tensors()))
    flags = [weight.requires_grad for weight in net.parameters()]
    random = torch.random.get_rng_state()
    n_scored = 0

    def fail(*inputs):
        raise stop

    text = TextTokens(np.arange(60) % 11)
    with suppress(RuntimeError, SystemExit):
        for part in score_text(net, text, Protocol(tgt_len=5, adaptation=use)):
            n_scored += len(part.nats_K)
            if stop and n_scored > 20:
                monkeypatch.setattr(TransformerXL, "hidden", fail)
    assert n_scored == (25 if stop else 59)
    torch.testing.assert_close((net.state_dict(), memory.tensors()), before, rtol=0, atol=0)
    assert [weight.requires_grad for weight in net.parameters()] == flags
    assert all(weight.grad is None for weight in net.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert net.training


def test_a_cache_finds_a_repeated_random_block_which_the_network_cannot(make_net):
    net = make_net(n_token=256, d_model=16)
    block = torch.randint(256, (100,))
    use = Adaptation(cache_len=200, cache_theta=60.0, cache_weight=0.9)
    how = {"batch_size": 1, "tgt_len": 20, "mem_len": 4}
    ids = block.repeat(4)
    static, adapted = (
        stream_nats(net, ids, **how, adaptation=each)[0, -100:] for each in (Adaptation(), use)
    )
    assert adapted.mean() < 0.6 < math.log(256) < static.mean()
    # The cache ends before the block of 100 tokens ago.
    short = stream_nats(net, ids, **how, adaptation=replace(use, cache_len=90))[0, -100:]
    assert short.mean() > static.mean()


def test_memory_of_a_cache_is_bounded_by_its_length(net):
    cache = StateCache(100, 9.0, 0.5)
    for _ in range(400):
        cache = cache.append(torch.randn(2, 10, 8), torch.randint(11, (2, 10)))
    assert cache.slots.capacity < 100 + 10 + 1024 + 1


def test_a_cache_is_unchanged_by_later_ones(net):
    h_BLD = torch.randn(2, 6, 8)
    tokens_BL = torch.randint(11, (2, 6))
    cache = StateCache(9, 9.0, 0.5).append(h_BLD, tokens_BL)
    expected = cache.score(tokens_BL)
    one = cache.append(h_BLD, tokens_BL)
    two = cache.append(-h_BLD, tokens_BL.flip(1))
    torch.testing.assert_close(cache.score(tokens_BL), expected, equal_nan=True)
    torch.testing.assert_close(
        one.score(tokens_BL), cache.append(h_BLD, tokens_BL).score(tokens_BL)
    )
    assert not torch.allclose(one.score(tokens_BL), two.score(tokens_BL))
    rows = torch.tensor([1, 0, 1])
    last = tokens_BL[:, -1:]
    torch.testing.assert_close(one.rows(rows).score(last[rows]), one.score(last)[rows])


@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_where_a_cache_sees_no_state_the_network_alone_predicts(net, weight):
    use = Adaptation(cache_len=5, cache_theta=3.0, cache_weight=weight)
    state = start_decoding(net, [torch.tensor([3])], None, 0, use)
    logits_BV, _ = read_to_end(Reader(net, use), state)
    expected_BV = net(torch.tensor([[3]]))[0][:, -1]
    torch.testing.assert_close(logits_BV.softmax(-1), expected_BV.softmax(-1))


@pytest.mark.parametrize(("theta", "sign"), [(75.0, 1), (75.0, -1), (60.0, 1), (0.0, 1)])
def test_sums_of_a_million_states_are_those_of_their_equation(theta, sign):
    """Of float32: exp(75), a million times, is more than it holds, and exp(-75) nearly nothing."""
    n_state = 1_000_000
    h_BLD = torch.tensor([1.0, 0.0]).expand(1, n_state, 2).clone()
    h_BLD[:, -1] *= sign
    tokens_BL = (torch.arange(n_state + 1) % 4 == 0).long()[None]
    cache = StateCache(10**9, theta, 0.5).append(h_BLD, tokens_BL[:, :-1])
    logp = cache.score(torch.tensor([[1]]))
    assert logp.exp().item() == pytest.approx(0.25, rel=1e-3)
    p_V = cache.mix(torch.tensor([[0.0, 0.0]])).softmax(-1)[0]
    assert p_V.tolist() == pytest.approx([0.625, 0.375], rel=1e-3)


def test_a_state_that_is_no_number_is_not_taken_for_an_empty_cache(net):
    h_BLD = torch.randn(1, 6, 8)
    tokens_BL = torch.randint(11, (1, 6))
    h_BLD[0, 2] = torch.nan
    cache = StateCache(9, 9.0, 0.5).append(h_BLD, tokens_BL)
    logp_BV = torch.zeros(1, 11).log_softmax(-1)
    assert cache.mix(logp_BV).isnan().all()
    for cache_len, n_seen in ((9, [0, 1, 2, 3, 4, 5]), (2, [0, 1, 2, 2, 2, 2])):
        cache = StateCache(cache_len, 9.0, 0.5).append(h_BLD, tokens_BL)
        assert cache.count_seen(6).tolist() == [n_seen]
        doc_pos_BL = torch.tensor([[0, 1, 2, 0, 1, 2]])
        expected = [[min(pair) for pair in zip(n_seen, doc_pos_BL[0].tolist(), strict=True)]]
        assert cache.count_seen(6, doc_pos_BL).tolist() == expected
        assert cache.find_seeing(6, doc_pos_BL).tolist() == [[n > 0 for n in expected[0]]]


@EACH
def test_a_saved_memory_goes_on_as_if_it_had_been_kept(net, use, tmp_path):
    reader = Reader(net, use)
    ids = torch.randint(11, (1, 30))
    for count in (0, 1, 20):
        memory = reader.empty_memory(1)
        with torch.inference_mode():
            for part in ids[:, :count].split(7, dim=1):
                _, memory = reader.hidden(part, memory)
            torch.save(memory.tensors(), tmp_path / "memory.pt")
            saved = torch.load(tmp_path / "memory.pt", weights_only=True)
            again = reader.empty_memory(1).restore(saved)
            place = ids[:, count:-1], ids[:, count + 1 :]
            expected, actual = (reader.score(*place, each)[0] for each in (memory, again))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_sums_of_matches_are_those_of_every_pair():
    weight_QS = torch.rand(5, 90)
    next_S = torch.randint(7, (90,))
    target_Q = torch.arange(5)
    expected = (weight_QS * (next_S == target_Q[:, None])).sum(-1)
    torch.testing.assert_close(sum_matches(weight_QS, next_S, target_Q), expected)


def give_states(net):
    """Give the network of docs/own_network.md a method `hidden`."""

    class Stateful(type(net)):
        def hidden(self, tokens_BL, *inputs):
            head = self.head
            self.head = torch.nn.Identity()
            h_BLD, memory = super().forward(tokens_BL, *inputs)
            self.head = head
            return h_BLD, memory

    net.__class__ = Stateful


def test_any_network_takes_steps_and_one_with_states_has_a_cache(own_package):
    net = own_package.MyConfig(n_token=11, width=8).build().double()
    ids = torch.arange(60) % 11
    how = {"batch_size": 1, "tgt_len": 10}
    static = stream_nats(net, ids, **how)
    assert stream_nats(net, ids, **how, adaptation=Adaptation(rate=0.5)).mean() < static.mean()
    with pytest.raises(ValueError, match=r"cache_len: invalid 7; expected 0, as MyNetwork lacks"):
        stream_nats(net, ids, **how, adaptation=CACHE)
    give_states(net)
    torch.testing.assert_close(stream_nats(net, ids, **how), static)
    use = Adaptation(cache_len=30, cache_theta=40.0)
    assert stream_nats(net, ids, **how, adaptation=use).mean() < 0.8 * static.mean()


@pytest.mark.parametrize("cache_len", [0, 9])
def test_steps_reach_no_segment_before_also_where_memory_has_a_gradient(own_package, cache_len):
    source = Path(own_package.__file__)
    source.with_name("flowing.py").write_text(source.read_text().replace(".detach()", ""))
    flowing = import_module("flowing").MyConfig(n_token=11, width=8).build().double()
    del sys.modules["flowing"]
    net = own_package.MyConfig(n_token=11, width=8).build().double()
    net.load_state_dict(flowing.state_dict())
    for each in (net, flowing):
        give_states(each)
    tokens_BL = torch.ones(1, 3).long()
    assert flowing.loss(tokens_BL, tokens_BL)[1].h_BD.requires_grad
    ids = np.arange(60) % 11
    use = Adaptation(rate=0.5, cache_len=cache_len)
    how = {"batch_size": 1, "tgt_len": 10, "adaptation": use}
    torch.testing.assert_close(stream_nats(flowing, ids, **how), stream_nats(net, ids, **how))
    protocol = Protocol(tgt_len=10, adaptation=replace(use, rms_tokens=40))
    rms = [measure_rms(each, TextTokens(ids), protocol).rms for each in (flowing, net)]
    torch.testing.assert_close(*rms)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cache_len": -1}, "cache_len: invalid -1; expected from 0 to 1,000,000,000"),
        ({"cache_theta": 76.0}, "cache_theta: invalid 76.0; expected from 0 to 75"),
        ({"cache_weight": 1.5}, "cache_weight: invalid 1.5; expected from 0 to 1"),
        ({"rate": math.nan}, "rate: invalid nan; expected from 0 to 1,000,000"),
        ({"decay": 2.0}, "decay: invalid 2.0; expected from 0 to 1"),
    ],
)
def test_an_impossible_adaptation_is_refused(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Adaptation(**wrong)


def test_a_cache_across_documents_is_refused_with_a_warm_up():
    use = Adaptation(cache_len=9, adapt_across_documents=True)
    expected = r"invalid True; expected false with a cache and a warm-up \(4\)"
    with pytest.raises(ValueError, match=f"adapt_across_documents: {expected}"):
        Protocol(warmup_len=4, adaptation=use)


def test_a_token_without_probability_in_the_cache_is_named_as_the_cause(net):
    text = EvalText("a", "test", "f", TextTokens(np.arange(9)), Characters("abcdefghijk"), 1.0)
    use = Adaptation(cache_len=9, cache_weight=1.0)
    with pytest.raises(NonFiniteError, match="nats inf; with cache_weight 1, a token that is not"):
        evaluate(net, text, Protocol(tgt_len=4, adaptation=use))


@pytest.mark.bfloat16
def test_weights_that_take_no_steps_are_refused(make_net):
    for net in (pack_weights(make_net().float(), "bf16"), make_net().bfloat16()):
        with pytest.raises(ValueError, match=r"rate: invalid 0.3; expected 0, or whole weights in"):
            stream_nats(net, torch.arange(9), batch_size=1, tgt_len=4, adaptation=DYNAMIC)


def test_a_result_names_its_adaptation_and_a_rate_that_breaks_the_network(net):
    text = EvalText(
        "a", "test", "f", TextTokens(np.arange(99) % 11), Characters("abcdefghijk"), 1.0
    )
    record = evaluate(net, text, Protocol(adaptation=Adaptation(cache_len=9, rate=0.1)))
    assert record["protocol"] == "segments-adapted"
    expected = {"cache_len": 9, "cache_theta": 40, "cache_weight": 0.4, "rate": 0.1, "decay": 0}
    assert record["adaptation"] == expected
    assert not record["changed"]
    static = evaluate(net, text, Protocol(adaptation=Adaptation(cache_theta=9.0)))
    assert (static["protocol"], static["adaptation"]) == ("segments", None)
    with pytest.raises(NonFiniteError, match=r"a: nats .*; the rate 9999 is too large, or"):
        evaluate(net, text, Protocol(adaptation=Adaptation(rate=9999.0), tgt_len=5))


@pytest.mark.parametrize("use", [{"cache_len": 30}, {"rate": 0.1, "decay": 0.1}], ids=str)
def test_across_documents_what_is_learned_is_that_of_one_text(make_net, use):
    # Without memory and with one token a segment, documents change nothing but what is learned.
    net = make_net(mem_len=1, same_length="mem_len")
    ids = torch.randint(11, (60,)).numpy()
    documents = TextTokens(ids, np.array([0, 20, 33]))
    kept = Protocol(tgt_len=1, adaptation=Adaptation(**use, adapt_across_documents=True))
    whole = Protocol(tgt_len=1, adaptation=Adaptation(**use))
    positions, nats = join_nats(score_text(net, documents, kept))
    expected = dict(zip(*join_nats(score_text(net, TextTokens(ids), whole)), strict=True))
    assert {*range(1, 60)} - {*positions} == {20, 33}
    # The first tokens of documents are not scored, and no step is taken on them.
    n_same = 19 if "rate" in use else 57
    for position, value in [*zip(positions, nats, strict=True)][:n_same]:
        assert value == pytest.approx(expected[position], abs=1e-8)


def join_nats(parts):
    """Return the positions and nats of all parts, as lists."""
    pairs = [(part.position_K.tolist(), part.nats_K.tolist()) for part in parts]
    return [each for at, _ in pairs for each in at], [each for _, nats in pairs for each in nats]
