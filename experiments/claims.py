"""The table "ours, theirs" of README.md, from the results of every folder.

python -m experiments.claims [--print]
"""

import sys
from dataclasses import astuple, fields
from importlib import import_module
from pathlib import Path

from experiments.common import Claim, format_table, load_records

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
BEGIN, END = "<!-- claims: by claims.py -->\n", "<!-- end of claims -->\n"


def main() -> None:
    """Put the table between its two marks in README.md, or print it."""
    table = format_table([[field.name for field in fields(Claim)], *list_rows()])
    if "--print" in sys.argv or BEGIN not in (page := PAGE.read_text()):
        print(table, end="")
        return
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}")


def list_rows() -> list[tuple[str, ...]]:
    rows = []
    for path in sorted(FOLDER.glob("*/results.json")):
        figures = import_module(f"experiments.{path.parent.name}.figures")
        rows += [astuple(claim) for claim in figures.list_claims(load_records(path))]
    return rows


if __name__ == "__main__":
    main()
