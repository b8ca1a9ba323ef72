"""Memory is a value: the last M states, masked by position."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import Memory, TransformerXLConfig
from txl_lightning.model import EvalLengths
from txl_lightning.model.config import ContextLengths
from txl_lightning.model.memory import describe_new_distances, find_largest_distance
from txl_lightning.networks.compressive import CompressiveTransformerConfig
from txl_lightning.networks.lstm import LSTMConfig


def empty_memory(n_layer, batch_size, mem_len, *lengths) -> Memory:
    h_NBMD = torch.zeros(n_layer, batch_size, mem_len, 1)
    return Memory(h_NBMD, torch.zeros(batch_size, dtype=torch.long), *lengths)


def remember(memory: Memory, h: torch.Tensor, doc_pos=None, n_reread=0) -> Memory:
    return memory.update(h, memory.attention_mask(h.size(2), doc_pos), n_reread)


def states(start: int, stop: int) -> torch.Tensor:
    """Return states numbered by time, [N=2, B=3, L, D=1]."""
    return torch.arange(start, stop, dtype=torch.float64).expand(2, 3, -1)[..., None]


def newest_filled(memory: Memory) -> torch.Tensor:
    """Return the valid states of the first row; all rows have equally many."""
    [filled] = set(memory.filled_B.tolist())
    return memory.h_NBMD[:, :, memory.mem_len - filled :].double()


@pytest.mark.parametrize(
    ("filled", "message"),
    [
        ([0, 5, 0], r"filled_B: invalid \[0, 5, 0\]; expected 0 to 4, the number of states"),
        ([0, -1, 0], r"filled_B: invalid \[0, -1, 0\]; expected 0 to 4"),
        ([0, 0], r"filled_B: invalid torch.Size\(\[2\]\); expected a number for each row"),
    ],
)
def test_invalid_counts_of_states_are_refused(filled, message):
    with pytest.raises(ValueError, match=message):
        Memory(torch.zeros(2, 3, 4, 1), torch.tensor(filled))


@settings(max_examples=100)
@given(
    st.sampled_from([0, 1, 4, 5, 63]),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.integers(0, 15),
)
def test_memory_holds_the_last_states_in_order_without_reread_ones(mem_len, lengths, ext_len):
    """Swapped arguments in the original would keep 4 of M = 6 states, and the last ones twice."""
    memory = empty_memory(2, 3, mem_len)
    start = 0
    for length in lengths:
        first = max(start - ext_len, 0)
        stop = start + length
        assert torch.equal(newest_filled(memory), states(max(first - mem_len, 0), first))
        memory = remember(memory, states(first, stop), n_reread=min(ext_len, stop))
        assert memory.h_NBMD.shape == (2, 3, mem_len, 1)
        start = stop


def test_memory_mask_hides_unfilled_slots_later_tokens_and_other_documents():
    memory = Memory(torch.zeros(1, 3, 3, 1), torch.tensor([3, 3, 2]))
    whole = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    unfilled = [[0, *row[1:]] for row in whole]
    assert memory.attention_mask(3).int().tolist() == [whole, whole, unfilled]
    doc_pos = torch.tensor([[9, 10, 11], [7, 0, 1], [0, 1, 0]])
    assert memory.attention_mask(3, doc_pos).int().tolist() == [
        whole,
        [[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]],
        [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]],
    ]


@pytest.mark.parametrize("lengths", [[4, 4, 4, 4], [1] * 9, [9, 1, 5]])
@pytest.mark.parametrize(
    ("mem_len", "same_length", "count"), [(6, "mem_len", 6), (6, "mem_len+1", 7), (0, "mem_len", 9)]
)
def test_same_length_gives_each_query_equally_many_states(mem_len, same_length, count, lengths):
    memory = empty_memory(2, 3, mem_len, None, same_length)
    time = 0
    for length in lengths:
        start = time if mem_len else 0
        expected = [min(start + place + 1, count) for place in range(length)]
        for doc_pos in (None, torch.full((3, length), 99)):
            mask_BLS = memory.attention_mask(length, doc_pos)
            assert mask_BLS.sum(-1).tolist() == [expected] * 3
        memory = remember(memory, states(time, time + length))
        time += length


def test_memory_has_no_gradient_and_no_larger_storage_than_its_states():
    """A view would keep all states of the segment, in RAM and in every checkpoint."""
    h = states(0, 40).clone().requires_grad_()
    memory = remember(empty_memory(2, 3, 2), h * 2)
    assert not memory.h_NBMD.requires_grad
    assert memory.h_NBMD.untyped_storage().nbytes() == memory.h_NBMD.nbytes


@pytest.mark.parametrize("mem_len", [0, 1, 3, 4, 9])
def test_resized_memory_holds_the_newest_states(mem_len):
    lengths = ContextLengths(mem_len, 4, "mem_len")
    memory = remember(empty_memory(2, 3, 4), states(0, 3)).resize(lengths)
    assert (memory.mem_len, memory.clamp_len, memory.same_length) == lengths
    assert torch.equal(newest_filled(memory), states(3 - min(mem_len, 3), 3))


def test_lengths_and_precision_stay_from_segment_to_segment():
    memory = empty_memory(2, 3, 3, 4, "mem_len")
    after = remember(memory, states(0, 5)).to(torch.float64)
    assert (after.clamp_len, after.same_length, after.mem_len) == (4, "mem_len", 3)
    assert after.h_NBMD.dtype == torch.float64
    assert after.distances(2).tolist() == [4, 4, 3, 2, 1, 0]


def test_memory_rows_are_chosen_and_repeated():
    h_NBLD = states(0, 5) + 100 * torch.arange(3.0)[None, :, None, None]
    doc_pos_BL = torch.tensor([[0, 1, 2, 3, 4], [0] * 5, [0, 0, 0, 0, 1]])
    memory = remember(empty_memory(2, 3, 4, 7, "mem_len+1"), h_NBLD, doc_pos_BL)
    chosen = memory.rows(torch.tensor([2, 0, 2, 1]))
    assert chosen.filled_B.tolist() == [2, 4, 2, 1]
    assert torch.equal(chosen.h_NBMD, memory.h_NBMD[:, [2, 0, 2, 1]])
    assert (chosen.clamp_len, chosen.same_length) == (7, "mem_len+1")


@pytest.mark.parametrize("same_length", [None, "mem_len", "mem_len+1"])
@pytest.mark.parametrize("mem_len", [0, 1, 5, 9])
@pytest.mark.parametrize("segment_len", [1, 4, 11])
def test_the_largest_distance_is_that_of_a_state_that_is_not_masked(
    same_length, mem_len, segment_len
):
    memory = Memory(torch.zeros(1, 1, mem_len, 1), torch.tensor([mem_len]), None, same_length)
    mask_LS = memory.attention_mask(segment_len)[0]
    query_K, state_K = mask_LS.nonzero(as_tuple=True)
    largest = int((mem_len + query_K - state_K).max())
    lengths = ContextLengths(mem_len, None, same_length)
    assert find_largest_distance(lengths, segment_len) == largest


TRAINED = {"mem_len": 64}
NEW = "distances up to 447 are read, in training up to 127; "


def describe(
    reading=(), segment_len=64, trained_len=64, n_read=None, config=TransformerXLConfig, **changes
):
    net = config(**TRAINED | changes)
    lengths = EvalLengths(**dict(reading))
    return describe_new_distances(net, trained_len, lengths, segment_len, n_read, "--clamp_len {}")


def test_larger_distances_than_in_training_are_named_with_the_option_to_try():
    expected = f"{NEW}new ones can raise the loss: try --clamp_len 127"
    assert describe({"mem_len": 384}) == expected
    assert describe(segment_len=384) == expected
    assert describe({"mem_len": 448, "same_length": "mem_len"}, segment_len=1) == expected
    assert describe({"mem_len": 65}).startswith("distances up to 128 are read, in training up to 1")
    # No distance is larger than the text.
    assert describe({"mem_len": 999}, n_read=448) == expected
    assert describe({"mem_len": 999}, n_read=128) is None
    assert describe({"same_length": "all"}, same_length="mem_len").startswith(
        "distances up to 127 are read, in training up to 63"
    )
    assert "1,063" in describe({"mem_len": 1000}, trained_len=1)
    assert "--clamp_len 1999" in describe({"mem_len": 2000}, trained_len=1936)
    # Clamped at more than in training, where 127 were read, or 100 because of clamping.
    assert "up to 400 are read, in training up to 127" in describe(
        {"mem_len": 384, "clamp_len": 400}
    )
    clamped = describe({"mem_len": 384, "clamp_len": 120}, clamp_len=100)
    assert "up to 120 are read, in training up to 100" in clamped


@pytest.mark.parametrize(
    ("reading", "changes"),
    [
        ({}, {}),
        ({"mem_len": 64}, {}),
        ({"mem_len": 0}, {}),
        ({"mem_len": 128, "same_length": "mem_len"}, {}),
        ({"mem_len": 384, "clamp_len": 127}, {}),
        ({"mem_len": 384}, {"clamp_len": 100}),
        ({"mem_len": 384}, {"trained_len": None}),
        ({"mem_len": 384}, {"clamp_len": 100, "positions": "shaw"}),
        ({"mem_len": 384}, {"clamp_len": 100, "positions": "learned"}),
        ({"mem_len": 384}, {"positions": "absolute_sinusoidal"}),
        ({"mem_len": 384}, {"positions": "my_package.MyScheme"}),
        ({"mem_len": 384}, {"config": CompressiveTransformerConfig, "mem_len": 1}),
        ({"mem_len": 384}, {"config": LSTMConfig, "mem_len": 1}),
    ],
)
def test_no_distance_is_new_where_none_is_larger_or_where_positions_are_clamped(reading, changes):
    assert describe(reading, **changes) is None
