"""Every fault has a row in the table, and every test named there exists."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
LINES = [line for line in TABLE.splitlines() if re.match(r"\| \d", line)]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))


def test_every_row_has_a_line_and_a_test():
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
    assert [int(row[0]) for row in cells] == list(range(1, 43))
    assert all(row[1] and row[2] and "::" in row[3] for row in cells)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_is_named_exists(path, name):
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
