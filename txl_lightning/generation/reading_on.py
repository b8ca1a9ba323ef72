"""Texts that go on: nats of their new tokens, of many texts at once, or with steps of the weights.

B texts   L tokens read in one call   K tokens that are scored
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..model.joining import copy_kept, find_form, join_memories, split_memory
from ..model.reading import Reader
from .state import SEGMENT_LEN, DecodingState

NatsAndState = tuple[Tensor, DecodingState]


def read_together(reader: Reader, states: Sequence[DecodingState]) -> list[NatsAndState]:
    """Return nats_K of what each text goes on with, and its state, read up to the last token.

    The texts are read in calls of equal numbers of tokens: of different numbers, in powers of two.
    So no text is padded, a memory is that of its text alone, and calls are few.
    """
    states = [*states]
    nats: list[list[Tensor]] = [[] for _ in states]
    while any(state.n_unread for state in states):
        n_token = choose_count([state.n_unread for state in states if state.n_unread])
        for group in group_texts(states, n_token):
            scored_BL, after = score_next(reader, [states[n] for n in group], n_token)
            for row, (n, state) in enumerate(zip(group, after, strict=True)):
                nats[n].append(scored_BL[row])
                states[n] = state
    if len(states) > 1:
        states = [replace(state, memory=copy_kept(state.memory)) for state in states]
    device = states[0].tokens_BL.device
    none_K = torch.zeros(0, device=device)
    nats_K = [torch.cat(parts) if parts else none_K for parts in nats]
    return [*zip(nats_K, (state.drop_read() for state in states), strict=True)]


def choose_count(counts: Sequence[int]) -> int:
    """Return how many tokens the next call reads of each text that has so many."""
    most = min(max(counts), SEGMENT_LEN)
    are_equal = min(counts) == max(counts)
    return most if are_equal else 1 << (most.bit_length() - 1)


def group_texts(states: Sequence[DecodingState], n_token: int) -> list[list[int]]:
    """Return groups of the texts that have so many unread tokens, by the form of their memory."""
    groups = defaultdict[tuple, list[int]](list)
    for n, state in enumerate(states):
        if state.n_unread >= n_token:
            # A single text may have a continuous cache, which is not joined.
            groups[find_form(state.memory) if len(states) > 1 else ()].append(n)
    return [*groups.values()]


def score_next(
    reader: Reader, states: Sequence[DecodingState], n_token: int
) -> tuple[Tensor, list[DecodingState]]:
    """Return nats_BL of the next tokens of each text, and the states after these."""
    ends = [state.n_read + n_token for state in states]
    pairs = zip(states, ends, strict=True)
    tokens_BT = torch.cat([state.tokens_BL[:, state.n_read : end + 1] for state, end in pairs])
    memory = join_memories([state.memory for state in states])
    nats_BL, memory = reader.score(tokens_BT[:, :-1], tokens_BT[:, 1:], memory)
    # A single text keeps its memory, which has room for more states.
    rows = split_memory(memory) if len(states) > 1 else [memory]
    after = zip(states, rows, ends, strict=True)
    return nats_BL, [replace(state, memory=row, n_read=end) for state, row, end in after]


def read_and_learn(reader: Reader, state: DecodingState, step_len: int) -> NatsAndState:
    """Return nats_K of what is after the last whole segment of a text, and the state after the
    next one.

    A step follows each segment of step_len tokens. What is in an unfinished segment is read again
    with what follows, because a step needs its gradient. So steps do not depend on the parts in
    which a text comes.
    """
    parts = [torch.zeros(0, device=state.tokens_BL.device)]
    while state.n_unread >= step_len:
        end = state.n_read + step_len
        tokens_BT = state.tokens_BL[:, state.n_read : end + 1]
        nats_BL, memory = reader.loss(tokens_BT[:, :-1], tokens_BT[:, 1:], state.memory)
        parts.append(nats_BL[0])
        state = replace(state, memory=memory, n_read=end)
    if state.n_unread:
        rest_BT = state.tokens_BL[:, state.n_read :]
        parts.append(reader.score(rest_BT[:, :-1], rest_BT[:, 1:], state.memory)[0][0])
    return torch.cat(parts), state.drop_read()
