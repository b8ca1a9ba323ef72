"""Tables and figures of passages by distance, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.results import Records
from txl_lightning.analysis.contrasts import Contrast

SAME_NATS = 0.01  # nats of a token
CURVES = {
    ("passages memory", "as trained"): "memory of 128 as trained",
    ("passages memory", "512"): "memory of 512",
    ("passages alone", "window"): "trained without memory by a window of 64",
}
"""Of passages, by kind and way of reading."""


def list_tables(records: Records) -> list[results.Rows]:
    lines = collect_passages(records)
    rows: list[list[Any]] = [
        ["nats saved per token of a passage, by tokens between", *next(iter(lines.values()), {})]
    ]
    for name, line in lines.items():
        rows.append([name, *(results.format_spread(found.values()) for found in line.values())])
    return [rows]


def collect_passages(records: Records) -> results.Lines:
    curves = {name: collect_curve(records, *key) for key, name in CURVES.items()}
    return {name: curve for name, curve in curves.items() if curve}


def collect_curve(records: Records, kind: str, way: str) -> dict[int, results.BySeed]:
    """Return by the tokens between, and by seed, how much less than the control a passage costs."""
    curve: dict[int, dict[int, float]] = {}
    for seed, ways in results.collect(records, "nats", kind=kind).items():
        for gap, nats in ways[way].items():
            curve.setdefault(int(gap), {})[seed] = nats["control"] - nats["copy"]
    return dict(sorted(curve.items()))


def draw(records: Records, folder: Path) -> None:
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
