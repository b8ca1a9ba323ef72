"""Nats of candidates are those of stream_nats, whatever is scored beside them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import score, stream_nats
from txl_lightning.data.vocab import Characters, WordOptions, Words
from txl_lightning.errors import NonFiniteError
from txl_lightning.generation import Sampling, decode_steps, score_candidates
from txl_lightning.generation import candidates as module
from txl_lightning.generation.candidates import start_scoring
from txl_lightning.generation.state import KEPT, DecodingState
from txl_lightning.model.adaptation import Adaptation
from txl_lightning.model.reading import Reader

IDS = st.integers(0, 10)
PAIRS = st.lists(
    st.tuples(st.sampled_from([(1,), (3, 0, 3), (2,) * 9]), st.lists(IDS, max_size=12)),
    min_size=1,
    max_size=6,
)
NETS = [
    {"mem_len": 30},
    {"mem_len": 3, "same_length": "mem_len"},
    {"mem_len": 30, "cutoffs": [4, 8]},
    {"mem_len": 30, "positions": "learned", "clamp_len": 4},
]


def stream_alone(net, context, continuation) -> torch.Tensor:
    if not len(continuation):
        return torch.zeros(0).double()
    tokens = torch.tensor([*context, *continuation])
    return stream_nats(net, tokens, batch_size=1, tgt_len=len(tokens))[0, len(context) - 1 :]


@pytest.mark.parametrize("sizes", NETS, ids=str)
def test_nats_are_those_of_stream_nats_whatever_the_grouping(make_net, monkeypatch, sizes):
    net = make_net(**sizes)

    @settings(max_examples=25)
    @given(PAIRS, st.integers(1, 4), st.integers(1, 7))
    def check(pairs, batch_size, segment_len):
        monkeypatch.setattr(module, "SEGMENT_LEN", segment_len)
        contexts, continuations = zip(*pairs, strict=True)
        nats = score(net, list(contexts), continuations, batch_size=batch_size)
        for nats_L, *pair in zip(nats, contexts, continuations, strict=True):
            torch.testing.assert_close(nats_L, stream_alone(net, *pair), rtol=0, atol=1e-10)

    check()


def test_candidates_of_one_context_read_it_once(make_net, monkeypatch):
    net = make_net(mem_len=50)
    lengths = []
    embed = net.embedding.forward
    monkeypatch.setattr(net.embedding, "forward", lambda t: lengths.append(t.shape) or embed(t))
    score(net, [[1] * 40, [2, 3], [1] * 40], [[4, 5], [6], [7, 8, 9]])
    assert lengths == [(1, 38), (1, 1), (2, 3), (1, 1), (1, 1)]


def test_the_memory_is_carried_on_with_the_candidate_that_is_appended(make_net):
    net = make_net(mem_len=60)
    state = start_scoring(net, torch.tensor([1, 2, 3]), None)
    text = [1, 2, 3]
    for lengths in ((4, 1), (300, 2, 7), (5,)):
        lists = [torch.randint(11, (n,)) for n in lengths]
        nats, state = score_candidates(net, state, lists)
        # More than the memory: each layer sees a memory further, from segment to segment.
        for nats_L, ids_L in zip(nats, lists, strict=True):
            if len(text) + len(ids_L) <= 60:
                expected = stream_alone(net, text, ids_L.tolist())
                torch.testing.assert_close(nats_L, expected, rtol=0, atol=1e-10)
        state = state.append_tokens(lists[0][None])
        text += lists[0].tolist()
    assert state.row_tokens(0).tolist() == text


def test_texts_are_encoded_and_one_context_serves_all(make_net):
    net = make_net(mem_len=30)
    texts = score(net, "abc", ["d", "", "ek"], vocab=Characters("abcdefghijk"))
    ids = score(net, [[0, 1, 2]] * 3, [[3], [], torch.tensor([4, 10])])
    assert [nats_L.tolist() for nats_L in texts] == [nats_L.tolist() for nats_L in ids]


def test_a_continuation_has_no_symbol_that_begins_a_document(make_net):
    words = Words.from_list(["<S>", "to", "be"], WordOptions(line_end="double_eos"))
    net = make_net(n_token=words.n_token, mem_len=30)
    [nats_L] = score(net, "to", ["be"], vocab=words)
    assert len(nats_L) == 1


def test_the_mode_of_the_network_is_restored_and_dropout_is_off(make_net):
    net = make_net(mem_len=30, dropout=0.5)
    expected = score(net, [1, 2], [[3, 4]])
    assert score(net.train(), [1, 2], [[3, 4]])[0].tolist() == expected[0].tolist()
    assert net.training


@pytest.mark.parametrize(
    ("sizes", "contexts", "continuations", "message"),
    [
        ({}, [[1], [2]], [[3]], "contexts: invalid 2; expected 1, one for each continuation"),
        ({}, [[]], [[3]], "prompt: invalid empty prompt; expected at least one token"),
        ({}, [[1]], [[11]], "candidates: invalid ids from 0 to 11; expected 0 to 10"),
        ({}, [[1]], [[-1]], "candidates: invalid ids from -1 to 0; expected 0 to 10"),
        ({"mem_len": 0}, [[1]], [[3]], "mem_len: .* has a memory, but mem_len is 0"),
        ({"positions": "absolute_sinusoidal"}, [[1]], [[3]], "but positions are absolute"),
    ],
)
def test_what_cannot_be_scored_is_one_line(make_net, sizes, contexts, continuations, message):
    with pytest.raises(ValueError, match=message):
        score(make_net(**sizes), contexts, continuations)


@pytest.mark.parametrize(
    "one", ["abc", [1, 2], torch.tensor([1, 2])], ids=["text", "ids", "tensor"]
)
def test_one_continuation_that_is_not_in_a_list_is_refused(make_net, one):
    with pytest.raises(ValueError, match="continuations: invalid one text or ids; expected a li"):
        score(make_net(), [1], one, vocab=Characters("abc"))


def test_rows_of_an_array_are_continuations(make_net):
    net = make_net()
    rows = np.array([[1, 2], [3, 4]])
    expected = score(net, [1], rows.tolist())
    for given_rows in (rows, torch.from_numpy(rows)):
        found = score(net, [1], given_rows)
        assert all(map(torch.equal, found, expected))


def test_nats_that_are_not_finite_are_an_error(make_net):
    net = make_net()
    net.head.out.bias.data.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        score(net, [1], [[2]])


@pytest.mark.parametrize("use", [{"cache_len": 20}, {"rate": 0.2}, {"cache_len": 9, "rate": 0.1}])
def test_a_reader_learns_from_the_text_before_candidates_and_from_none_of_them(make_net, use):
    net = make_net(mem_len=60)
    use = Adaptation(**use)
    state = start_scoring(net, torch.tensor([1, 2, 3, 4, 5]), None, use)
    reader = Reader(net, use)
    lists = [torch.randint(11, (4,)) for _ in range(3)]
    nats, state = score_candidates(reader, state, lists)
    again, state = score_candidates(reader, state, lists)
    for nats_L, again_L, ids_L in zip(nats, again, lists, strict=True):
        ids = torch.cat([torch.arange(1, 6), ids_L])
        # A step is taken after the first four tokens; the fifth is read with the candidates.
        expected = stream_nats(net, ids, batch_size=1, tgt_len=4, adaptation=use)[0, 4:]
        torch.testing.assert_close(nats_L, expected, rtol=0, atol=1e-10)
        assert torch.equal(nats_L, again_L)
    state = state.append_tokens(lists[0][None])
    [nats_L], _ = score_candidates(reader, state, lists[1:2])
    ids = torch.cat([torch.arange(1, 6), lists[0], lists[1]])
    expected = stream_nats(net, ids, batch_size=1, tgt_len=4, adaptation=use)[0, 8:]
    torch.testing.assert_close(nats_L, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("use", [{}, {"cache_len": 20}, {"rate": 0.2}], ids=str)
@pytest.mark.parametrize("context", [[1], [1, 2, 3]], ids=len)
def test_empty_candidates_have_no_nats(make_net, use, context):
    net = make_net(mem_len=60)
    use = Adaptation(**use)
    state = start_scoring(net, torch.tensor(context), None, use)
    reader = Reader(net, use) if use.adapts else net
    none = torch.zeros(0).long()
    nats, state = score_candidates(reader, state, [none, none])
    assert [len(nats_L) for nats_L in nats] == [0, 0]
    nats, state = score_candidates(reader, state, [none, torch.tensor([4])], batch_size=1)
    ids = torch.tensor([*context, 4])
    how = {"batch_size": 1, "tgt_len": max(len(context) - 1, 1), "adaptation": use}
    torch.testing.assert_close(nats[1], stream_nats(net, ids, **how)[0, -1:])
    assert len(nats[0]) == 0


@pytest.mark.parametrize("n_segment", [1, 2, 3])
def test_each_segment_of_a_long_context_is_learned_from_once(make_net, n_segment):
    net = make_net(mem_len=60)
    use = Adaptation(rate=0.05)
    context = torch.randint(11, (128 * n_segment + 1,))
    ids = torch.randint(11, (5,))
    state = start_scoring(net, context, None, use)
    [nats_L], _ = score_candidates(Reader(net, use), state, [ids])
    text = torch.cat([context, ids])
    expected = stream_nats(net, text, batch_size=1, tgt_len=128, adaptation=use)[0, -5:]
    torch.testing.assert_close(nats_L, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("use", [{}, {"cache_len": 3000}, {"rate": 0.01}], ids=str)
def test_a_long_session_keeps_few_tokens_and_scores_as_if_it_kept_all(make_net, monkeypatch, use):
    net = make_net()
    use = Adaptation(**use)
    lists = [torch.randint(11, (700,)) for _ in range(4)]

    def run():
        state = start_scoring(net, torch.tensor([1]), None, use)
        reader = Reader(net, use) if use.adapts else net
        for ids in lists:
            nats, state = score_candidates(reader, state, [ids[:9]])
            state = state.append_tokens(ids[None])
        return nats[0], state

    nats_L, state = run()
    assert len(state) <= KEPT + 701
    assert state.length_B.tolist() == [2801]
    assert state.row_tokens(0).tolist() == torch.cat(lists)[-len(state) :].tolist()
    monkeypatch.setattr(DecodingState, "drop_read", lambda state: state)
    expected_L, whole = run()
    assert torch.equal(nats_L, expected_L)
    assert len(whole) == 2801


def test_a_session_goes_on_as_text_but_no_penalty_reaches_what_was_dropped(make_net, monkeypatch):
    net = make_net()
    state = start_scoring(net, torch.randint(11, (1500,)), None)
    _, state = score_candidates(net, state, [])
    steps = {"temperature": 0, "repetition_penalty": 1.5}
    with pytest.raises(ValueError, match=r"penalty_window: invalid 1400; expected at most 1025, "):
        next(decode_steps(net, state, 1, Sampling(penalty_window=1400, **steps)))
    *_, after = decode_steps(net, state, 9, Sampling(**steps, penalty_window=1000))
    assert after.length_B.tolist() == [1509]


@pytest.mark.parametrize("use", [{}, {"cache_len": 50}], ids=str)
def test_a_saved_state_goes_on_as_if_it_had_been_kept(make_net, tmp_path, use):
    net = make_net()
    use = Adaptation(**use)
    candidates = [torch.tensor([4, 5]), torch.tensor([6])]
    start = start_scoring(net, torch.randint(11, (1500,)), None, use)
    _, state = score_candidates(net, start, [])
    for each in (state, state.append_tokens(torch.tensor([[7, 8]])), start):
        torch.save(each.tensors(), tmp_path / "state.pt")
        saved = torch.load(tmp_path / "state.pt", weights_only=True)
        again = start_scoring(net, torch.tensor([0]), None, use).restore(saved)
        expected, actual = (score_candidates(net, one, candidates)[0] for one in (each, again))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
