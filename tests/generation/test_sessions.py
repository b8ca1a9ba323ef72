"""Nats of sessions are those of stream_nats, in whatever parts and beside whatever others."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, make_dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import Adaptation, Sessions, TransformerXLConfig, generate, networks, stream_nats
from txl_lightning.data.vocab import Bytes, Characters
from txl_lightning.errors import CheckpointError, DataError, NonFiniteError
from txl_lightning.generation import join_words, reading_on
from txl_lightning.generation.session_file import hash_network

LETTERS = Characters("abcdefghijk")
TEXT = "abcdefghijkabcabcabbakekhgfedcbacafebabe" * 4
SMALL = {"n_token": 11, "n_layer": 2, "d_model": 8}
CONFIGS = {
    "TransformerXL": TransformerXLConfig(**SMALL, n_head=2, mem_len=6),
    "mem_len+1": TransformerXLConfig(**SMALL, n_head=2, mem_len=6, same_length="mem_len+1"),
    "clusters, clamp_len": TransformerXLConfig(
        **SMALL, n_head=2, mem_len=9, clamp_len=4, cutoffs=(4, 8)
    ),
    "LSTM": networks.LSTMConfig(**SMALL),
    "GatedDeltaNet": networks.GatedDeltaNetConfig(**SMALL, chunk_len=5),
    "Mamba2": networks.Mamba2Config(**SMALL, d_head=4, d_state=6, chunk_len=5),
    "RMT": networks.RecurrentMemoryTransformerConfig(**SMALL, n_memory=3, unit_len=5),
    "Compressive": networks.CompressiveTransformerConfig(
        **SMALL, unit_len=4, n_state=4, n_compressed=3, rate=2
    ),
}
ADAPTATIONS = [
    Adaptation(),
    Adaptation(cache_len=20),
    Adaptation(rate=0.05, decay=0.1),
    Adaptation(cache_len=20, rate=0.05),
]
STEP_LEN = 16


def build(name: str):
    """Return a network in float64 whose parameters differ from their initial values."""
    net = CONFIGS[name].build().double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return net


@pytest.fixture
def net():
    return build("TransformerXL")


def stream_alone(net, text: str, adaptation=ADAPTATIONS[0]) -> list[float]:
    """Return the nats of all tokens but the first, read in segments of STEP_LEN."""
    is_ours = hasattr(net.config, "same_length") and net.config.same_length is None
    how = {"same_length": "mem_len"} if is_ours else {}
    ids = LETTERS.encode_text(text)
    how |= {"batch_size": 1, "tgt_len": STEP_LEN, "adaptation": adaptation}
    return stream_nats(net, ids, **how)[0].tolist()


def assert_scored(tokens, text, expected):
    assert "".join(token.text for token in tokens) == text
    assert [(token.start, token.stop) for token in tokens] == [(n, n + 1) for n in range(len(text))]
    assert tokens[0].nats is None
    actual = [token.nats for token in tokens[1:]]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def assert_same(tokens, others):
    """Assert that tokens and their places are equal, and nats but for the order of sums."""
    assert [token._replace(nats=0) for token in tokens] == [
        token._replace(nats=0) for token in others
    ]
    nats = [[token.nats for token in each] for each in (tokens, others)]
    assert nats[0] == pytest.approx(nats[1], abs=1e-9)


PARTS = st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), max_size=8)


@pytest.mark.parametrize("name", CONFIGS)
def test_nats_do_not_depend_on_parts_nor_on_other_sessions(name):
    net = build(name)
    texts = [TEXT[:70], TEXT[5:60], TEXT[3:40]]
    expected = [stream_alone(net, text) for text in texts]

    @settings(max_examples=3)
    @given(PARTS)
    def check(sizes):
        sessions = Sessions(net, LETTERS)
        three = [sessions.open() for _ in texts]
        tokens = [[], [], []]
        for sizes_3 in [*sizes, [99, 99, 99]]:
            begins = [len(each) for each in tokens]
            triples = zip(texts, begins, sizes_3, strict=True)
            parts = [text[begin : begin + size] for text, begin, size in triples]
            for each, new in zip(tokens, sessions.feed_each(three, parts), strict=True):
                each += new
        for each, text, nats in zip(tokens, texts, expected, strict=True):
            assert_scored(each, text, nats)

    check()


@pytest.mark.parametrize("adaptation", ADAPTATIONS, ids=Adaptation.describe)
@pytest.mark.parametrize("part_len", [1, 7, 40, 160])
def test_a_session_that_adapts_has_the_nats_of_evaluation(net, adaptation, part_len):
    sessions = Sessions(net, LETTERS, step_len=STEP_LEN)
    session = sessions.open(adaptation)
    parts = [TEXT[n : n + part_len] for n in range(0, len(TEXT), part_len)]
    tokens = [token for part in parts for token in session.feed(part)]
    assert_scored(tokens, TEXT, stream_alone(net, TEXT, adaptation))


def test_nats_in_float32_are_within_the_tolerance_of_the_page(net):
    net = net.float()
    sessions = Sessions(net, LETTERS)
    both = [sessions.open(), sessions.open()]
    found = [[], []]
    for n in range(0, len(TEXT), 9):
        for each, new in zip(found, sessions.feed_each(both, [TEXT[n : n + 9]] * 2), strict=True):
            each += new
    for tokens in found:
        actual = [token.nats for token in tokens[1:]]
        torch.testing.assert_close(actual, stream_alone(net, TEXT), rtol=1e-5, atol=1e-5)


def test_sessions_that_learn_change_neither_the_network_nor_each_other(net):
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    sessions = Sessions(net, LETTERS, step_len=STEP_LEN)
    learning = Adaptation(rate=0.05)
    first = sessions.open(learning)
    second = sessions.open(learning)
    plain = sessions.open()
    other = TEXT[::-1]
    found = sessions.feed_each([first, second, plain], [TEXT, other, TEXT])
    assert_scored(found[0], TEXT, stream_alone(net, TEXT, learning))
    assert_scored(found[1], other, stream_alone(net, other, learning))
    assert_scored(found[2], TEXT, stream_alone(net, TEXT))
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("adaptation", [ADAPTATIONS[0], ADAPTATIONS[3]], ids=Adaptation.describe)
def test_a_restored_session_goes_on_as_the_one_that_was_saved(name, adaptation, tmp_path):
    net = build(name)
    sessions = Sessions(net, LETTERS, step_len=STEP_LEN)
    session = sessions.open(adaptation)
    session.save(tmp_path / "new.safetensors")
    session.feed(TEXT[:45])
    session.save(tmp_path / "old.safetensors")
    others = Sessions(net, LETTERS, step_len=STEP_LEN)
    restored = others.restore(tmp_path / "old.safetensors")
    assert_same(restored.feed(TEXT[45:]), session.feed(TEXT[45:]))
    assert restored.generate(9, seed=1) == session.generate(9, seed=1)
    # A session that was saved before its first token begins a text.
    new = others.restore(tmp_path / "new.safetensors")
    assert_same(new.feed(TEXT), others.open(adaptation).feed(TEXT))


def test_text_that_waits_is_saved_and_continued(tmp_path):
    net = TransformerXLConfig(**SMALL | {"n_token": 256}, n_head=2, mem_len=6).build().eval()
    sessions = Sessions(net, Bytes())
    session = sessions.open()
    assert len(session.feed("aé".encode()[:2])) == 1
    session.save(tmp_path / "x.safetensors")
    restored = sessions.restore(tmp_path / "x.safetensors")
    assert [token.text for token in restored.feed("é".encode()[1:])] == ["", "é"]
    with pytest.raises(ValueError, match="1 bytes of a character; expected its other bytes"):
        session.flush()


def test_generation_is_that_of_the_whole_text_and_changes_nothing(net):
    sessions = Sessions(net, LETTERS)
    session = sessions.open()
    session.feed(TEXT[:4])
    assert session.generate(6, seed=3) == generate(net, TEXT[:4], 6, vocab=LETTERS, seed=3)
    tokens = session.feed(TEXT[4:30])
    expected = stream_alone(net, TEXT[:30])[3:]
    torch.testing.assert_close([token.nats for token in tokens], expected, rtol=0, atol=1e-10)


def test_a_session_keeps_as_much_after_a_long_text_as_after_a_short_one(net, tmp_path):
    session = Sessions(net, LETTERS).open()
    sizes = []
    for _ in range(3):
        for _ in range(9):
            session.feed(TEXT)
        session.save(tmp_path / "x.safetensors")
        sizes.append((tmp_path / "x.safetensors").stat().st_size)
        assert session.state.memory.slots.capacity <= 2000
    assert sizes[1] == pytest.approx(sizes[2], abs=64)


def test_after_an_error_a_session_is_what_it_was(net):
    sessions = Sessions(net, LETTERS, step_len=STEP_LEN)
    session = sessions.open(Adaptation(rate=0.05))
    session.feed(TEXT[:20])
    with pytest.raises(DataError, match="'X' is not among"):
        session.feed("abX")
    assert_scored(
        sessions.open(Adaptation(rate=0.05)).feed(TEXT[:20]) + session.feed(TEXT[20:]),
        TEXT,
        stream_alone(net, TEXT, Adaptation(rate=0.05)),
    )


def test_steps_before_an_error_are_undone(net, monkeypatch):
    sessions = Sessions(net, LETTERS, step_len=STEP_LEN)
    session = sessions.open(Adaptation(rate=0.05))
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda x: torch.zeros_like(x, dtype=bool))
    with pytest.raises(NonFiniteError, match="the nats are not finite"):
        session.feed(TEXT[:50])
    monkeypatch.undo()
    expected = stream_alone(net, TEXT, Adaptation(rate=0.05))
    assert_scored(session.feed(TEXT), TEXT, expected)


def test_threads_that_feed_sessions_get_the_same_nats(net):
    sessions = Sessions(net, LETTERS)
    texts = [TEXT[n : n + 80] for n in range(8)]
    opened = [sessions.open() for _ in texts]

    def feed(session, text):
        return [token for n in range(0, 80, 5) for token in session.feed(text[n : n + 5])]

    with ThreadPoolExecutor(8) as pool:
        results = [*pool.map(feed, opened, texts)]
    for tokens, text in zip(results, texts, strict=True):
        assert_scored(tokens, text, stream_alone(net, text))


def test_threads_that_feed_one_session_lose_no_part(net):
    sessions = Sessions(net, LETTERS)
    both = [sessions.open(), sessions.open()]
    # In opposite orders, so that locks taken in the order given would wait for each other.
    orders = [both, both[::-1]] * 20
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda order: sessions.feed_each(order, ["abc", "abc"]), orders)]
    starts = sorted(tokens[0].start for pair in results for tokens in pair)
    assert starts == sorted([*range(0, 120, 3)] * 2)


def test_a_session_holds_no_memory_of_the_others_it_was_read_with(net):
    sessions = Sessions(net, LETTERS)
    three = [sessions.open() for _ in range(3)]
    sessions.feed_each(three, [TEXT[:9], TEXT[:5], TEXT[:9]])
    for session in three:
        for k_BCHK, v_BCHK in session.state.memory.slots.layers:
            assert k_BCHK.untyped_storage().nbytes() == k_BCHK.nbytes
            assert v_BCHK.untyped_storage().nbytes() == v_BCHK.nbytes


def test_texts_of_many_lengths_are_read_in_few_calls(net, monkeypatch):
    sizes = []
    score = reading_on.score_next
    monkeypatch.setattr(
        reading_on, "score_next", lambda *args: sizes.append(args[2]) or score(*args)
    )
    sessions = Sessions(net, LETTERS)
    many = [sessions.open() for _ in range(20)]
    sessions.feed_each(many, [TEXT[:n] for n in range(10, 30)])
    assert sizes == [16, 8, 4, 2, 1]
    sizes.clear()
    sessions.feed_each(many, [TEXT[:9]] * 20)
    assert sizes == [9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("weights", "other weights: invalid"),
        ("vocabulary", "other vocabulary: invalid"),
        ("mem_len", "other mem_len: invalid 6; expected 5"),
        ("damage", "cannot be read"),
        ("missing", "cannot be read"),
    ],
)
def test_a_state_of_something_else_is_refused(net, tmp_path, change, message):
    path = tmp_path / "x.safetensors"
    session = Sessions(net, LETTERS).open()
    session.feed(TEXT)
    session.save(path)
    vocab = Characters("abcdefghijl") if change == "vocabulary" else LETTERS
    if change == "weights":
        with torch.no_grad():
            next(net.parameters())[0, 0] += 1e-9
    if change == "damage":
        path.write_bytes(path.read_bytes()[:-9])
    if change == "missing":
        path.unlink()
    others = Sessions(net, vocab, mem_len=5 if change == "mem_len" else None)
    with pytest.raises(CheckpointError, match=message):
        others.restore(path)


def test_a_setting_that_a_later_version_adds_counts_if_it_is_not_the_default(net):
    before = hash_network(net)
    # A later class of this name.
    added = [("added", int, 0)]
    later = make_dataclass("TransformerXLConfig", added, bases=(TransformerXLConfig,), frozen=True)
    net.config = later(**asdict(net.config))
    assert hash_network(net) == before
    net.config = replace(net.config, added=1)
    assert hash_network(net) != before


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"mem_len": 0}, "expected a network that has a memory, but mem_len is 0"),
        ({"mem_len": 6, "positions": "absolute_sinusoidal"}, "but positions are absolute"),
        ({"mem_len": 6, "memory_source": "same_layer"}, "but memory_source is same_layer"),
    ],
)
def test_a_network_whose_nats_depend_on_parts_is_refused(make_net, sizes, message):
    with pytest.raises(ValueError, match=message):
        Sessions(make_net(**sizes), LETTERS)


def test_a_vocabulary_larger_than_the_network_is_refused(net):
    with pytest.raises(ValueError, match="vocab: invalid 256; expected at most the 11 tokens"):
        Sessions(net, Bytes())


def test_a_state_after_reading_keeps_no_storage_of_what_was_read(net):
    session = Sessions(net, LETTERS).open()
    session.feed("a" * 5000)
    tokens_BL = session.state.tokens_BL
    assert tokens_BL.untyped_storage().nbytes() == tokens_BL.nbytes


def test_other_numbers_of_parts_and_a_session_twice_or_of_others_are_refused(net):
    sessions = Sessions(net, LETTERS)
    session = sessions.open()
    with pytest.raises(ValueError, match="parts: invalid 2; expected 1, one for each session"):
        sessions.feed_each([session], ["a", "b"])
    with pytest.raises(ValueError, match="parts: invalid one text or ids; expected a list"):
        sessions.feed_each([session], "a")
    with pytest.raises(ValueError, match="sessions: invalid one session twice"):
        sessions.feed_each([session, session], ["a", "b"])
    with pytest.raises(ValueError, match="sessions: invalid one of other Sessions"):
        Sessions(net, LETTERS).feed_each([session], ["a"])
    with pytest.raises(ValueError, match="text: invalid none; expected a token at least"):
        session.generate(3)


def test_words_have_the_space_before_them_and_the_sum_of_nats():
    net = TransformerXLConfig(**SMALL | {"n_token": 256}, n_head=2, mem_len=6).build().eval()
    tokens = Sessions(net, Bytes()).open().feed("to be  or")
    words = join_words(tokens)
    assert [word.text for word in words] == ["to", " be", "  or"]
    assert [(word.start, word.stop) for word in words] == [(0, 2), (2, 5), (5, 9)]
    assert words[1].nats == pytest.approx(sum(token.nats for token in tokens[2:5]))
