"""Groups as tables, and words of their elements: each token's target is the product so far.

A5 is not solvable, S3 is solvable and not abelian, Z60 is abelian; Merrill et al. 2024 ("The
Illusion of State in State-Space Models", Section 5) take such words of S5, A5 and Z60.

B rows   L tokens in the segment   E elements of the group
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def list_permutations(n: int) -> list[tuple[int, ...]]:
    """Return the permutations of n numbers; the first is the identity."""
    return list(permutations(range(n)))


def is_even(permutation: Sequence[int]) -> bool:
    n_inversion = sum(a > b for i, b in enumerate(permutation) for a in permutation[:i])
    return n_inversion % 2 == 0


def tabulate_permutations(elements: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return table_EE: the number of the permutation i -> a[b[i]], by the numbers of a and b."""
    number = {element: n for n, element in enumerate(elements)}
    return np.array([[number[tuple(a[i] for i in b)] for b in elements] for a in elements])


def tabulate_sums(order: int) -> np.ndarray:
    """Return table_EE of the sums modulo a number."""
    each_E = np.arange(order)
    return (each_E[:, None] + each_E) % order


GROUPS = {
    "S3": tabulate_permutations(list_permutations(3)),
    "A5": tabulate_permutations([each for each in list_permutations(5) if is_even(each)]),
    "Z60": tabulate_sums(60),
}
"""table_EE of each group: the number of the product of two elements. Element 0 is the identity."""


class WordSegment(NamedTuple):
    """The next tokens of the words of all rows."""

    tokens_BL: Tensor
    states_BL: Tensor
    """The targets: the product of the elements of the word, up to each one and with it."""
    doc_pos_BL: Tensor
    """The number of tokens of the word before each one."""


def draw_words(
    table_EE: np.ndarray,
    rng: np.random.Generator,
    n_row: int,
    segment_len: int,
    lengths: Sequence[int],
) -> Iterator[WordSegment]:
    """Yield segments without end; each row has words of its own, one after the other.

    A word begins at the first token of a segment. Its number of segments is one of `lengths`, each
    of which has an equal share of all segments: the longer a word, the rarer.
    """
    state_B = np.zeros(n_row, np.int64)
    n_read_B = np.zeros(n_row, np.int64)
    n_left_B = np.zeros(n_row, np.int64)
    share = np.reciprocal(np.array(lengths, float))
    while True:
        begins_B = n_left_B == 0
        drawn_B = rng.choice(lengths, size=n_row, p=share / share.sum())
        n_left_B = np.where(begins_B, drawn_B, n_left_B) - 1
        n_read_B = np.where(begins_B, 0, n_read_B)
        state_B = np.where(begins_B, 0, state_B)
        tokens_BL = rng.integers(len(table_EE), size=(n_row, segment_len))
        states_BL = multiply(table_EE, state_B, tokens_BL)
        doc_pos_BL = n_read_B[:, None] + np.arange(segment_len)
        state_B = states_BL[:, -1]
        n_read_B = n_read_B + segment_len
        yield WordSegment(*map(torch.from_numpy, (tokens_BL, states_BL, doc_pos_BL)))


def multiply(table_EE: np.ndarray, state_B: np.ndarray, tokens_BL: np.ndarray) -> np.ndarray:
    """Return states_BL: state_B, multiplied from the right by each token in turn."""
    states = []
    for token_B in tokens_BL.T:
        state_B = table_EE[state_B, token_B]
        states.append(state_B)
    return np.stack(states, axis=1)
