"""One memory of several texts, each read for itself before, and the memory of each again.

B rows   M kept   C slots of a buffer   H heads   K head width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from .cache import MIN_SEGMENT, KeyValueCache, Slots, allocate_keys_values, holds_keys
from .contract import AnyMemory, join_rows


def find_form(memory: AnyMemory) -> tuple[Any, ...]:
    """Return what is equal in memories of one network that `join_memories` can join."""
    if holds_keys(memory):
        return ()
    none = memory.rows(slice(0)).tensors()
    # What has no rows counts something of all rows.
    return tuple(
        (name, each.shape, str(each.tolist()) if each.shape == none[name].shape else "")
        for name, each in memory.tensors().items()
    )


def join_memories(memories: Sequence[AnyMemory]) -> AnyMemory:
    """Return one memory with the rows of several, which have one form."""
    first, *others = memories
    if not others:
        return first
    if holds_keys(first):
        return join_caches(memories)
    return first.restore(join_rows(first, [each.tensors() for each in memories]))


def split_memory(memory: AnyMemory) -> list[AnyMemory]:
    """Return the memory of each row, which may share tensors with the whole until it is copied."""
    rows = range(memory.batch_size)
    if not holds_keys(memory) or memory.slots is None:
        return [memory.rows([row]) for row in rows]
    return [view_row(memory, slice(row, row + 1)) for row in rows]


def view_row(cache: KeyValueCache, row: slice) -> KeyValueCache:
    """Return a row of a cache without a copy; what reads it next copies it."""
    slots = Slots(cache.end, len(cache.slots.layers))
    slots.used = cache.end
    layers = cache.slots.layers
    slots.written = [pair and tuple(x_BCHK[row] for x_BCHK in pair) for pair in layers]
    filled_B = cache.filled_B[row]
    state = {"n_kept": cache.n_kept, "is_even": cache.is_even}
    if filled_B.is_cpu:
        # Without the zeros that joining put before its states.
        state = {"n_kept": int(filled_B), "is_even": True}
    return replace(cache, slots=slots, filled_B=filled_B, **state)


def copy_kept(memory: AnyMemory) -> AnyMemory:
    """Return a memory that shares no tensors with the one that it was split from."""
    if not holds_keys(memory) or memory.slots is None:
        return memory
    kept = slice(memory.end - memory.n_kept, memory.end)
    slots = memory.slots.copy(memory.n_kept, kept)
    return replace(memory, slots=slots, end=memory.n_kept)


def join_caches(caches: Sequence[KeyValueCache]) -> KeyValueCache:
    """Return a cache with the rows of several, of which some may have fewer states."""
    n_kept = max(cache.n_kept for cache in caches)
    return replace(
        caches[0],
        slots=join_slots(caches, n_kept),
        end=n_kept,
        n_kept=n_kept,
        filled_B=torch.cat([cache.filled_B for cache in caches]),
        is_even=all(cache.is_even and cache.n_kept == n_kept for cache in caches),
        # Their first terms are for the same distances; more are for longer ones.
        terms_N=max((cache.terms_N for cache in caches), key=count_distances),
    )


def count_distances(terms_N: Sequence[Any]) -> int:
    return terms_N[0].n_distance if terms_N else 0


def join_slots(caches: Sequence[KeyValueCache], n_kept: int) -> Slots | None:
    """Return slots with the states of several caches, and zeros before those that have fewer."""
    if not n_kept:
        return None
    joined = Slots(n_kept + MIN_SEGMENT, caches[0].sizes["n_layer"])
    joined.used = n_kept
    ends = [*accumulate(cache.batch_size for cache in caches)]
    # By layer, what each cache has of it.
    kept_by_layer = zip(*(cache.list_kept() for cache in caches), strict=True)
    for n, kept in enumerate(kept_by_layer):
        some = next((pair for pair in kept if pair), None)
        if some is None:
            continue
        # As many rows as all have.
        joined.layers[n] = allocate_keys_values(
            *(x_BMHK[:1].expand(ends[-1], -1, -1, -1) for x_BMHK in some), joined.capacity
        )
        for pair, cache, end in zip(kept, caches, ends, strict=True):
            rows = slice(end - cache.batch_size, end)
            for which, room_BCHK in enumerate(joined.layers[n]):
                # Not what the room had: zero times infinity is no number.
                room_BCHK[rows, : n_kept - cache.n_kept] = 0
                if pair:
                    room_BCHK[rows, n_kept - cache.n_kept : n_kept] = pair[which]
    return joined
