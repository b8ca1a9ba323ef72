"""Tables and figures of values and passages by distance, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.how_far_back.pairs import LONGEST, VALUES
from experiments.results import Records
from txl_lightning.analysis.contrasts import Contrast

GUESSING = 100 / VALUES
MEMORYLESS = "trained with a memory of 0"
SAME_NATS = 0.01  # nats of a token
CURVES = {
    ("passages memory", "as trained"): "memory of 128 as trained",
    ("passages memory", "512"): "memory of 512",
    ("passages alone", "window"): "trained without memory by a window of 64",
}
"""Of passages, by kind and way of reading."""


def list_tables(records: Records) -> list[results.Rows]:
    tables = {
        ("values recalled (%), by tokens back", 0): collect_values(records),
        ("nats saved per token of a passage, by tokens between", 3): collect_passages(records),
    }
    return [tabulate(*title, lines) for title, lines in tables.items() if lines]


def tabulate(title: str, digits: int, lines: results.Lines) -> results.Rows:
    rows: list[list[Any]] = [[title, *next(iter(lines.values()))]]
    for name, line in lines.items():
        cells = (results.format_spread(found.values(), digits) for found in line.values())
        rows.append([name, *cells])
    return rows


def collect_values(records: Records) -> results.Lines:
    mem_lens = list_mem_lens(records)
    return {f"trained with a memory of {n}": collect_shares(records, mem_len=n) for n in mem_lens}


def collect_passages(records: Records) -> results.Lines:
    curves = {name: collect_curve(records, *key) for key, name in CURVES.items()}
    return {name: curve for name, curve in curves.items() if curve}


def list_mem_lens(records: Records) -> list[int]:
    return sorted({record["mem_len"] for record in records.values() if "mem_len" in record})


def collect_shares(records: Records, **values: Any) -> dict[str, results.BySeed]:
    """Return the percent of right values by range of distances, and by seed."""
    shares: dict[str, dict[int, float]] = {}
    for seed, rows in results.collect(records, "rows", **values).items():
        for row in rows:
            name = f"{row['nearest']}-{min(2 * row['nearest'] - 1, 2 * LONGEST)}"
            shares.setdefault(name, {})[seed] = 100 * row["accuracy"]
    return shares


def collect_curve(records: Records, kind: str, way: str) -> dict[int, results.BySeed]:
    """Return by the tokens between, and by seed, how much less than the control a passage costs."""
    curve: dict[int, dict[int, float]] = {}
    for seed, ways in results.collect(records, "nats", kind=kind).items():
        for gap, nats in ways[way].items():
            curve.setdefault(int(gap), {})[seed] = nats["control"] - nats["copy"]
    return dict(sorted(curve.items()))


def draw(records: Records, folder: Path) -> None:
    values = {name: line for name, line in collect_values(records).items() if name != MEMORYLESS}
    labels = {"xlabel": "distance to the value (tokens)"}
    labels |= {"ylabel": f"values recalled (%; by guessing {GUESSING:g})"}
    results.draw_lines(folder / "values.png", "Values recalled by distance", values, 8, 4, **labels)
    labels = {"xlabel": "tokens between the passages", "ylabel": "nats saved per token"}
    path = folder / "passages.png"
    title = "A passage that comes again"
    results.draw_lines(path, title, collect_passages(records), **labels)


def list_contrasts(records: Records) -> list[Contrast]:
    memory = collect_curve(records, "passages memory", "as trained")
    long = collect_curve(records, "passages memory", "512")
    saved = {
        f"passage after {gap} tokens: seen before against another one": memory.get(gap, {}).values()
        for gap in (128, 256)
    }
    name = "passage after 384 tokens: memory of 512 against the 128 of training"
    saved[name] = results.subtract(long.get(384, {}), memory.get(384, {}))
    return [
        Contrast(name, [*effects], "nats per token", SAME_NATS) for name, effects in saved.items()
    ]
