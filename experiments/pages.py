"""Write what follows from results alone: tables, pictures, and the tables of pages that sum up.

python -m experiments.pages [NAME ...]           tables of all folders; pictures of those named
python -m experiments.pages --results FOLDER     tables and pictures of FOLDER/NAME, in it
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from experiments.results import AGAIN, Records, format_table, load_records
from txl_lightning.analysis.contrasts import Contrast, judge_contrast, list_kept
from txl_lightning.files import load_yaml, write_text

FOLDER = Path(__file__).parent
STUDY = ("stop_gradient", "state_bytes", "recurrence", "longer_memory", "test_time")
"""Folders whose figures.py has a table for the page of the study: list_front(records)."""
STUDY_PAGE = FOLDER / "README.md"
INDEX = FOLDER / "contrasts.md"
FRONT_PAGE = FOLDER.parent / "README.md"
COMPARED = ("compared", "effect", "95 % interval", "seeds", "result")
NOT_KEPT = "°"
"""Marks a result that a correction for the number of rows would not keep."""
BEGIN = "<!-- {}: by experiments/pages.py -->\n"
END = "<!-- end of results -->\n"


@dataclass(frozen=True)
class Question:
    """A primary contrast: its folder, its name there, and why it is one."""

    folder: str
    contrast: str
    text: str
    why: str
    records: Sequence[str]
    """Patterns of the names of its records."""
    front: bool = False
    """It is in the table of the first page."""

    def select(self, records: Records) -> list[dict[str, Any]]:
        """Return the records that the contrast is computed from."""
        return [
            each
            for name, each in records.items()
            if not name.endswith(AGAIN) and any(fnmatch(name, one) for one in self.records)
        ]


PRIMARY = [Question(**each) for each in load_yaml((FOLDER / "claims.yaml").read_text())]
"""In the order of contrasts.md. These alone have a result; all others are exploratory."""


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
    return import_module(f"experiments.{name}.figures")


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
    texts = {page: replace_block(page.read_text(), text) for page, text in blocks.items()}
    return tables | texts | {STUDY_PAGE: update_study(results)}


def update_study(results: Mapping[str, Records]) -> str:
    """Return the page of the study, with a table for each of its questions."""
    page = STUDY_PAGE.read_text()
    for name in STUDY:
        rows = import_figures(name).list_front(results[name])
        page = replace_block(page, format_table(rows), name)
    return page


def replace_block(page: str, text: str, name: str = "results") -> str:
    begin = BEGIN.format(name)
    before, rest = page.split(begin)
    return f"{before}{begin}{text}{END}{rest.split(END, 1)[1]}"


def format_summary(name: str, records: Records) -> str:
    """Return the primary contrasts, and the first tables of what was measured."""
    rows = [row for row in list_compared(name, records) if row[-1]]
    figures = import_figures(name)
    shown = figures.list_tables(records)[: getattr(figures, "N_SHOWN", 1)]
    measured = "\n".join(map(format_table, shown))
    return f"{format_table([COMPARED, *rows])}\n{measured}" if rows else measured


def format_tables(name: str, records: Records) -> str:
    """Return what was measured, and all contrasts; primary ones have a result."""
    tables = import_figures(name).list_tables(records)
    return "\n".join(map(format_table, [*tables, [COMPARED, *list_compared(name, records)]]))


def list_compared(name: str, records: Records) -> list[tuple[str, ...]]:
    is_primary = {each.contrast for each in PRIMARY if each.folder == name}
    return [
        (each.name, *describe(each), judge_contrast(each) if each.name in is_primary else "")
        for each in list_contrasts(name, records)
    ]


def describe(contrast: Contrast) -> tuple[str, str, str]:
    return contrast.format_effect(), contrast.format_interval(), contrast.count_seeds()


def format_index(results: Mapping[str, Records]) -> str:
    rows = [["question", "effect", "95 % interval", "seeds", "result", "date", "folder"]]
    judged = list_results(results)
    for question, contrast in list_primary(results):
        link = f"[{question.folder}]({question.folder}/README.md)"
        if contrast is None:
            rows.append([question.text, "not measured yet", "", "", "", "", link])
        else:
            dates = format_dates(question.select(results[question.folder]))
            result = judged[question.folder, question.contrast]
            rows.append([question.text, *describe(contrast), result, dates, link])
    return format_table(rows)


def list_results(results: Mapping[str, Records]) -> dict[tuple[str, str], str]:
    """Return the result of each measured primary contrast, by folder and name, with its mark."""
    found = [(each, contrast) for each, contrast in list_primary(results) if contrast is not None]
    kept = list_kept([contrast for _, contrast in found])
    judged = {}
    for (question, contrast), is_kept in zip(found, kept, strict=True):
        result = judge_contrast(contrast)
        is_marked = result.startswith(("clear", "likely")) and not is_kept
        judged[question.folder, question.contrast] = result + NOT_KEPT * is_marked
    return judged


def format_dates(records: Sequence[dict[str, Any]]) -> str:
    """Return the day of records, or their first and last day."""
    days = sorted({record["origin"]["date"][:10] for record in records})
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def format_front(results: Mapping[str, Records]) -> str:
    """Return the rows of the first page: question, effect, result, and what it takes."""
    head = ("question", "effect (95 % interval)", "result", "parameters", "a seed takes", "folder")
    rows: list[Sequence[str]] = [head]
    judged = list_results(results)
    for question, contrast in list_primary(results):
        link = f"[{question.folder}](experiments/{question.folder}/README.md)"
        if question.front and contrast is None:
            rows.append((question.text, "not measured yet", "", "", "", link))
        elif question.front:
            effect = f"{contrast.format_effect()} ({contrast.format_interval()})"
            result = f"{judged[question.folder, question.contrast]}, {contrast.count_seeds()}"
            records = question.select(results[question.folder])
            rows.append((question.text, effect, result, *describe_cost(records), link))
    return format_table(rows)


def describe_cost(records: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the parameters of networks, in millions, and the median minutes of a seed.

    Minutes are those of a CPU if any seed ran there. Seeds with a record without seconds do not
    count.
    """
    # A record of step times has no seed.
    records = [record for record in records if "seed" in record]
    sizes = sorted({f"{record['parameters'] / 1e6:.1f} M" for record in records})
    seconds: dict[tuple[str, int], list[float]] = {}
    for record in records:
        device = record["origin"]["machine"]["device"]
        seconds.setdefault((device, record["seed"]), []).append(record.get("seconds", 0))
    timed = {key: sum(each) for key, each in seconds.items() if all(each)}
    device = "cpu" if any(name == "cpu" for name, _ in timed) else next(iter(timed))[0]
    minutes = median(total for (name, _), total in timed.items() if name == device) / 60
    where = "" if device == "cpu" else f" ({device})"
    return ", ".join(sizes), f"{minutes:.0f} min{where}"


if __name__ == "__main__":
    main()
