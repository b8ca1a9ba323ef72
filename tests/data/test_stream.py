"""One long text, read in rows that continue."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data.lengths import Fixed, Varied
from txl_lightning.data.orders import InOrder, Rolled, Shuffled
from txl_lightning.data.stream import (
    Chunked,
    EvaluationLoader,
    Repeated,
    Stream,
    TrainingLoader,
    check_length,
)
from txl_lightning.data.tokens import Text

SIZES = [(9, 1, 4), (41, 4, 3), (43, 4, 3), (120, 2, 63), (130, 2, 1), (10, 5, 8)]


def as_the_original(ids, batch_size, tgt_len, ext_len):
    """The original's rule, one token at a time: each row's tokens and targets in each segment."""
    n_step = len(ids) // batch_size
    for start in range(0, n_step - 1, tgt_len):
        length = min(tgt_len, n_step - 1 - start)
        yield [
            (
                [
                    int(ids[row * n_step + i])
                    for i in range(max(0, start - ext_len), start + length)
                ],
                [int(ids[row * n_step + start + i + 1]) for i in range(length)],
            )
            for row in range(batch_size)
        ]


@pytest.mark.parametrize("ext_len", [0, 1, 4, 63, 99])
@pytest.mark.parametrize(("n_token", "batch_size", "tgt_len"), SIZES)
def test_it_is_the_originals_iterator(n_token, batch_size, tgt_len, ext_len):
    ids = np.arange(n_token)
    stream = Stream.of(ids, batch_size, tgt_len, ext_len)
    expected = list(as_the_original(ids, batch_size, tgt_len, ext_len))
    assert len(stream) == len(expected)
    for index, rows in enumerate(expected):
        segment = stream.segment(index)
        tokens, targets = map(list, zip(*rows, strict=True))
        assert segment.tokens_BL.tolist() == tokens
        scored = segment.targets_BL[segment.scored_BL]
        assert scored.view(batch_size, -1).tolist() == targets
        assert segment.n_scored == batch_size * segment.new_len == scored.numel()


@st.composite
def streams(draw):
    """Any way of reading any text of documents; every token is its own place."""
    n_token = draw(st.integers(40, 200))
    cuts = draw(st.sets(st.integers(1, n_token - 1), max_size=12))
    text = Text(np.arange(n_token), np.array([0, *sorted(cuts)]))
    seed, tgt_len = draw(st.integers(0, 99)), draw(st.integers(1, 50))
    lengths = draw(st.sampled_from([Fixed(tgt_len), Varied(max(tgt_len, 5), seed)]))
    batch_size = draw(st.sampled_from([1, 2, 6]))
    orders = [InOrder(text), Rolled(text, seed), Shuffled(text, seed)]
    order = draw(st.sampled_from(orders))
    warmup_len = draw(st.integers(0, 30)) if order is orders[0] else 0
    ext_len = draw(st.sampled_from([0, 1, 7, 60]))
    return Stream(text, batch_size, lengths, order, warmup_len, ext_len)


def segments_of(stream: Stream, n_pass: int = 1) -> list:
    """The segments of the first few passes."""
    count = sum(stream.lengths.count(stream.total, nth) for nth in range(n_pass))
    return [stream.segment(index) for index in range(count)]


def joined(segments, name: str) -> torch.Tensor:
    """One field of all segments, in rows, without what is read again."""
    return torch.cat([getattr(segment, name)[:, segment.reread :] for segment in segments], dim=1)


@settings(deadline=None, max_examples=150)
@given(streams())
def test_rows_continue_from_segment_to_segment(stream):
    segments = segments_of(stream)
    tokens, targets = joined(segments, "tokens_BL"), joined(segments, "targets_BL")
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert tokens.shape == (stream.batch_size, stream.total)


@settings(deadline=None, max_examples=150)
@given(streams())
def test_a_segment_begins_with_the_last_tokens_of_the_one_before_unscored(stream):
    segments = segments_of(stream, 2)
    assert segments[0].reread == segments[-1].again == 0
    for before, segment in itertools.pairwise(segments):
        n_read = before.n_target // stream.batch_size % stream.total
        assert before.again == segment.reread == min(stream.ext_len, n_read)
        assert not segment.scored_BL[:, : segment.reread].any()
        held = before.tokens_BL.size(1)
        for name in ("tokens_BL", "targets_BL", "past_BL"):
            found = getattr(segment, name)[:, : segment.reread]
            assert torch.equal(found, getattr(before, name)[:, held - before.again :])


@settings(deadline=None, max_examples=150)
@given(streams())
def test_every_token_is_scored_once_but_those_that_nothing_stands_before(stream):
    segments = segments_of(stream)
    scored = torch.cat([s.targets_BL[s.scored_BL] for s in segments]).tolist()
    assert len(scored) == len(set(scored))
    read = set(range(stream.row_len * stream.batch_size))
    text, row_len = stream.tokens, stream.row_len
    if isinstance(stream.order, Shuffled):
        first = len(text.starts) + stream.batch_size
        assert len(scored) >= len(read) - first
        assert not set(scored) & set(text.starts.tolist())
    else:
        unscored = set(text.starts.tolist()) | {0}
        if not stream.warmup_len:
            unscored |= set(range(0, len(read), row_len))
        if isinstance(stream.order, Rolled):
            missed = read - unscored - set(scored)
            assert len(missed) <= stream.batch_size
        else:
            assert set(scored) == read - unscored


@settings(deadline=None, max_examples=150)
@given(streams())
def test_past_counts_the_tokens_of_the_same_text_before_each(stream):
    segments = segments_of(stream)
    tokens, past = joined(segments, "tokens_BL"), joined(segments, "past_BL")
    starts = set(stream.tokens.starts.tolist())
    for row, counts in zip(tokens.tolist(), past.tolist(), strict=True):
        for place, (token, count) in enumerate(zip(row, counts, strict=True)):
            assert row[place - count : place + 1] == list(range(token - count, token + 1))
            assert not starts & set(range(token - count + 1, token + 1))
            begins = token in starts or place == 0
            assert (count == 0) or not begins


@settings(deadline=None, max_examples=100)
@given(streams(), st.sampled_from([1, 2, 3, 6]))
def test_ranks_together_read_what_one_process_reads(stream, world_size):
    if stream.batch_size % world_size:
        world_size = 1
    ranks = [replace(stream, rank=rank, world_size=world_size) for rank in range(world_size)]
    for index, whole in enumerate(segments_of(stream, 2)):
        parts = [rank.segment(index) for rank in ranks]
        for name in ("tokens_BL", "targets_BL", "past_BL", "scored_BL"):
            assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
        assert {part.n_target for part in parts} == {whole.n_target}
        assert whole.n_scored == whole.scored_BL.sum()
        assert all(part.n_scored == pytest.approx(whole.n_scored / world_size) for part in parts)


@settings(deadline=None, max_examples=100)
@given(streams(), st.sampled_from([(1, 2), (1, 6), (2, 3), (3, 2), (2, 1)]), st.integers(0, 3))
def test_chunks_of_all_ranks_together_are_what_one_process_reads(stream, shared, n_repeated):
    world_size, n_chunk = shared if stream.batch_size == 6 else (1, stream.batch_size)
    ranks = [replace(stream, rank=rank, world_size=world_size) for rank in range(world_size)]
    repeat = (lambda part: Repeated(part, n_repeated)) if n_repeated else (lambda part: part)
    readings = [Chunked(repeat(rank), n_chunk, stream.batch_size) for rank in ranks]
    n_target = 0
    for index in range(len(stream) + 3):
        whole = repeat(stream).segment(index)
        steps = range(index * n_chunk, (index + 1) * n_chunk)
        chunks = [[reading.segment(step) for step in steps] for reading in readings]
        parts = [chunk for rank in chunks for chunk in rank]
        for name in ("tokens_BL", "targets_BL", "past_BL", "scored_BL"):
            assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
        assert {len(part.tokens_BL) for part in parts} == {stream.batch_size // len(parts)}
        assert all(part.n_scored == pytest.approx(whole.n_scored / len(parts)) for part in parts)
        for together in zip(*chunks, strict=True):
            n_target += sum(len(part.targets_BL) * part.new_len for part in together)
            assert {part.n_target for part in together} == {n_target}
        assert n_target == whole.n_target
        assert {part.index for part in parts} == {index}
        assert {(part.reread, part.again) for part in parts} == {(whole.reread, whole.again)}
        assert [part.chunk for part in chunks[0]] == list(range(n_chunk))
        assert [part.is_whole for part in chunks[0]] == [False] * (n_chunk - 1) + [True]


def test_a_segment_is_read_once_for_all_its_chunks():
    class Counted(Stream):
        def segment(self, index):
            read.append(index)
            return super().segment(index)

    read = []
    reading = Chunked(Counted(Text(np.arange(60)), 4, Fixed(5)), 4, 4)
    for index in range(9):
        reading.segment(index)
    assert read == [0, 1, 2]


@pytest.mark.parametrize("stop", range(8))
@pytest.mark.parametrize(("was", "now"), [(1, 2), (2, 2), (2, 1), (4, 2), (2, 4)])
def test_a_stop_between_chunks_is_followed_by_the_first_chunk_however_many(stop, was, now):
    stream = Stream.of(np.arange(200), 4, 4)
    first, second = (TrainingLoader(Chunked(stream, n_chunk, 4)) for n_chunk in (was, now))
    for segment in itertools.islice(first, stop):
        first.commit(segment)
    second.load_state_dict(first.state_dict())
    segment = next(iter(second))
    assert (segment.index, segment.chunk) == (stop // was, 0)
    assert segment.tokens_BL[0, 0] == 4 * (stop // was)


@settings(deadline=None, max_examples=100)
@given(streams(), st.lists(st.integers(0, 12), max_size=5))
def test_any_interruption_gives_the_same_segments(stream, stops):
    expected = [stream.segment(index) for index in range(sum(stops) + 3)]
    found, position = [], TrainingLoader(stream).state_dict()
    for stop in (*stops, 3):
        loader = TrainingLoader(stream)
        loader.load_state_dict(position)
        reading = iter(loader)
        for _ in range(stop):
            segment = next(reading)
            found.append(segment)
            loader.commit(segment)
        next(reading)
        position = loader.state_dict()
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.tokens_BL, b.tokens_BL)
        assert torch.equal(a.past_BL, b.past_BL)
        assert (a.index, a.n_target, a.again) == (b.index, b.n_target, b.again)


@settings(deadline=None, max_examples=60)
@given(streams())
def test_targets_are_counted_exactly(stream):
    segments = segments_of(stream, 2)
    counts = np.cumsum([len(s.targets_BL) * s.new_len for s in segments])
    assert [segment.n_target for segment in segments] == counts.tolist()


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(0, 40))
def test_a_segment_is_the_same_however_it_is_come_upon(stream, index):
    fresh = replace(stream)
    later = stream.segment(index + 7)
    assert torch.equal(fresh.segment(index).tokens_BL, stream.segment(index).tokens_BL)
    assert torch.equal(fresh.segment(index + 7).tokens_BL, later.tokens_BL)


def test_rows_are_fresh_where_a_pass_begins():
    stream = Stream.of(np.arange(20), 2, 4)
    reading = itertools.islice(TrainingLoader(stream), 7)
    fresh = [(segment.past_BL[:, 0] == 0).tolist() for segment in reading]
    assert fresh == [[True] * 2, [False] * 2, [False] * 2] * 2 + [[True] * 2]


def test_a_rolled_row_starts_elsewhere_in_each_pass_and_nothing_is_seen_across_its_seam():
    text = Text(np.arange(60))
    stream = Stream(text, 3, Fixed(19), Rolled(text, seed=1))
    starts = torch.stack([stream.segment(n).tokens_BL[:, 0] for n in range(4)])
    assert (starts // 20 == torch.arange(3)).all()
    assert len({tuple(row) for row in starts.tolist()}) == 4
    segment = stream.segment(0)
    seam = segment.tokens_BL % 20 == 0
    assert (segment.past_BL[seam] == 0).all()
    assert not segment.scored_BL[segment.targets_BL % 20 == 0].any()


def test_shuffled_documents_come_whole_and_in_another_order_in_each_pass():
    text = Text(np.arange(60), np.arange(0, 60, 5))
    stream = Stream(text, 1, Fixed(59), Shuffled(text, seed=1))
    orders = []
    for n_pass in range(3):
        tokens = stream.segment(n_pass).tokens_BL[0].tolist()
        documents = [tokens[i : i + 5] for i in range(0, 55, 5)]
        assert all(d == list(range(d[0], d[0] + 5)) and d[0] % 5 == 0 for d in documents)
        orders.append(tuple(d[0] for d in documents))
    assert len(set(orders)) == 3


def test_documents_without_tokens_are_not_in_the_way():
    text = Text(np.arange(12), np.array([0, 0, 4, 4, 4, 9, 12]))
    stream = Stream(text, 1, Fixed(11), Shuffled(text, seed=3))
    segment = stream.segment(0)
    tokens = [*segment.tokens_BL[0].tolist(), segment.targets_BL[0, -1].item()]
    assert sorted(tokens) == list(range(12))
    assert text.depth(np.arange(12)).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2]


def test_warm_up_reads_what_stands_before_a_row_and_nothing_before_the_text():
    stream = Stream(Text(np.arange(40)), 4, Fixed(7), warmup_len=13)
    segments = segments_of(stream)
    tokens, past = joined(segments, "tokens_BL"), joined(segments, "past_BL")
    scored = joined(segments, "scored_BL")
    assert tokens[2].tolist() == list(range(7, 29))
    assert tokens[3].tolist() == list(range(17, 39))
    assert past[2].tolist() == list(range(22))
    # The second row has only ten tokens before it; the first one none.
    assert past[1].tolist() == [0, 0, 0, *range(19)]
    assert past[0].tolist() == [0] * 13 + list(range(9))
    assert scored.sum(dim=1).tolist() == [9, 10, 10, 10]


@pytest.mark.parametrize("tgt_len", [5, 6, 64, 512])
def test_varied_segments_are_the_originals(tgt_len):
    ends = Varied(tgt_len, seed=0).ends(200_000, 0)
    lengths = np.diff(ends, prepend=0)[:-1]
    assert lengths.min() >= 5
    assert lengths.max() <= tgt_len + 15
    if tgt_len >= 64:
        halved = lengths < 0.75 * tgt_len
        assert 0.02 < halved.mean() < 0.08
        assert abs(lengths[~halved].mean() - tgt_len) < 2
        assert 3 < lengths[~halved].std() < 7


def test_what_was_fetched_but_not_learnt_from_is_read_again():
    loader = TrainingLoader(Stream.of(np.arange(50), 3, 4))
    reading = iter(loader)
    loader.commit(next(reading))
    next(reading)
    assert loader.state_dict()["consumed"] == 1


def test_a_text_that_is_too_short_is_refused_with_the_arithmetic():
    said = r"a\.txt, train: 79 tokens are too few for 8 rows of 9 \+ 1 \(8 x 10 = 80\); give more"
    with pytest.raises(ValueError, match=said):
        check_length("a.txt, train", Stream.of(np.arange(79), 8, 9), 9, "give more")
    assert check_length("a.txt, train", Stream.of(np.arange(80), 8, 9), 9, "give more") is None


@pytest.mark.parametrize(
    "changes", [{"tgt_len": 5}, {"ext_len": 2}, {"order": "rolled", "seed": 1}], ids=str
)
def test_a_text_read_in_another_way_starts_from_its_beginning(changes):
    stream, how = Stream.of(np.arange(50), 3, 4), {"tgt_len": 4, "order": "ordered"}
    loader = TrainingLoader(stream, how)
    loader.commit(next(iter(loader)))
    other = TrainingLoader(stream, how | changes)
    with pytest.warns(UserWarning, match="reading from the start of the text"):
        other.load_state_dict(loader.state_dict())
    assert next(iter(other)).index == 0


def test_a_state_that_knows_of_nothing_read_again_goes_on():
    loader = TrainingLoader(Stream.of(np.arange(50), 3, 4), {"tgt_len": 4, "ext_len": 0})
    loader.load_state_dict({"consumed": 2, "read_as": {"tgt_len": 4}})
    assert next(iter(loader)).index == 2


def test_the_last_of_repeated_segments_is_followed_by_the_first():
    repeated = Repeated(Stream.of(np.arange(50), 3, 4, ext_len=3), 2)
    segments = [repeated.segment(index) for index in range(5)]
    assert [segment.reread for segment in segments] == [0, 3, 0, 3, 0]
    assert [segment.again for segment in segments] == [3, 0, 3, 0, 3]


def test_repeated_segments_come_again_and_count_on():
    stream = Stream.of(np.arange(50), 3, 4)
    segments = [Repeated(stream, 2).segment(index) for index in range(5)]
    assert [segment.tokens_BL[0, 0].item() for segment in segments] == [0, 4, 0, 4, 0]
    assert [segment.n_target for segment in segments] == [12, 24, 36, 48, 60]
    assert [segment.index for segment in segments] == list(range(5))
    assert [segment.past_BL[0, 0].item() for segment in segments] == [0, 4, 0, 4, 0]


def test_an_evaluation_starts_from_the_beginning_each_time():
    loader = EvaluationLoader(Stream.of(np.arange(50), 3, 4))
    assert [s.index for s in loader] == [s.index for s in loader] == list(range(len(loader)))
