"""Memory is a value: the last M states, masked by position."""

import pytest
import torch

from txl_lightning import Memory


def remembering(memory: Memory, h: torch.Tensor, past=None, again=0) -> Memory:
    """The memory after a segment of these states."""
    return memory.remember(h, memory.reach(h.size(2), past), again)


def states(start: int, stop: int) -> torch.Tensor:
    """States numbered by time, [N=2, B=3, L, D=1]."""
    return torch.arange(start, stop, dtype=torch.float64).expand(2, 3, -1)[..., None]


@pytest.mark.parametrize("mem_len", [1, 4, 5, 63])
@pytest.mark.parametrize("lengths", [[1] * 7, [3, 3, 3], [5, 5], [8, 1, 8], [63, 1]])
def test_it_holds_the_last_states_in_order(mem_len, lengths):
    memory, time = Memory.empty(2, 3, mem_len, 1), 0
    for length in lengths:
        memory = remembering(memory, states(time, time + length))
        time += length
        filled = min(time, mem_len)
        assert memory.filled_B.tolist() == [filled] * 3
        assert memory.h_NBMD.shape == (2, 3, mem_len, 1)
        newest = memory.h_NBMD[:, :, mem_len - filled :]
        assert torch.equal(newest, states(time - filled, time).to(newest.dtype))


@pytest.mark.parametrize("mem_len", [0, 1, 6, 63])
@pytest.mark.parametrize(("tgt_len", "ext_len"), [(4, 6), (6, 1), (1, 3), (5, 5), (9, 63)])
def test_memory_and_what_is_read_again_are_one_stretch(mem_len, tgt_len, ext_len):
    """The original's swapped arguments left 4, 6, 6 states of M = 6, and the last ones twice."""
    memory = Memory.empty(2, 3, mem_len, 1)
    for start in range(0, 9 * tgt_len, tgt_len):
        first, stop = max(start - ext_len, 0), start + tgt_len
        filled = min(first, mem_len)
        assert memory.filled_B.tolist() == [filled] * 3
        newest = memory.h_NBMD[:, :, mem_len - filled :]
        assert torch.equal(newest, states(first - filled, first).to(newest.dtype))
        memory = remembering(memory, states(first, stop), again=min(ext_len, stop))
        assert memory.h_NBMD.shape == (2, 3, mem_len, 1)


def test_of_length_zero_remembers_nothing():
    memory = remembering(Memory.empty(2, 3, 0, 1), states(0, 9))
    assert memory.h_NBMD.numel() == 0
    assert memory.filled_B.tolist() == [0, 0, 0]


def test_a_query_sees_itself_what_is_before_it_and_what_is_filled():
    memory = Memory(torch.zeros(1, 2, 3, 1), torch.tensor([0, 2]))
    assert memory.visible(memory.reach(2)).int().tolist() == [
        [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
        [[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]],
    ]


def test_nothing_before_the_start_of_a_text_is_seen():
    memory = Memory(torch.zeros(1, 3, 3, 1), torch.tensor([3, 3, 2]))
    past = torch.tensor([[9, 10, 11], [7, 0, 1], [0, 1, 0]])
    assert memory.visible(memory.reach(3, past)).int().tolist() == [
        [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        [[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]],
        [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]],
    ]


@pytest.mark.parametrize("mem_len", [0, 1, 4, 9])
def test_what_stands_before_the_start_of_a_text_is_forgotten(mem_len):
    memory = remembering(Memory.empty(1, 3, mem_len, 1), states(0, 5)[:1])
    past = torch.tensor([[5, 6, 7], [0, 1, 2], [5, 6, 0]])
    after = remembering(memory, states(5, 8)[:1], past)
    assert after.filled_B.tolist() == [min(n, mem_len) for n in (8, 3, 1)]
    after = remembering(memory, states(5, 8)[:1], past, again=1)
    assert after.filled_B.tolist() == [min(n, mem_len) for n in (7, 2, 0)]


@pytest.mark.parametrize("past", [None, "long"])
@pytest.mark.parametrize("lengths", [[4, 4, 4, 4], [1] * 9, [9, 1, 5], [2, 8]])
@pytest.mark.parametrize(("same_length", "count"), [("mem_len", 6), ("mem_len+1", 7)])
def test_with_same_length_each_query_sees_as_many_states_once_there_are(
    same_length, count, lengths, past
):
    memory, time = Memory.empty(2, 3, 6, 1).read_with(None, same_length), 0
    for length in lengths:
        far = torch.full((3, length), 99) if past else None
        visible_BLS = memory.visible(memory.reach(length, far))
        expected = [min(time + place + 1, count) for place in range(length)]
        assert visible_BLS.sum(-1).tolist() == [expected] * 3
        memory = remembering(memory, states(time, time + length), far)
        time += length


@pytest.mark.parametrize("same_length", ["mem_len", "mem_len+1"])
def test_without_a_memory_same_length_hides_nothing(same_length):
    memory = Memory.empty(2, 3, 0, 1).read_with(None, same_length)
    expected = torch.ones(4, 4, dtype=torch.bool).tril().expand(3, -1, -1)
    assert torch.equal(memory.visible(memory.reach(4)), expected)


def test_how_far_back_is_read_is_kept_from_segment_to_segment():
    memory = Memory.empty(2, 3, 6, 1).read_with(4, "mem_len")
    after = remembering(memory, states(0, 5)).resized(3).to(torch.float64)
    assert (after.clamp_len, after.same_length, after.mem_len) == (4, "mem_len", 3)
    assert after.distances(2).tolist() == [4, 4, 3, 2, 1, 0]


def test_it_holds_no_gradient():
    h = states(0, 4).clone().requires_grad_()
    memory = remembering(Memory.empty(2, 3, 2, 1, dtype=torch.float64), h * 2)
    assert not memory.h_NBMD.requires_grad


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="mem_len: invalid -1"):
        Memory.empty(1, 1, -1, 1)


@pytest.mark.parametrize("mem_len", [0, 1, 3, 4, 9])
def test_resized_it_holds_the_newest_states(mem_len):
    empty = Memory.empty(2, 3, 4, 1, dtype=torch.float64)
    memory = remembering(empty, states(0, 3)).resized(mem_len)
    kept = min(mem_len, 3)
    assert memory.mem_len == mem_len
    assert memory.filled_B.tolist() == [kept] * 3
    assert torch.equal(memory.h_NBMD[:, :, mem_len - kept :], states(3 - kept, 3))


def filled_memory() -> Memory:
    """One whose rows differ, and whose every setting is away from its default."""
    memory = Memory.empty(2, 3, 4, 1).read_with(7, "mem_len+1")
    h = states(0, 5) + 100 * torch.arange(3.0)[None, :, None, None]
    return remembering(memory, h, past=torch.tensor([[0, 1, 2, 3, 4], [0] * 5, [0, 0, 0, 0, 1]]))


def test_rows_are_taken_in_any_order_and_more_than_once():
    memory = filled_memory()
    taken = memory.rows(torch.tensor([2, 0, 2, 1]))
    assert taken.filled_B.tolist() == [2, 4, 2, 1]
    assert torch.equal(taken.h_NBMD[:, [3, 1]], memory.h_NBMD[:, [1, 0]])
    assert torch.equal(taken.h_NBMD[:, 0], taken.h_NBMD[:, 2])
    assert (taken.clamp_len, taken.same_length) == (7, "mem_len+1")


@pytest.mark.parametrize("settings", [(None, None), (7, "mem_len"), (0, "mem_len+1")])
def test_its_tensors_are_all_that_it_is(settings):
    memory = filled_memory().read_with(*settings)
    again = Memory.of_tensors(memory.tensors())
    assert (again.clamp_len, again.same_length) == settings
    assert torch.equal(again.h_NBMD, memory.h_NBMD)
    assert torch.equal(again.filled_B, memory.filled_B)
