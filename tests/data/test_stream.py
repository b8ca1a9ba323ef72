"""One long text, read in rows that continue."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data import DataError, OrderedStream
from txl_lightning.data.stream import EvaluationLoader, TrainingLoader, check_length

SIZES = [(9, 1, 4), (41, 4, 3), (43, 4, 3), (120, 2, 63), (130, 2, 1), (10, 5, 8)]


def as_the_original(ids, batch_size, tgt_len):
    """The original's rule, one token at a time: (row, token, target) for each segment."""
    n_step = len(ids) // batch_size
    for start in range(0, n_step - 1, tgt_len):
        length = min(tgt_len, n_step - 1 - start)
        yield [
            [
                (ids[row * n_step + start + i], ids[row * n_step + start + i + 1])
                for i in range(length)
            ]
            for row in range(batch_size)
        ]


@pytest.mark.parametrize(("n_token", "batch_size", "tgt_len"), SIZES)
def test_it_is_the_originals_iterator(n_token, batch_size, tgt_len):
    ids = np.arange(n_token)
    stream = OrderedStream(ids, batch_size, tgt_len)
    expected = list(as_the_original(ids, batch_size, tgt_len))
    assert len(stream) == len(expected)
    for index, rows in enumerate(expected):
        segment = stream.segment(index)
        pairs = torch.stack([segment.tokens_BL, segment.targets_BL], dim=-1)
        assert pairs.tolist() == [[list(map(int, pair)) for pair in row] for row in rows]


@settings(deadline=None, max_examples=60)
@given(
    batch_size=st.integers(1, 7),
    row_len=st.integers(2, 40),
    rest=st.integers(0, 6),
    tgt_len=st.integers(1, 50),
)
def test_rows_joined_give_back_the_text_and_each_target_is_scored_once(
    batch_size, row_len, rest, tgt_len
):
    ids = np.arange(batch_size * row_len + min(rest, batch_size - 1))
    stream = OrderedStream(ids, batch_size, tgt_len)
    segments = list(EvaluationLoader(stream))
    rows = torch.cat([segment.tokens_BL for segment in segments], dim=1)
    last = segments[-1].targets_BL[:, -1:]
    assert torch.cat([rows, last], dim=1).flatten().tolist() == list(range(batch_size * row_len))
    targets = torch.cat([segment.targets_BL for segment in segments], dim=1)
    assert targets.numel() == stream.n_scored == len(set(targets.flatten().tolist()))


@settings(deadline=None, max_examples=40)
@given(world_size=st.sampled_from([1, 2, 3, 6]), tgt_len=st.integers(1, 9))
def test_ranks_together_read_what_one_process_reads(world_size, tgt_len):
    ids = np.arange(6 * 11)
    whole = OrderedStream(ids, 6, tgt_len)
    parts = [OrderedStream(ids, 6, tgt_len, rank, world_size) for rank in range(world_size)]
    for index in range(2 * len(whole)):
        joined = torch.cat([part.segment(index).tokens_BL for part in parts])
        assert torch.equal(joined, whole.segment(index).tokens_BL)


def test_rows_are_fresh_where_a_pass_begins():
    stream = OrderedStream(np.arange(20), 2, 4)
    fresh = [segment.fresh_B.tolist() for segment in itertools.islice(TrainingLoader(stream), 7)]
    assert fresh == [[True] * 2, [False] * 2, [False] * 2] * 2 + [[True] * 2]


@settings(deadline=None, max_examples=40)
@given(stops=st.lists(st.integers(0, 12), max_size=5))
def test_any_interruption_gives_the_same_segments(stops):
    stream = OrderedStream(np.arange(50), 3, 4)
    expected = [stream.segment(index).tokens_BL for index in range(sum(stops) + 3)]
    found, state = [], TrainingLoader(stream).state_dict()
    for stop in (*stops, 3):
        loader = TrainingLoader(stream)
        loader.load_state_dict(state)
        reading = iter(loader)
        for _ in range(stop):
            segment = next(reading)
            found.append(segment.tokens_BL)
            loader.commit(segment)
        next(reading)
        state = loader.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_what_was_fetched_but_not_learnt_from_is_read_again():
    loader = TrainingLoader(OrderedStream(np.arange(50), 3, 4))
    reading = iter(loader)
    loader.commit(next(reading))
    next(reading)
    assert loader.state_dict()["consumed"] == 1


def test_a_text_that_is_too_short_is_refused_with_the_arithmetic():
    said = r"a\.txt, train: 79 tokens are too few for 8 rows of 9 \+ 1 \(8 x 10 = 80\); give more"
    with pytest.raises(DataError, match=said):
        check_length("a.txt, train", 79, 8, 9, "give more")
    assert check_length("a.txt, train", 80, 8, 9, "give more") is None


@pytest.mark.parametrize("changes", [{"tgt_len": 5}, {"batch_size": 4}, {"ids": np.arange(51)}])
def test_a_text_read_in_another_way_starts_from_its_beginning(changes):
    sizes = {"ids": np.arange(50), "batch_size": 3, "tgt_len": 4}
    loader = TrainingLoader(OrderedStream(**sizes))
    loader.commit(next(iter(loader)))
    other = TrainingLoader(OrderedStream(**sizes | changes))
    with pytest.warns(UserWarning, match="reading from the start of the text"):
        other.load_state_dict(loader.state_dict())
    assert next(iter(other)).fresh_B.all()


def test_another_text_of_the_same_size_starts_from_its_beginning():
    stream = OrderedStream(np.arange(50), 3, 4)
    other = TrainingLoader(stream, text="b")
    with pytest.warns(UserWarning, match="text was a, is b"):
        other.load_state_dict(TrainingLoader(stream, text="a").state_dict() | {"consumed": 7})
    assert other.consumed == 0


def test_targets_are_counted_exactly():
    stream = OrderedStream(np.arange(50), 3, 4)
    segments = [stream.segment(index) for index in range(2 * len(stream) + 1)]
    counts = np.cumsum([segment.targets_BL.numel() for segment in segments])
    assert [segment.n_target for segment in segments] == counts.tolist()
