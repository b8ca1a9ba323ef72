"""One long text, read in rows that continue."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import Memory
from txl_lightning.data import tokens as tokens_module
from txl_lightning.data.stream import IGNORED, TENSORS, Segment, Stream, TrainingLoader, share_rows
from txl_lightning.data.tokens import (
    FixedLengths,
    RolledOrder,
    ShuffledOrder,
    TextOrder,
    TextTokens,
)
from txl_lightning.data.tokens import VarlenLengths as Varlen

holds = settings(max_examples=60)


def original_iterator(ids, batch_size, tgt_len, ext_len):
    """Yield the tokens and targets of each segment by the original's rule."""
    rows_BN = ids[: len(ids) // batch_size * batch_size].reshape(batch_size, -1)
    for start in range(0, rows_BN.shape[1] - 1, tgt_len):
        stop = min(start + tgt_len, rows_BN.shape[1] - 1)
        yield rows_BN[:, max(0, start - ext_len) : stop], rows_BN[:, start + 1 : stop + 1]


@pytest.mark.parametrize(
    ("n_token", "batch_size", "tgt_len", "ext_len"),
    [(9, 1, 4, 0), (41, 4, 3, 1), (43, 4, 3, 4), (120, 2, 63, 63), (130, 2, 1, 99), (10, 5, 8, 1)],
)
def test_stream_in_order_is_the_originals_iterator(n_token, batch_size, tgt_len, ext_len):
    stream = Stream.from_tokens(np.arange(n_token), batch_size, tgt_len, ext_len)
    expected = original_iterator(np.arange(n_token), batch_size, tgt_len, ext_len)
    for segment, (tokens, targets) in zip(stream, expected, strict=True):
        assert segment.tokens_BL.tolist() == tokens.tolist()
        assert segment.targets_BL.tolist() == targets.tolist()
        assert segment.loss_denominator == batch_size * segment.new_len


@st.composite
def streams(draw):
    """Draw a stream over a text of documents; each id is the position of its token."""
    n_token = draw(st.integers(40, 200))
    cuts = draw(st.sets(st.integers(1, n_token - 1), max_size=12))
    text = TextTokens(np.arange(n_token), np.array([0, *sorted(cuts)]))
    seed = draw(st.integers(0, 99))
    tgt_len = draw(st.integers(1, 50))
    lengths = draw(st.sampled_from([FixedLengths(tgt_len), Varlen(max(tgt_len, 5), seed)]))
    orders = [TextOrder(text), RolledOrder(text, seed), ShuffledOrder(text, seed)]
    order = draw(st.sampled_from(orders))
    warmup_len = draw(st.integers(0, 30)) if order is orders[0] else 0
    batch_size = draw(st.sampled_from([1, 2, 6]))
    ext_len = draw(st.sampled_from([0, 1, 7, 60]))
    return Stream(text, batch_size, lengths, order, warmup_len, ext_len)


def list_segments(stream: Stream, n_pass: int = 1) -> list:
    count = sum(stream.lengths.count_segments(stream.n_target, nth) for nth in range(n_pass))
    return [stream.segment(index) for index in range(count)]


def join(segments, name: str) -> torch.Tensor:
    """Join one field of all segments, row by row, without context."""
    return torch.cat([getattr(segment, name)[:, -segment.new_len :] for segment in segments], 1)


@holds
@given(streams())
def test_rows_continue_and_repeat_ext_len_tokens_as_context_without_targets(stream):
    segments = list_segments(stream)
    tokens = join(segments, "tokens_BL")
    targets = join(segments, "targets_BL")[:, :-1]
    assert tokens.shape == (stream.batch_size, stream.n_target)
    assert torch.equal(tokens[:, 1:].where(targets != IGNORED, IGNORED), targets)
    n_read = 0
    for before, segment in zip([None, *segments], segments, strict=False):
        n_context = segment.n_context
        assert n_context == min(stream.ext_len, n_read)
        assert before is None or before.n_reread == n_context
        for name in ("tokens_BL", "doc_pos_BL") if n_context else ():
            repeated = getattr(before, name)[:, -n_context:]
            assert torch.equal(getattr(segment, name)[:, :n_context], repeated)
        n_read += segment.new_len
    assert stream.segment(len(segments)).n_context == 0


@holds
@given(streams())
def test_every_token_is_a_target_once_unless_nothing_precedes_it(stream):
    targets = torch.cat([segment.targets_BL.flatten() for segment in list_segments(stream)])
    scored = targets[targets != IGNORED].tolist()
    assert len(scored) == len(set(scored))
    read = set(range(stream.row_len * stream.batch_size))
    starts = set(stream.tokens.starts)
    assert not set(scored) & starts
    if isinstance(stream.order, ShuffledOrder):
        assert len(scored) >= len(read) - len(starts) - stream.batch_size
        return
    missed = read - starts - set(scored)
    if not stream.warmup_len:
        missed -= set(range(0, len(read), stream.row_len))
        assert not set(scored) & set(range(0, len(read), stream.row_len))
    assert len(missed) <= (stream.batch_size if isinstance(stream.order, RolledOrder) else 0)


@holds
@given(streams())
def test_doc_pos_counts_the_tokens_of_the_same_document_before_each(stream):
    segments = list_segments(stream)
    tokens = join(segments, "tokens_BL")
    doc_pos = join(segments, "doc_pos_BL")
    starts = set(stream.tokens.starts.tolist())
    for row, counts in zip(tokens.tolist(), doc_pos.tolist(), strict=True):
        for column, (token, count) in enumerate(zip(row, counts, strict=True)):
            assert row[column - count : column + 1] == list(range(token - count, token + 1))
            assert not starts & set(range(token - count + 1, token + 1))


@holds
@given(streams(), st.integers(1, 8))
def test_ranks_together_score_what_one_process_scores(stream, world_size):
    ranks = [replace(stream, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [share_rows(stream.batch_size, rank, world_size) for rank in range(world_size)]
    n_own = [share.stop - share.start for share in shares]
    for index, whole in enumerate(list_segments(stream, 2)):
        parts = [rank.segment(index) for rank in ranks]
        for name in TENSORS:
            own = [getattr(p, name) for p, n in zip(parts, n_own, strict=True) if n]
            assert torch.equal(torch.cat(own), getattr(whole, name))
        # A rank without rows reads one, as all must call the network.
        for part, n in zip(parts, n_own, strict=True):
            assert len(part.tokens_BL) == max(n, 1)
            assert n or (part.targets_BL == IGNORED).all()
        assert whole.loss_denominator == (whole.targets_BL != IGNORED).sum()
        share = pytest.approx(whole.loss_denominator / world_size)
        assert all(part.loss_denominator == share for part in parts)


@holds
@given(streams(), st.lists(st.integers(0, 12), max_size=5), st.sampled_from([None, None, 1, 4]))
def test_training_loader_interrupted_anywhere_gives_the_same_segments(stream, stops, n_segment):
    expected = itertools.islice(TrainingLoader(stream, n_segment=n_segment), sum(stops) + 3)
    actual = []
    state = TrainingLoader(stream).state_dict()
    for stop in (*stops, 3):
        loader = TrainingLoader(stream, n_segment=n_segment)
        loader.load_state_dict(state)
        reading = iter(loader)
        for segment in itertools.islice(reading, stop):
            actual.append(segment)
            loader.commit(segment)
        # Segments that were fetched but not committed are read again.
        next(reading)
        state = loader.state_dict()
    for a, b in zip(expected, actual, strict=True):
        assert (a.index, a.n_context) == (b.index, b.n_context)
        assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in TENSORS)


@holds
@given(streams(), st.sampled_from([None, 1, 3]))
def test_training_loader_counts_the_tokens_seen(stream, n_segment):
    loader = TrainingLoader(stream, n_segment=n_segment)
    n_token = 0
    for segment in itertools.islice(loader, 2 * len(stream)):
        assert loader.count_targets(segment.index) == n_token
        n_token += len(segment.targets_BL) * segment.new_len
    assert loader.count_targets(2 * len(stream)) == n_token


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size: invalid 0; expected at least 1"),
        ({"batch_size": 16}, "ids: invalid number 9; expected at least 32, two for each row"),
        ({"ids": []}, "ids: invalid number 0; expected at least 4, two for each row"),
        ({"tgt_len": 0}, "tgt_len: invalid 0; expected at least 1"),
        ({"ext_len": -1}, "ext_len: invalid -1; expected at least 0"),
        ({"ids": np.ones((2, 4), int)}, r"ids: invalid int64 of shape \[2, 4\]; expected whole"),
        ({"ids": np.ones(9)}, r"ids: invalid float64 of shape \[9\]"),
    ],
    ids=str,
)
def test_a_stream_that_gives_no_segment_of_ids_is_refused(changes, message):
    settings = {"ids": np.arange(9), "batch_size": 2, "tgt_len": 2} | changes
    with pytest.raises(ValueError, match=f"^{message}"):
        Stream.from_tokens(**settings)


@pytest.mark.parametrize("convert", [list, torch.tensor, np.uint16])
def test_ids_of_a_stream_are_whole_numbers_of_any_kind(convert):
    expected = [*Stream.from_tokens(np.arange(9), 2, 2)]
    found = [*Stream.from_tokens(convert(range(9)), 2, 2)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("wrong", [-1, 11])
@pytest.mark.parametrize("place", ["tokens_BL", "targets_BL"])
def test_a_segment_with_ids_outside_the_vocabulary_is_refused(place, wrong):
    segment = next(iter(Stream.from_tokens(np.arange(11), 1, 10)))
    assert Segment.from_batch(segment, n_token=11) is segment
    ids_BL = getattr(segment, place).clone()
    ids_BL[0, 3] = wrong
    found = f"invalid ids from {min(wrong, 0)} to {max(wrong, 9 if place == 'tokens_BL' else 10)}"
    with pytest.raises(ValueError, match=f"^batch: {found}; expected ids from 0 to 10"):
        Segment.from_batch(segment._replace(**{place: ids_BL}), n_token=11)


@pytest.mark.parametrize("n_segment", [None, 2])
def test_training_loader_begins_again_with_each_pass_or_after_its_first_segments(n_segment):
    stream = Stream.from_tokens(np.arange(28), 2, 4, ext_len=3)
    segments = list(itertools.islice(TrainingLoader(stream, n_segment=n_segment), 9))
    nth = [index % (n_segment or 4) for index in range(9)]
    assert [segment.index for segment in segments] == list(range(9))
    assert [segment.n_context for segment in segments] == [3 if n else 0 for n in nth]
    starts = [segment.doc_pos_BL[0, 0].item() for segment in segments]
    assert starts == [max(4 * n - 3, 0) for n in nth]


@settings(holds, max_examples=40)
@given(streams(), st.sampled_from([None, None, 2, 5]), st.sampled_from([0, 1, 4, 9, 50]))
def test_each_query_sees_the_tokens_before_it_as_far_as_memory_goes(stream, n_segment, mem_len):
    # States are token ids here, so that the result shows what is visible.
    h_NBMD = torch.zeros(1, stream.batch_size, mem_len, 1).double()
    memory = Memory(h_NBMD, torch.zeros(stream.batch_size).long())
    loader = TrainingLoader(stream, n_segment=n_segment)
    for segment in itertools.islice(loader, len(list_segments(stream, 2))):
        tokens_BL = segment.tokens_BL
        mask_BLS = memory.attention_mask(tokens_BL.size(1), segment.doc_pos_BL)
        seen_BS = torch.cat([memory.h_NBMD[0, :, :, 0].long(), tokens_BL], dim=1)
        for row, mask_LS in enumerate(mask_BLS):
            for place, mask_S in enumerate(mask_LS):
                token = int(tokens_BL[row, place])
                far = min(int(segment.doc_pos_BL[row, place]), mem_len + place)
                assert seen_BS[row, mask_S].tolist() == list(range(token - far, token + 1))
        states = tokens_BL.double()[None, ..., None]
        memory = memory.update(states, mask_BLS, segment.n_reread)


def test_rolled_row_starts_at_another_offset_in_each_pass_without_attention_across_its_seam():
    stream = Stream(
        text := TextTokens(np.arange(60)), 3, FixedLengths(19), RolledOrder(text, seed=1)
    )
    starts = torch.stack([stream.segment(n).tokens_BL[:, 0] for n in range(4)])
    assert (starts // 20 == torch.arange(3)).all()
    assert len({tuple(row) for row in starts.tolist()}) == 4
    segment = stream.segment(0)
    assert (segment.doc_pos_BL[segment.tokens_BL % 20 == 0] == 0).all()
    assert not (segment.targets_BL % 20 == 0)[segment.targets_BL != IGNORED].any()


def test_shuffled_documents_are_complete_and_in_another_order_in_each_pass_and_with_each_seed():
    text = TextTokens(np.arange(60), np.arange(0, 60, 5))
    orders = set()
    for seed, n_pass in itertools.product(range(2), range(3)):
        stream = Stream(text, 1, FixedLengths(59), ShuffledOrder(text, seed))
        documents = stream.segment(n_pass).tokens_BL[0, :55].view(11, 5)
        assert torch.equal(documents, documents[:, :1] + torch.arange(5))
        assert (documents[:, 0] % 5 == 0).all()
        orders.add(tuple(documents[:, 0].tolist()))
    assert len(orders) == 6


@pytest.mark.parametrize("tgt_len", [3, 7, 40])
def test_restarted_rows_begin_once_in_every_part_wherever_segments_end(tgt_len):
    text = TextTokens(np.arange(203), np.array([0, 50]))
    order = tokens_module.RestartedOrder(TextOrder(text), restart_len=10, seed=3)
    stream = Stream(text, 2, FixedLengths(tgt_len), order)
    for n_pass in range(2):
        parts = [stream.segment(n_pass * len(stream) + n) for n in range(len(stream))]
        doc_pos_BT = torch.cat([part.doc_pos_BL for part in parts], dim=1).numpy()
        begins_BT = doc_pos_BT == 0
        # Documents of the text begin at 0 and 50 of the first row, and every row at 0.
        begins_BT[0, [0, 50]] = begins_BT[1, 0] = False
        counts = [begins_BT[:, start : start + 10].sum(1) for start in range(0, 100, 10)]
        assert (np.stack(counts[1:5] + counts[6:]) == 1).all()
        assert (np.diff(doc_pos_BT)[~begins_BT[:, 1:] & (doc_pos_BT[:, 1:] > 0)] == 1).all()
        targets_BT = torch.cat([part.targets_BL for part in parts], dim=1).numpy()
        assert ((targets_BT[:, :-1] == IGNORED) == (doc_pos_BT[:, 1:] == 0)).all()
    drawn = [order.find_places(n, np.zeros((1, 1), int), np.arange(100)[None], 100) for n in (0, 1)]
    assert (drawn[0][1] != drawn[1][1]).any()


def list_drawn(kind: str, seed: int, n_pass: int) -> list[tuple[int, ...]]:
    """Return what is drawn for each of four rows of 5,000 tokens; of varlen, for all rows."""
    if kind == "varlen":
        lengths = Varlen(20, seed)
        firsts = sum(lengths.count_segments(5000, nth) for nth in range(n_pass))
        count = lengths.count_segments(5000, n_pass)
        return [tuple(lengths.find_bounds(5000, firsts + n)[2] for n in range(count))]
    text = TextTokens(np.arange(20_000), np.arange(0, 20_000, 5))
    orders = {
        "rolled": RolledOrder(text, seed),
        "shuffled": ShuffledOrder(text, seed),
        "restarted": tokens_module.RestartedOrder(TextOrder(TextTokens(text.ids)), 10, seed),
    }
    places = np.arange(4)[:, None], np.arange(5000)[None], 5000
    position_BT, doc_pos_BT = orders[kind].find_places(n_pass, *places)
    drawn_BT = (
        doc_pos_BT == 0 if kind == "restarted" else position_BT - 5000 * np.arange(4)[:, None]
    )
    return [tuple(row) for row in drawn_BT.tolist()]


@pytest.mark.parametrize("kind", ["rolled", "shuffled", "restarted", "varlen"])
def test_what_is_drawn_differs_between_rows_passes_and_seeds_and_is_drawn_again(kind):
    cases = [*itertools.product((1, 2), (0, 1, 2))]
    drawn = [row for case in cases for row in list_drawn(kind, *case)]
    assert len(set(drawn)) == len(drawn)
    assert drawn == [row for case in cases for row in list_drawn(kind, *case)]


def test_empty_documents_are_skipped():
    text = TextTokens(np.arange(12), np.array([0, 0, 4, 4, 4, 9, 12]))
    order = ShuffledOrder(text, seed=3)
    position_BT, _ = order.find_places(0, np.zeros((1, 1), int), np.arange(12)[None], 12)
    assert sorted(position_BT[0].tolist()) == list(range(12))
    assert text.doc_position(np.arange(12)).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize("tgt_len", [5, 6, 64, 512])
def test_varlen_segments_are_the_originals(tgt_len):
    drawn = Varlen(tgt_len, seed=0)
    bounds = [drawn.find_bounds(200_000, n) for n in range(drawn.count_segments(200_000, 0) - 1)]
    lengths = np.array([end - start for _, start, end in bounds])
    assert lengths.min() >= 5
    assert lengths.max() <= tgt_len + 15
    if tgt_len >= 64:
        halved = lengths < 0.75 * tgt_len
        assert 0.02 < halved.mean() < 0.08
        assert abs(lengths[~halved].mean() - tgt_len) < 2
        assert 3 < lengths[~halved].std() < 7


def test_a_varlen_segment_is_found_from_the_last_one_without_counting_all_passes():
    lookups = []

    class Counted(Varlen):
        def __hash__(self):
            lookups.append(self)
            return hash(self.seed)

    lengths = Counted(6, seed=1)
    bounds = [lengths.find_bounds(30, index) for index in range(4000)]
    assert bounds[-1][0] > 500
    assert len(lookups) < 6 * len(bounds)
    for index in (3999, 2000, 0, 1, 3000):
        assert lengths.find_bounds(30, index) == bounds[index]
    caches = [each for each in vars(tokens_module).values() if hasattr(each, "cache_info")]
    assert max(cache.cache_info().currsize for cache in caches) < 10


@pytest.mark.parametrize("changes", [{"tgt_len": 5}, {"ext_len": 2}, {"seed": 1}], ids=str)
def test_changed_reading_settings_restart_the_text(changes):
    # A state without ext_len means ext_len 0.
    stream = Stream.from_tokens(np.arange(50), 3, 4)
    read_as = {"tgt_len": 4, "ext_len": 0}
    state = {"consumed": 2, "read_as": {"tgt_len": 4}}
    loader = TrainingLoader(stream, read_as)
    other = TrainingLoader(stream, read_as | changes)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="reading from the start of the text"):
        other.load_state_dict(state)
    assert (next(iter(loader)).index, next(iter(other)).index) == (2, 0)


def test_one_object_of_varlen_gives_texts_of_different_lengths_their_own_segments():
    lengths = Varlen(20, 1)
    places = [(total, nth) for nth in range(0, 30, 3) for total in (100, 300)]
    bounds = [lengths.find_bounds(*place) for place in places]
    assert bounds == [Varlen(20, 1).find_bounds(*place) for place in places]
    assert {n_pass for n_pass, _, _ in bounds} >= {0, 1, 2}
