"""docs/walkthrough.md shows the package's code, and numbers that the package computes."""

import doctest
import re
from fractions import Fraction
from math import log
from pathlib import Path

import pytest
import torch

from docs import make_walkthrough
from txl_lightning.model.kernels import reference
from txl_lightning.model.positions import DistanceTerms

PAGE = (Path(__file__).parents[1] / "docs" / "walkthrough.md").read_text()
EXAMPLES = "".join(re.findall(r"```python\n(>>>.*?)```", PAGE, re.DOTALL))


def test_the_code_of_the_page_is_that_of_the_package():
    assert make_walkthrough.insert_code(PAGE) == PAGE, "run python docs/make_walkthrough.py"


def test_the_page_quotes_memory_mask_positions_attention_shift_and_layer():
    names = {name for found in make_walkthrough.BLOCK.findall(PAGE) for name in found[1].split()}
    assert names >= {"Memory.update", "attention_mask", "Sinusoidal.forward", "Learned.forward"}
    assert names >= {"content", "distance", "shift", "Layer.forward", "RelativeAttention.forward"}


def test_the_examples_of_the_page_print_what_it_says():
    test = doctest.DocTestParser().get_doctest(EXAMPLES, {}, "walkthrough", None, 0)
    assert len(test.examples) > 20
    assert doctest.DocTestRunner().run(test).failed == 0


def read_row(name: str) -> list[list[float]]:
    """Return the numbers of both queries in a row of the table of terms."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name} ")]
    cells = line.strip("| ").split(" | ")[1:]
    return [[float(Fraction(each)) for each in cell.split(", ")] for cell in cells]


def compute_rows() -> dict[str, torch.Tensor]:
    """Return the scores of the example by term, in units of log 2, and its softmax."""
    names: dict[str, torch.Tensor] = {}
    assignments = r"^>>> ((?:from|import|q_|k_|value_|r_|terms|mask_).*)$"
    exec("\n".join(re.findall(assignments, EXAMPLES, re.MULTILINE)), names)
    q, k, every, mask = (names[name] for name in ("q_BLHK", "k_BSHK", "terms", "mask_BLS"))
    without_q, without_bias = torch.zeros_like(q), DistanceTerms(r_THK=every.r_THK)
    rows = {
        "(a)": reference.content(q, k, without_bias),
        "(b)": reference.distance(q, 4, without_bias),
        "(c)": reference.content(without_q, k, every),
        "(d)": reference.distance(without_q, 4, every),
        "sum": reference.content(q, k, every) + reference.distance(q, 4, every),
    }
    rows = {name: score_BHLS / log(2) for name, score_BHLS in rows.items()}
    return rows | {"softmax": reference.weights(q, k, every, mask)}


@pytest.mark.parametrize("name", ["(a)", "(b)", "(c)", "(d)", "sum", "softmax"])
def test_the_numbers_to_follow_by_hand_are_those_of_the_reference_kernel(name):
    # The first query sees three states, the second one four.
    first, second = read_row(name)
    computed = compute_rows()[name][0, 0]
    torch.testing.assert_close(computed[0, :3], torch.tensor(first))
    torch.testing.assert_close(computed[1], torch.tensor(second))
