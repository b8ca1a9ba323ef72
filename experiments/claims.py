"""Write the table "ours, theirs" into README.md from all results, and a row of each folder on the
front page: the one with the worst verdict.

python -m experiments.claims            from the results in this folder
python -m experiments.claims FOLDER     only print the table of results in FOLDER, and its hours
"""

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from experiments.results import Claim, Records, format_table, load_records
from experiments.verdicts import Verdict, judge
from txl_lightning.files import write_text

FOLDER = Path(__file__).parent
PAGE, FRONT_PAGE = FOLDER / "README.md", FOLDER.parent / "README.md"
COLUMNS = ("claim", "source", "theirs", "ours", "scale")
RULE = (
    "One row of each experiment ([all](experiments/README.md); `make reproduce` measures them "
    "again, but music):\nthe worst verdict and, among equals, the smallest gain. [Verdicts]"
    "(experiments/verdicts.py) need three seeds: t tests, corrected by Holm.\n"
)
BEGIN, END = "<!-- claims: by experiments/claims.py -->\n", "<!-- end of claims -->\n"


def main() -> None:
    """Write the tables, or print the one of another folder and the hours of its experiments."""
    if not sys.argv[1:]:
        for page, text in update_pages().items():
            write_text(text, page)
        return
    results = load_results(Path(sys.argv[1]))
    print(format_claims(row for rows in list_claims(results).values() for row in rows))
    for name, records in results.items():
        seconds = [each["seconds"] for each in records.values() if "seconds" in each]
        print(f"{name}: {sum(seconds) / 3600:.2f} hours, {len(seconds)} of {len(records)} records")


def load_results(folder: Path = FOLDER) -> dict[str, Records]:
    """Return the records of each folder, without those that are not drawn and make no claim."""
    paths = sorted(folder.glob("*/results.json"))
    names = {path.parent.name: path for path in paths}
    has_figures = {name for name in names if (FOLDER / name / "figures.py").is_file()}
    return {name: load_records(path) for name, path in names.items() if name in has_figures}


def update_pages() -> dict[Path, str]:
    """Return the text of each page with its table made from the results."""
    claims = list_claims(load_results())
    every = [row for rows in claims.values() for row in rows]
    front = [min(rows, key=sort_key) for rows in claims.values()]
    return {
        PAGE: replace_table(PAGE, f"{format_claims(every)}\n{count_verdicts(every)}"),
        FRONT_PAGE: replace_table(
            FRONT_PAGE, f"{RULE}{count_verdicts(every)}\n{format_claims(front)}"
        ),
    }


def sort_key(row: tuple[Claim, Verdict]) -> tuple[int, float]:
    """Return the verdict's rank, and the mean gain in units of what would be no difference."""
    claim, verdict = row
    return verdict.rank, statistics.fmean(claim.gains) / claim.margin


def list_claims(results: Mapping[str, Records]) -> dict[str, list[tuple[Claim, Verdict]]]:
    """Return the claims of each folder; the rows of a folder are corrected together."""
    rows = {}
    for name, records in results.items():
        if claims := import_module(f"experiments.{name}.figures").list_claims(records):
            seeded = [record for record in records.values() if "seed" in record]
            vary = {record["origin"]["seeds_vary"] for record in seeded or records.values()}
            claims = [add_seeds(claim, " or ".join(sorted(vary))) for claim in claims]
            rows[name] = list(zip(claims, judge(claims), strict=True))
    return rows


def add_seeds(claim: Claim, vary: str) -> Claim:
    if len(claim.gains) < 2:
        return claim
    return replace(claim, scale=f"{claim.scale}; seeds vary {vary}")


def count_verdicts(rows: Iterable[tuple[Claim, Verdict]]) -> str:
    """Return a line: how many claims hold, are undecided, and fail or show no difference."""
    rows = list(rows)
    ranks = Counter(verdict.rank for _, verdict in rows)
    against = sum(v.rank == 1 and statistics.fmean(claim.gains) < 0 for claim, v in rows)
    undecided = f"{ranks[1]} undecided ({against} with a mean against the claim)"
    ends = f"{ranks[2]} hold, {undecided}, {ranks[0]} fail or show no difference"
    return f"{len(rows)} claims: {ends}.\n"


def replace_table(page: Path, text: str) -> str:
    before, rest = page.read_text().split(BEGIN)
    return f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}"


def format_claims(rows: Iterable[tuple[Claim, Verdict]]) -> str:
    cells = ([*(getattr(claim, name) for name in COLUMNS), verdict] for claim, verdict in rows)
    return format_table([[*COLUMNS, "verdict"], *cells])


if __name__ == "__main__":
    main()
