"""The table "ours, theirs" of README.md, from the results of every folder;
five rows are on the front page.

    python -m experiments.claims [FOLDER]

The table of results in another folder, as runs/reproduced, is printed.
"""

import sys
from collections.abc import Sequence
from dataclasses import astuple, fields
from importlib import import_module
from pathlib import Path

from experiments.common import Claim, format_table, load_records

FOLDER = Path(__file__).parent
PAGE, FRONT_PAGE = FOLDER / "README.md", FOLDER.parent / "README.md"
FRONT = ("fragmentation", "sorting", "tiny_shakespeare", "own_text", "ablation")
"""Folders whose first row is on the front page."""
BEGIN, END = "<!-- claims: by experiments/claims.py -->\n", "<!-- end of claims -->\n"


def main() -> None:
    """Put the tables between the two marks of each page, or print that of another folder."""
    claims = load_claims(*map(Path, sys.argv[1:]))
    table = format_claims([claim for found in claims.values() for claim in found])
    if len(sys.argv) > 1:
        print(table, end="")
        return
    replace_table(PAGE, table)
    replace_table(FRONT_PAGE, format_claims([claims[name][0] for name in FRONT if name in claims]))


def load_claims(folder: Path = FOLDER) -> dict[str, list[Claim]]:
    """Return the rows of each experiment that has results in a folder."""
    claims = {}
    for path in sorted(folder.glob("*/results.json")):
        figures = import_module(f"experiments.{path.parent.name}.figures")
        claims[path.parent.name] = figures.list_claims(load_records(path))
    return claims


def format_claims(claims: Sequence[Claim]) -> str:
    return format_table([[field.name for field in fields(Claim)], *map(astuple, claims)])


def replace_table(page: Path, table: str) -> None:
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
