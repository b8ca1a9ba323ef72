"""Write the table "ours, theirs" into README.md from all results; five rows go on the front page.

python -m experiments.claims            from the results in this folder
python -m experiments.claims FOLDER     only print the table of results in FOLDER, and its hours
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from importlib import import_module
from pathlib import Path

from experiments.results import Claim, Records, format_table, load_records
from txl_lightning.files import write_text

FOLDER = Path(__file__).parent
PAGE, FRONT_PAGE = FOLDER / "README.md", FOLDER.parent / "README.md"
FRONT = ("fragmentation", "sorting", "tiny_shakespeare", "own_text", "ablation")
"""Folders whose first row is on the front page."""
BEGIN, END = "<!-- claims: by experiments/claims.py -->\n", "<!-- end of claims -->\n"


def main() -> None:
    """Write the tables, or print the one of another folder and the hours of its experiments."""
    if not sys.argv[1:]:
        for page, text in update_pages().items():
            write_text(text, page)
        return
    results = load_results(Path(sys.argv[1]))
    print(format_claims([claim for found in list_claims(results).values() for claim in found]))
    for name, records in results.items():
        seconds = [each["seconds"] for each in records.values() if "seconds" in each]
        print(f"{name}: {sum(seconds) / 3600:.2f} hours, {len(seconds)} of {len(records)} records")


def load_results(folder: Path = FOLDER) -> dict[str, Records]:
    return {path.parent.name: load_records(path) for path in sorted(folder.glob("*/results.json"))}


def update_pages() -> dict[Path, str]:
    """Return the text of each page with its table made from the results."""
    claims = list_claims(load_results())
    every = [claim for found in claims.values() for claim in found]
    front = [claims[name][0] for name in FRONT if name in claims]
    return {page: replace_table(page, each) for page, each in ((PAGE, every), (FRONT_PAGE, front))}


def list_claims(results: Mapping[str, Records]) -> dict[str, list[Claim]]:
    modules = {name: import_module(f"experiments.{name}.figures") for name in results}
    return {name: modules[name].list_claims(records) for name, records in results.items()}


def replace_table(page: Path, claims: Sequence[Claim]) -> str:
    before, rest = page.read_text().split(BEGIN)
    return f"{before}{BEGIN}{format_claims(claims)}{END}{rest.split(END)[1]}"


def format_claims(claims: Sequence[Claim]) -> str:
    return format_table([[field.name for field in fields(Claim)], *map(astuple, claims)])


if __name__ == "__main__":
    main()
