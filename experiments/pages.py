"""Write what follows from results alone: tables and pictures, the index, and the first page's rows.

python -m experiments.pages [NAME ...]           tables of all folders; pictures of those named
python -m experiments.pages --results FOLDER     tables and pictures of FOLDER/NAME, in it
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.contrasts import Contrast, judge
from experiments.results import Records, format_table, load_records
from txl_lightning.files import load_yaml, write_text

FOLDER = Path(__file__).parent
INDEX, FRONT_PAGE = FOLDER / "README.md", FOLDER.parent / "README.md"
COMPARED = ("compared", "effect", "95 % interval", "seeds", "result")
BEGIN, END = "<!-- results: by experiments/pages.py -->\n", "<!-- end of results -->\n"


@dataclass(frozen=True)
class Question:
    """A primary contrast: its folder, its name there, and why it is one."""

    folder: str
    contrast: str
    text: str
    why: str
    front: bool = False
    """It is in the table of the first page."""


PRIMARY = [Question(**each) for each in load_yaml((FOLDER / "claims.yaml").read_text())]
"""In the order of README.md. A word stands beside these alone; all others are exploratory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="folders whose pictures are drawn, too")
    parser.add_argument("--results", type=Path, help="results of make reproduce")
    args = parser.parse_args()
    if args.results:
        show_other_results(args.results)
        return
    results = load_results()
    for name in args.names:
        import_figures(name).draw(results[name], FOLDER / name)
    for page, text in update_pages(results).items():
        write_text(text, page)


def show_other_results(folder: Path) -> None:
    """Write tables and pictures beside results; print the primary contrasts and the hours."""
    results = load_results(folder)
    for name, records in results.items():
        write_text(format_tables(name, records), folder / name / "table.md")
        import_figures(name).draw(records, folder / name)
    print(format_index(results))
    for name, records in results.items():
        seconds = [each["seconds"] for each in records.values() if "seconds" in each]
        print(f"{name}: {sum(seconds) / 3600:.2f} hours, {len(seconds)} of {len(records)} records")


def import_figures(name: str) -> Any:
    module = import_module(f"experiments.{name}.figures")
    return getattr(module, "FIGURES", module)


def list_contrasts(name: str, records: Records) -> list[Contrast]:
    """Return the contrasts of a folder that have results."""
    found = import_figures(name).list_contrasts(records)
    return [contrast for contrast in found if len(contrast.effects)]


def list_primary(results: Mapping[str, Records]) -> list[tuple[Question, Contrast | None]]:
    """Return each primary contrast, and None for one without results."""
    found = {
        (name, contrast.name): contrast
        for name, records in results.items()
        for contrast in list_contrasts(name, records)
    }
    return [(each, found.get((each.folder, each.contrast))) for each in PRIMARY]


def load_results(folder: Path = FOLDER) -> dict[str, Records]:
    """Return the records of each folder that has figures."""
    paths = {path.parent.name: path for path in sorted(folder.glob("*/results.json"))}
    names = [name for name in paths if (FOLDER / name / "figures.py").is_file()]
    return {name: load_records(paths[name]) for name in names}


def update_pages(results: Mapping[str, Records]) -> dict[Path, str]:
    """Return the text of each page that follows from the results."""
    blocks = {INDEX: format_index(results), FRONT_PAGE: format_front(results)}
    blocks |= {FOLDER / name / "README.md": format_summary(name, results[name]) for name in results}
    tables = {FOLDER / name / "table.md": format_tables(name, results[name]) for name in results}
    return tables | {page: replace_block(page, text) for page, text in blocks.items()}


def replace_block(page: Path, text: str) -> str:
    before, rest = page.read_text().split(BEGIN)
    return f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}"


def format_summary(name: str, records: Records) -> str:
    """Return the primary contrasts, and the first table of what was measured."""
    rows = [row for row in list_compared(name, records) if row[-1]]
    measured = format_table(import_figures(name).list_tables(records)[0])
    return f"{format_table([COMPARED, *rows])}\n{measured}" if rows else measured


def format_tables(name: str, records: Records) -> str:
    """Return what was measured, and all contrasts; primary ones have a word."""
    tables = import_figures(name).list_tables(records)
    return "\n".join(map(format_table, [*tables, [COMPARED, *list_compared(name, records)]]))


def list_compared(name: str, records: Records) -> list[tuple[str, ...]]:
    is_primary = {each.contrast for each in PRIMARY if each.folder == name}
    return [
        (each.name, *describe(each), judge(each) if each.name in is_primary else "")
        for each in list_contrasts(name, records)
    ]


def describe(contrast: Contrast) -> tuple[str, str, str]:
    return contrast.format_effect(), contrast.format_interval(), contrast.count_seeds()


def format_index(results: Mapping[str, Records]) -> str:
    rows = [["question", "effect", "95 % interval", "seeds", "result", "date", "folder"]]
    for question, contrast in list_primary(results):
        link = f"[{question.folder}]({question.folder}/README.md)"
        if contrast is None:
            rows.append([question.text, "not measured yet", "", "", "", "", link])
        else:
            records = results[question.folder].values()
            date = max(each["origin"]["date"] for each in records if "seed" in each)[:10]
            rows.append([question.text, *describe(contrast), judge(contrast), date, link])
    return format_table(rows)


def format_front(results: Mapping[str, Records]) -> str:
    """Return the rows of the first page: question, effect, answer."""
    rows: list[Sequence[str]] = [("question", "effect (95 % interval)", "result")]
    for question, contrast in list_primary(results):
        if question.front and contrast is None:
            rows.append((question.text, "not measured yet", ""))
        elif question.front:
            effect = f"{contrast.format_effect()} ({contrast.format_interval()})"
            word = f"{judge(contrast)}, {contrast.count_seeds()} seeds"
            rows.append((question.text, effect, word))
    return format_table(rows)


if __name__ == "__main__":
    main()
