"""docs/walkthrough.md shows the package's code, and numbers that the package computes."""

import doctest
import re
from fractions import Fraction
from math import log
from pathlib import Path

import pytest
import torch

from docs import make_walkthrough
from txl_lightning import Memory
from txl_lightning.model.kernels import reference
from txl_lightning.model.memory import Mask
from txl_lightning.model.positions import DistanceTerms

PAGE = (Path(__file__).parents[1] / "docs" / "walkthrough.md").read_text()
PROSE = " ".join(PAGE.split())
EXAMPLES = "".join(re.findall(r"```python\n(>>>.*?)```", PAGE, re.DOTALL))


def test_the_code_of_the_page_is_that_of_the_package():
    assert make_walkthrough.insert_code(PAGE) == PAGE, "run python docs/make_walkthrough.py"


def test_the_page_quotes_memory_mask_positions_attention_shift_and_layer():
    quoted = " ".join(names for _, names in make_walkthrough.BLOCK.findall(PAGE))
    names = {name.removesuffix(":body") for name in quoted.split()}
    assert names >= {"Memory.update", "attention_mask", "Sinusoidal.forward", "Learned.forward"}
    assert names >= {"score_content", "score_distances", "index_of_distance", "shift"}
    assert names >= {"Layer.forward", "FeedForward.forward", "RelativeAttention.forward"}


def test_the_examples_of_the_page_print_what_it_says():
    test = doctest.DocTestParser().get_doctest(EXAMPLES, {}, "walkthrough", None, 0)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0


def read_row(name: str) -> list[list[float]]:
    """Return the numbers of both queries in a row of the table of terms."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name} ")]
    cells = line.strip("| ").split(" | ")[1:]
    return [[float(Fraction(each)) for each in cell.split(", ")] for cell in cells]


def read_values(pattern: str) -> torch.Tensor:
    """Return the numbers that the example says in words."""
    [found] = re.findall(pattern + r" (-?\d+(?:, -?\d+)*)", PROSE)
    return torch.tensor([float(each) for each in found.split(", ")])


def compute_rows() -> dict[str, torch.Tensor]:
    """Return the scores of the example by term, in units of log 2, its softmax, and the result."""
    q = read_values("The queries are q =").view(1, 2, 1, 1)
    k = log(2) * read_values("keys of the four states are k =").view(1, 4, 1, 1)
    r_THK = log(2) * read_values("The distances 4, 3, 2, 1, 0 have r =").view(5, 1, 1)
    one_HK = read_values("and u = v =").view(1, 1)
    every = DistanceTerms(r_THK, u_HK=one_HK, v_HK=one_HK)
    mask = Memory(torch.zeros(1, 1, 2, 1), torch.tensor([2])).attention_mask(2)
    without_q = torch.zeros_like(q)
    without_bias = DistanceTerms(r_THK=r_THK)
    rows = {
        "(a)": reference.score_content(q, k, without_bias),
        "(b)": reference.score_distances(q, 4, without_bias),
        "(c)": reference.score_content(without_q, k, every),
        "(d)": reference.score_distances(without_q, 4, every),
        "sum": reference.score_content(q, k, every) + reference.score_distances(q, 4, every),
    }
    rows = {name: score_BHLS / log(2) for name, score_BHLS in rows.items()}
    value = read_values("0, and their values").view(1, 4, 1, 1)
    result = reference.attend(q, torch.stack([k, value], dim=2), every, Mask(mask), 0.0)
    return rows | {"softmax": reference.weigh_states(q, k, every, mask), "result": result}


@pytest.mark.parametrize("name", ["(a)", "(b)", "(c)", "(d)", "sum", "softmax"])
def test_the_numbers_to_follow_by_hand_are_those_of_the_reference_kernel(name):
    # The first query sees three states, the second one four.
    first, second = read_row(name)
    computed = compute_rows()[name][0, 0]
    torch.testing.assert_close(computed[0, :3], torch.tensor(first))
    torch.testing.assert_close(computed[1], torch.tensor(second))


def test_the_result_to_follow_by_hand_is_that_of_the_reference_kernel():
    [line] = [line for line in PAGE.splitlines() if line.startswith("| times the values ")]
    results = [float(each) for each in re.findall(r"\*\*(\d+)\*\*", line)]
    torch.testing.assert_close(compute_rows()["result"].flatten(), torch.tensor(results))
