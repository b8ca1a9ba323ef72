"""Three kernels in Triton that keep scores on the chip: a candidate for attention on a GPU.

A program has a tile of queries or of states of one row and head. It goes through the tiles on the
other side, and computes (a) + (c) = (q + u).k there. (b) + (d) were computed by distance before
(flash.py). The number of query l = 8 g + i and state s is at column 8 G - 8 g + s of its row: so
eight neighbors are read at once. Scores are in bits, over the logarithm of 2, because a GPU has an
instruction for powers of 2.

The mask follows from the first state that a query sees; it sees all from there to itself. The
softmax is that of FlashAttention-2 (Dao 2023, Algorithms 1 and 2). Nothing is added atomically.

B rows   L queries   S states   H heads   K head width   G groups of EIGHT queries
W columns of scores by distance   I queries of a tile   J states of a tile
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


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    width: tl.constexpr  # K
    padded: tl.constexpr  # P
    queries: tl.constexpr  # I
    states: tl.constexpr  # J
    precision: tl.constexpr


@triton.jit
def find_place(sizes):
    """Return row and head of this program; offsets of large tensors need 64 bits."""
    index = tl.program_id(1).to(tl.int64)
    return index // sizes.n_head, index % sizes.n_head


@triton.jit
def point_to(x, row, head, place_X, n_place, shape):
    """Return pointers to x_XP of a row and head, and which of them there are."""
    k_P = tl.arange(0, shape.padded)
    start = x.data + row * x.row + head * x.head
    is_there = (place_X < n_place)[:, None]
    if shape.width != shape.padded:
        is_there = is_there & (k_P < shape.width)[None, :]
    return start + place_X[:, None] * x.place + k_P[None, :], is_there


@triton.jit
def read(x, row, head, place_X, n_place, shape):
    pointers, is_there = point_to(x, row, head, place_X, n_place, shape)
    return tl.load(pointers, mask=is_there, other=0.0)


@triton.jit
def write(x, row, head, place_X, n_place, shape, value_XP):
    pointers, is_there = point_to(x, row, head, place_X, n_place, shape)
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
def find_states(first_I, tile, sizes, shape):
    """Return start and stop of the states that some query of a tile sees; whole tiles from 0."""
    low = tl.min(first_I, axis=0) // shape.states * shape.states
    high = (tile + 1) * shape.queries + sizes.n_state - sizes.n_query
    return low, tl.minimum(high, sizes.n_state)


@triton.jit
def attend_queries(
    query, key, value, bd, first_BL, dropped, out, total_BHL, sizes, scale, shape: tl.constexpr
):
    """Write softmax(scores) values of a tile of queries, and the logarithm of the sum in bits."""
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    query_I = tile * shape.queries + tl.arange(0, shape.queries)
    first_I = read_first(first_BL, row, query_I, sizes)
    query_IP = read(query, row, head, query_I, sizes.n_query, shape)
    largest_I = tl.full((shape.queries,), NOTHING, tl.float32)
    sum_I = tl.zeros((shape.queries,), tl.float32)
    out_IP = tl.zeros((shape.queries, shape.padded), tl.float32)
    low, high = find_states(first_I, tile, sizes, shape)
    for start in range(low, high, shape.states):
        state_J = start + tl.arange(0, shape.states)
        key_JP = read(key, row, head, state_J, sizes.n_state, shape)
        product_IJ = tl.dot(query_IP, tl.trans(key_JP), input_precision=shape.precision)
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
        value_JP = read(value, row, head, state_J, sizes.n_state, shape)
        out_IP = tl.dot(
            weight_IJ.to(value_JP.dtype),
            value_JP,
            out_IP * fade_I[:, None],
            input_precision=shape.precision,
        )
        largest_I = larger_I
    # Queries that are not there have seen nothing.
    sum_I = tl.maximum(sum_I, 1e-30)
    out_IP = out_IP / sum_I[:, None]
    if dropped is not None:
        out_IP = out_IP * dropped.factor
    write(out, row, head, query_I, sizes.n_query, shape, out_IP)
    totals = total_BHL + (row * sizes.n_head + head) * sizes.n_query + query_I
    tl.store(totals, largest_I + tl.log2(sum_I), mask=query_I < sizes.n_query)


@triton.jit
def write_by_distance(bd, row, head, query_I, state_J, value_IJ, sizes):
    """Write values of states, and of columns beside them that no state has."""
    query_I1 = query_I[:, None]
    pointers, is_there = point_by_distance(bd, row, head, query_I1, state_J[None, :], sizes)
    tl.store(pointers, value_IJ.to(bd.data.dtype.element_ty), mask=is_there)


@triton.jit
def write_zeros(d_bd, row, head, query_I, start, stop, sizes, shape):
    """Write zeros for whole tiles from start to stop; columns of the products have no others."""
    zero_IJ = tl.zeros((shape.queries, shape.states), tl.float32)
    for begin in range(start, stop, shape.states):
        state_J = begin + tl.arange(0, shape.states)
        write_by_distance(d_bd, row, head, query_I, state_J, zero_IJ, sizes)


@triton.jit
def differentiate_queries(
    query, key, value, bd, first_BL, dropped, out, total_BHL, d_out, d_query, d_bd, delta_BHL,
    sizes, scale, shape: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q + u and of (b) + (d) for a tile of queries, each element once.

    It also writes delta, the product of each output and its gradient, for `differentiate_states`.
    """
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    query_I = tile * shape.queries + tl.arange(0, shape.queries)
    is_there_I = query_I < sizes.n_query
    first_I = read_first(first_BL, row, query_I, sizes)
    offset_I = (row * sizes.n_head + head) * sizes.n_query + query_I
    total_I = tl.load(total_BHL + offset_I, mask=is_there_I, other=0.0)
    query_IP = read(query, row, head, query_I, sizes.n_query, shape)
    d_out_IP = read(d_out, row, head, query_I, sizes.n_query, shape)
    out_IP = read(out, row, head, query_I, sizes.n_query, shape)
    delta_I = tl.sum(out_IP.to(tl.float32) * d_out_IP.to(tl.float32), axis=1)
    tl.store(delta_BHL + offset_I, delta_I, mask=is_there_I)
    d_query_IP = tl.zeros((shape.queries, shape.padded), tl.float32)
    low, high = find_states(first_I, tile, sizes, shape)
    for start in range(low, high, shape.states):
        state_J = start + tl.arange(0, shape.states)
        key_JP = read(key, row, head, state_J, sizes.n_state, shape)
        value_JP = read(value, row, head, state_J, sizes.n_state, shape)
        product_IJ = tl.dot(query_IP, tl.trans(key_JP), input_precision=shape.precision)
        score_IJ = score(
            product_IJ, scale, bd, row, head,
            query_I[:, None], state_J[None, :], first_I[:, None], sizes,
        )  # fmt: skip
        d_weight_IJ = tl.dot(d_out_IP, tl.trans(value_JP), input_precision=shape.precision)
        if dropped is not None:
            kept_IJ = keep(dropped, query_I[:, None], state_J[None, :])
            d_weight_IJ = tl.where(kept_IJ, d_weight_IJ * dropped.factor, 0.0)
        d_score_IJ = tl.exp2(score_IJ - total_I[:, None]) * (d_weight_IJ - delta_I[:, None])
        if d_bd is not None:
            write_by_distance(d_bd, row, head, query_I, state_J, d_score_IJ, sizes)
        d_query_IP = tl.dot(
            d_score_IJ.to(key_JP.dtype), key_JP, d_query_IP, input_precision=shape.precision
        )
    write(d_query, row, head, query_I, sizes.n_query, shape, d_query_IP * (scale * LN2))
    if d_bd is not None:
        # From column 0 of the last query to column W of the first one.
        n_after = tl.cdiv(sizes.n_query, EIGHT) * EIGHT - tile * shape.queries
        n_before = tl.cdiv(low + n_after, shape.states)
        write_zeros(d_bd, row, head, query_I, low - n_before * shape.states, low, sizes, shape)
        after = low + tl.cdiv(high - low, shape.states) * shape.states
        end = sizes.n_column - n_after + shape.queries
        write_zeros(d_bd, row, head, query_I, after, end, sizes, shape)


@triton.jit
def differentiate_states(
    query, key, value, bd, first_BL, dropped, total_BHL, d_out, delta_BHL, d_key, d_value,
    sizes, scale, shape: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys and values for a tile of states."""
    tile = tl.program_id(0)
    row, head = find_place(sizes)
    state_J = tile * shape.states + tl.arange(0, shape.states)
    key_JP = read(key, row, head, state_J, sizes.n_state, shape)
    value_JP = read(value, row, head, state_J, sizes.n_state, shape)
    d_key_JP = tl.zeros((shape.states, shape.padded), tl.float32)
    d_value_JP = tl.zeros((shape.states, shape.padded), tl.float32)
    # Earlier queries do not see these states.
    low = tl.maximum(tile * shape.states - sizes.n_state + sizes.n_query, 0)
    for start in range(low // shape.queries * shape.queries, sizes.n_query, shape.queries):
        query_I = start + tl.arange(0, shape.queries)
        is_there_I = query_I < sizes.n_query
        first_I = read_first(first_BL, row, query_I, sizes)
        offset_I = (row * sizes.n_head + head) * sizes.n_query + query_I
        total_I = tl.load(total_BHL + offset_I, mask=is_there_I, other=0.0)
        delta_I = tl.load(delta_BHL + offset_I, mask=is_there_I, other=0.0)
        query_IP = read(query, row, head, query_I, sizes.n_query, shape)
        d_out_IP = read(d_out, row, head, query_I, sizes.n_query, shape)
        # Transposed, so that the products for keys and values read it from registers.
        product_JI = tl.dot(key_JP, tl.trans(query_IP), input_precision=shape.precision)
        score_JI = score(
            product_JI, scale, bd, row, head,
            query_I[None, :], state_J[:, None], first_I[None, :], sizes,
        )  # fmt: skip
        weight_JI = tl.exp2(score_JI - total_I[None, :])
        d_weight_JI = tl.dot(value_JP, tl.trans(d_out_IP), input_precision=shape.precision)
        read_JI = weight_JI
        if dropped is not None:
            kept_JI = keep(dropped, query_I[None, :], state_J[:, None])
            read_JI = tl.where(kept_JI, weight_JI * dropped.factor, 0.0)
            d_weight_JI = tl.where(kept_JI, d_weight_JI * dropped.factor, 0.0)
        d_value_JP = tl.dot(
            read_JI.to(d_out_IP.dtype), d_out_IP, d_value_JP, input_precision=shape.precision
        )
        d_score_JI = weight_JI * (d_weight_JI - delta_I[None, :])
        d_key_JP = tl.dot(
            d_score_JI.to(query_IP.dtype), query_IP, d_key_JP, input_precision=shape.precision
        )
    write(d_key, row, head, state_J, sizes.n_state, shape, d_key_JP * (scale * LN2))
    write(d_value, row, head, state_J, sizes.n_state, shape, d_value_JP)
