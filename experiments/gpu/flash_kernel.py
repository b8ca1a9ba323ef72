"""Three kernels in Triton that keep scores on the chip: a candidate for attention on a GPU.

A program has a tile of queries or of states of one row and head. It goes through the tiles on the
other side, and computes (a) + (c) = (q + u).k there. (b) + (d) were computed by distance before
(flash.py). The number of query l = 8 g + i and state s is at column 8 G - 8 g + s of its row: so
eight neighbors are read at once. Scores are in bits, over the logarithm of 2, because a GPU has an
instruction for powers of 2.

The mask follows from the first state that a query sees; it sees all from there to itself. The
softmax is that of FlashAttention-2 (Dao 2023, Algorithms 1 and 2). Nothing is added atomically.

B rows   L queries   S states   H heads   K head width   G groups of EIGHT queries
W columns of scores by distance   I = QUERIES of a tile   J = STATES of a tile
P = K, rounded up to a power of 2
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

EIGHT = tl.constexpr(8)
NOTHING = tl.constexpr(-1e30)
"""Less than each score, but a number: a query may have seen no state yet."""

FAR = tl.constexpr(1 << 30)
"""After all states, also those that fill the last tile."""
LN2 = tl.constexpr(0.6931471805599453)


class Rows(NamedTuple):
    """A tensor x_BXHK and its strides; that of K is 1."""

    data: Any
    row: int
    place: int
    head: int


class Scores(NamedTuple):
    """Scores by distance, bd_8HBGW, and the strides of 8, H, B and G."""

    data: Any
    place: int
    head: int
    row: int
    group: int


class Sizes(NamedTuple):
    n_query: int
    n_state: int
    n_head: int
    n_column: int
    """W."""


class Dropped(NamedTuple):
    """Which weights are dropped."""

    seed: Any
    """One element."""
    below: int
    """Numbers of 31 bits below this one drop a weight."""
    factor: float
    """Of the weights that are kept."""


@triton.jit
def find_place(sizes):
    """Return row and head of this program; offsets of large tensors need 64 bits."""
    index = tl.program_id(1).to(tl.int64)
    return index // sizes.n_head, index % sizes.n_head


@triton.jit
def point_to(x, row, head, place_X, n_place, K: tl.constexpr, P: tl.constexpr):
    """Return pointers to x_XP of a row and head, and which of them there are."""
    k_P = tl.arange(0, P)
    start = x.data + row * x.row + head * x.head
    is_there = (place_X < n_place)[:, None]
    if K != P:
        is_there = is_there & (k_P < K)[None, :]
    return start + place_X[:, None] * x.place + k_P[None, :], is_there


@triton.jit
def read(x, row, head, place_X, n_place, K: tl.constexpr, P: tl.constexpr):
    pointers, is_there = point_to(x, row, head, place_X, n_place, K, P)
    return tl.load(pointers, mask=is_there, other=0.0)


@triton.jit
def write(x, row, head, place_X, n_place, value_XP, K: tl.constexpr, P: tl.constexpr):
    pointers, is_there = point_to(x, row, head, place_X, n_place, K, P)
    tl.store(pointers, value_XP.to(x.data.dtype.element_ty), mask=is_there)


@triton.jit
def read_first(first_BL, row, query_I, sizes):
    """Return the first state that each query sees; there is none for a query that is not there."""
    pointers = first_BL + row * sizes.n_query + query_I
    return tl.load(pointers, mask=query_I < sizes.n_query, other=FAR)


@triton.jit
def score(product, scale, bd, row, head, query, state, first, sizes):
    """Return scores in bits, -inf where a query does not see a state.

    Queries are along one axis, states along the other, as the shapes of `query` and `state` say.
    """
    is_seen = (state >= first) & (state <= query + (sizes.n_state - sizes.n_query))
    in_bits = product * scale
    if bd is not None:
        pointers, is_there = point_by_distance(bd, row, head, query, state, sizes)
        in_bits += tl.load(pointers, mask=is_there, other=0.0)
    return tl.where(is_seen, in_bits, float("-inf"))


@triton.jit
def point_by_distance(bd, row, head, query, state, sizes):
    """Return pointers to the scores by distance, and which of them there are."""
    n_group = tl.cdiv(sizes.n_query, EIGHT)
    group = query // EIGHT
    column = (n_group - group) * EIGHT + state
    start = bd.data + row * bd.row + head * bd.head
    pointers = start + (query % EIGHT * bd.place + group * bd.group + column)
    return pointers, (column >= 0) & (column < sizes.n_column) & (group < n_group)


@triton.jit
def keep(dropped, query, state):
    """Return which weights are kept, along the axes of `query` and `state`.

    Numbers depend on their place alone. Philox (Salmon et al. 2011) has one for each query and
    head; from there, a generator like SplitMix (Steele et al. 2014) has those of the states.
    """
    zero = query * 0
    of_head = zero + tl.program_id(1)
    begin, _, _, _ = tl.philox(tl.load(dropped.seed), query, of_head, zero, zero)
    bits = begin + state.to(tl.uint32) * 0x9E3779B9
    # Constants of Wellons' lowbias32 (2018).
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = bits ^ (bits >> 16)
    return (bits >> 1).to(tl.int32) >= dropped.below


@triton.jit
def find_states(first_I, tile, sizes, QUERIES: tl.constexpr, STATES: tl.constexpr):
    """Return start and stop of the states that some query of a tile sees; whole tiles from 0."""
    low = tl.min(first_I, axis=0) // STATES * STATES
    high = (tile + 1) * QUERIES + sizes.n_state - sizes.n_query
    return low, tl.minimum(high, sizes.n_state)


@triton.jit
def attend_queries(
    query, key, value, bd, first_BL, dropped, out, total_BHL, sizes, scale,
    K: tl.constexpr, P: tl.constexpr,
    QUERIES: tl.constexpr, STATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write softmax(scores) values of a tile of queries, and the logarithm of the sum in bits."""
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    query_I = tile * QUERIES + tl.arange(0, QUERIES)
    first_I = read_first(first_BL, row, query_I, sizes)
    query_IP = read(query, row, head, query_I, sizes.n_query, K, P)
    largest_I = tl.full((QUERIES,), NOTHING, tl.float32)
    sum_I = tl.zeros((QUERIES,), tl.float32)
    out_IP = tl.zeros((QUERIES, P), tl.float32)
    low, high = find_states(first_I, tile, sizes, QUERIES, STATES)
    for start in range(low, high, STATES):
        state_J = start + tl.arange(0, STATES)
        key_JP = read(key, row, head, state_J, sizes.n_state, K, P)
        product_IJ = tl.dot(query_IP, tl.trans(key_JP), input_precision=PRECISION)
        score_IJ = score(
            product_IJ, scale, bd, row, head,
            query_I[:, None], state_J[None, :], first_I[:, None], sizes,
        )  # fmt: skip
        larger_I = tl.maximum(largest_I, tl.max(score_IJ, axis=1))
        weight_IJ = tl.exp2(score_IJ - larger_I[:, None])
        fade_I = tl.exp2(largest_I - larger_I)
        sum_I = sum_I * fade_I + tl.sum(weight_IJ, axis=1)
        if dropped is not None:
            kept_IJ = keep(dropped, query_I[:, None], state_J[None, :])
            weight_IJ = tl.where(kept_IJ, weight_IJ, 0.0)
        value_JP = read(value, row, head, state_J, sizes.n_state, K, P)
        out_IP = tl.dot(
            weight_IJ.to(value_JP.dtype),
            value_JP,
            out_IP * fade_I[:, None],
            input_precision=PRECISION,
        )
        largest_I = larger_I
    # Queries that are not there have seen nothing.
    sum_I = tl.maximum(sum_I, 1e-30)
    out_IP = out_IP / sum_I[:, None]
    if dropped is not None:
        out_IP = out_IP * dropped.factor
    write(out, row, head, query_I, sizes.n_query, out_IP, K, P)
    totals = total_BHL + (row * sizes.n_head + head) * sizes.n_query + query_I
    tl.store(totals, largest_I + tl.log2(sum_I), mask=query_I < sizes.n_query)


@triton.jit
def write_by_distance(bd, row, head, query_I, state_J, value_IJ, sizes):
    """Write values of states, and of columns beside them that no state has."""
    query_I1 = query_I[:, None]
    pointers, is_there = point_by_distance(bd, row, head, query_I1, state_J[None, :], sizes)
    tl.store(pointers, value_IJ.to(bd.data.dtype.element_ty), mask=is_there)


@triton.jit
def write_zeros(
    d_bd, row, head, query_I, start, stop, sizes, QUERIES: tl.constexpr, STATES: tl.constexpr
):
    """Write zeros for whole tiles from start to stop; columns of the products have no others."""
    zero_IJ = tl.zeros((QUERIES, STATES), tl.float32)
    for begin in range(start, stop, STATES):
        state_J = begin + tl.arange(0, STATES)
        write_by_distance(d_bd, row, head, query_I, state_J, zero_IJ, sizes)


@triton.jit
def write_zeros_beside(
    d_bd, row, head, tile, low, high, sizes, QUERIES: tl.constexpr, STATES: tl.constexpr
):
    """Write zeros before and after the states from low to high that a tile of queries has read.

    From column 0 of the last query to column W of the first one.
    """
    query_I = tile * QUERIES + tl.arange(0, QUERIES)
    n_after = tl.cdiv(sizes.n_query, EIGHT) * EIGHT - tile * QUERIES
    n_before = tl.cdiv(low + n_after, STATES)
    write_zeros(d_bd, row, head, query_I, low - n_before * STATES, low, sizes, QUERIES, STATES)
    after = low + tl.cdiv(high - low, STATES) * STATES
    end = sizes.n_column - n_after + QUERIES
    write_zeros(d_bd, row, head, query_I, after, end, sizes, QUERIES, STATES)


@triton.jit
def differentiate_queries(
    query, key, value, bd, first_BL, dropped, out, total_BHL, d_out, d_query, d_bd, delta_BHL,
    sizes, scale, K: tl.constexpr, P: tl.constexpr,
    QUERIES: tl.constexpr, STATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q + u and of (b) + (d) for a tile of queries, each element once.

    It also writes delta, the product of each output and its gradient, for `differentiate_states`.
    """
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    query_I = tile * QUERIES + tl.arange(0, QUERIES)
    is_there_I = query_I < sizes.n_query
    first_I = read_first(first_BL, row, query_I, sizes)
    offset_I = (row * sizes.n_head + head) * sizes.n_query + query_I
    total_I = tl.load(total_BHL + offset_I, mask=is_there_I, other=0.0)
    query_IP = read(query, row, head, query_I, sizes.n_query, K, P)
    d_out_IP = read(d_out, row, head, query_I, sizes.n_query, K, P)
    out_IP = read(out, row, head, query_I, sizes.n_query, K, P)
    delta_I = tl.sum(out_IP.to(tl.float32) * d_out_IP.to(tl.float32), axis=1)
    tl.store(delta_BHL + offset_I, delta_I, mask=is_there_I)
    d_query_IP = tl.zeros((QUERIES, P), tl.float32)
    low, high = find_states(first_I, tile, sizes, QUERIES, STATES)
    for start in range(low, high, STATES):
        state_J = start + tl.arange(0, STATES)
        key_JP = read(key, row, head, state_J, sizes.n_state, K, P)
        value_JP = read(value, row, head, state_J, sizes.n_state, K, P)
        product_IJ = tl.dot(query_IP, tl.trans(key_JP), input_precision=PRECISION)
        score_IJ = score(
            product_IJ, scale, bd, row, head,
            query_I[:, None], state_J[None, :], first_I[:, None], sizes,
        )  # fmt: skip
        d_weight_IJ = tl.dot(d_out_IP, tl.trans(value_JP), input_precision=PRECISION)
        if dropped is not None:
            kept_IJ = keep(dropped, query_I[:, None], state_J[None, :])
            d_weight_IJ = tl.where(kept_IJ, d_weight_IJ * dropped.factor, 0.0)
        d_score_IJ = tl.exp2(score_IJ - total_I[:, None]) * (d_weight_IJ - delta_I[:, None])
        if d_bd is not None:
            write_by_distance(d_bd, row, head, query_I, state_J, d_score_IJ, sizes)
        d_query_IP = tl.dot(
            d_score_IJ.to(key_JP.dtype), key_JP, d_query_IP, input_precision=PRECISION
        )
    write(d_query, row, head, query_I, sizes.n_query, d_query_IP * (scale * LN2), K, P)
    if d_bd is not None:
        write_zeros_beside(d_bd, row, head, tile, low, high, sizes, QUERIES, STATES)


@triton.jit
def differentiate_states(
    query, key, value, bd, first_BL, dropped, total_BHL, d_out, delta_BHL, d_key, d_value,
    sizes, scale, K: tl.constexpr, P: tl.constexpr,
    QUERIES: tl.constexpr, STATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys and values for a tile of states."""
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    state_J = tile * STATES + tl.arange(0, STATES)
    key_JP = read(key, row, head, state_J, sizes.n_state, K, P)
    value_JP = read(value, row, head, state_J, sizes.n_state, K, P)
    d_key_JP = tl.zeros((STATES, P), tl.float32)
    d_value_JP = tl.zeros((STATES, P), tl.float32)
    # Earlier queries do not see these states.
    low = tl.maximum(tile * STATES - sizes.n_state + sizes.n_query, 0)
    for start in range(low // QUERIES * QUERIES, sizes.n_query, QUERIES):
        query_I = start + tl.arange(0, QUERIES)
        is_there_I = query_I < sizes.n_query
        first_I = read_first(first_BL, row, query_I, sizes)
        offset_I = (row * sizes.n_head + head) * sizes.n_query + query_I
        total_I = tl.load(total_BHL + offset_I, mask=is_there_I, other=0.0)
        delta_I = tl.load(delta_BHL + offset_I, mask=is_there_I, other=0.0)
        query_IP = read(query, row, head, query_I, sizes.n_query, K, P)
        d_out_IP = read(d_out, row, head, query_I, sizes.n_query, K, P)
        # Transposed, so that the products for keys and values read it from registers.
        product_JI = tl.dot(key_JP, tl.trans(query_IP), input_precision=PRECISION)
        score_JI = score(
            product_JI, scale, bd, row, head,
            query_I[None, :], state_J[:, None], first_I[None, :], sizes,
        )  # fmt: skip
        weight_JI = tl.exp2(score_JI - total_I[None, :])
        d_weight_JI = tl.dot(value_JP, tl.trans(d_out_IP), input_precision=PRECISION)
        read_JI = weight_JI
        if dropped is not None:
            kept_JI = keep(dropped, query_I[None, :], state_J[:, None])
            read_JI = tl.where(kept_JI, weight_JI * dropped.factor, 0.0)
            d_weight_JI = tl.where(kept_JI, d_weight_JI * dropped.factor, 0.0)
        d_value_JP = tl.dot(
            read_JI.to(d_out_IP.dtype), d_out_IP, d_value_JP, input_precision=PRECISION
        )
        d_score_JI = weight_JI * (d_weight_JI - delta_I[None, :])
        d_key_JP = tl.dot(
            d_score_JI.to(query_IP.dtype), query_IP, d_key_JP, input_precision=PRECISION
        )
    write(d_key, row, head, state_J, sizes.n_state, d_key_JP * (scale * LN2), K, P)
    write(d_value, row, head, state_J, sizes.n_state, d_value_JP, K, P)
