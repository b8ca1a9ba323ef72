"""Tables and figures of values and passages by distance, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast
from experiments.how_far_back.pairs import LONGEST, VALUES
from experiments.results import Records

GUESSING = 100 / VALUES
SAME_SHARE, SAME_NATS = 5, 0.01  # percent of the values; nats of a token
CURVES = {
    ("passages memory", "as trained"): "memory of 128 as trained",
    ("passages memory", "512"): "memory of 512",
    ("passages memory", "512, clamped"): "memory of 512 clamped at 191",
    ("passages shaw", "as trained"): "memory of 128 with Shaw's positions",
    ("passages shaw", "512"): "memory of 512 with Shaw's positions",
    ("passages alone", "window"): "trained without memory by a window of 64",
}
"""Of passages, by kind and way of reading."""
DRAWN = [key for key in CURVES if "shaw" not in key[0] and "clamped" not in key[1]]


def list_tables(records: Records) -> list[results.Rows]:
    tables = []
    if mem_lens := list_mem_lens(records):
        ranges = list_ranges(records)
        tables.append([["values recalled (%), by tokens back", *ranges.values()]])
        for mem_len in mem_lens:
            shares = collect_shares(records, mem_len).values()
            cells = (results.format_spread([each[low] for each in shares], 0) for low in ranges)
            tables[-1].append([f"trained with a memory of {mem_len}", *cells])
    curves = {name: collect_curve(records, *key) for key, name in CURVES.items()}
    if gaps := {gap for curve in curves.values() for gap in curve}:
        tables.append([["nats saved per token of a passage, by tokens between", *sorted(gaps)]])
        for name, curve in curves.items():
            if curve:
                cells = (results.format_spread(each.values()) for each in curve.values())
                tables[-1].append([name, *cells])
    return tables


def list_mem_lens(records: Records) -> list[int]:
    return sorted({record["mem_len"] for record in records.values() if "mem_len" in record})


def collect_shares(records: Records, mem_len: int) -> dict[int, dict[int, float]]:
    """Return the percent of right values of each seed, by the nearest distance of a range."""
    found = results.collect(records, "rows", mem_len=mem_len)
    return {
        seed: {row["nearest"]: 100 * row["accuracy"] for row in rows}
        for seed, rows in found.items()
    }


def list_ranges(records: Records) -> dict[int, str]:
    """Return the name of each range of distances by its nearest one."""
    nearest = next(iter(collect_shares(records, list_mem_lens(records)[0]).values()))
    return {low: f"{low}-{min(2 * low - 1, 2 * LONGEST)}" for low in nearest}


def collect_curve(records: Records, kind: str, way: str) -> dict[int, results.BySeed]:
    """Return by the tokens between, and by seed, how much less than the control a passage costs."""
    curve: dict[int, dict[int, float]] = {}
    for seed, ways in results.collect(records, "nats", kind=kind).items():
        for gap, nats in ways[way].items():
            curve.setdefault(int(gap), {})[seed] = nats["control"] - nats["copy"]
    return dict(sorted(curve.items()))


def draw(records: Records, folder: Path) -> None:
    draw_values(records, folder / "values.png")
    draw_passages(records, folder / "passages.png")


def draw_values(records: Records, path: Path) -> None:
    if not (mem_lens := list_mem_lens(records)[-3:]):
        return
    ranges = list_ranges(records)
    seeds = results.format_seeds(*(len(collect_shares(records, n)) for n in mem_lens))
    title = f"Values recalled by distance ({seeds})"
    labels = {"xlabel": "distance to the value (tokens)", "ylabel": "values recalled (%)"}
    with results.draw_figure(path, title, 8, 4, **labels) as axes:
        for mem_len in mem_lens:
            rows = [[*shares.values()] for shares in collect_shares(records, mem_len).values()]
            label = f"trained with a memory of {mem_len}"
            results.plot_seeds(axes, range(len(ranges)), rows, label=label)
        axes.axhline(GUESSING, color="gray", linestyle=":")
        axes.annotate("guessing", (0, GUESSING), (0, 3), textcoords="offset points")
        axes.set_xticks(range(len(ranges)), ranges.values())


def draw_passages(records: Records, path: Path) -> None:
    curves = {CURVES[key]: curve for key in DRAWN if (curve := collect_curve(records, *key))}
    if not curves:
        return
    seeds = results.format_seeds(*(len(next(iter(each.values()))) for each in curves.values()))
    labels = {"xlabel": "tokens between the passages", "ylabel": "nats saved per token"}
    with results.draw_figure(path, f"A passage that comes again ({seeds})", **labels) as axes:
        for name, curve in curves.items():
            rows = [*zip(*(each.values() for each in curve.values()), strict=True)]
            results.plot_seeds(axes, [*curve], rows, label=name)


def list_contrasts(records: Records) -> list[Contrast]:
    rows = [contrast_values(records, mem_len) for mem_len in list_mem_lens(records) if mem_len]
    memory = collect_curve(records, "passages memory", "as trained")
    long = collect_curve(records, "passages memory", "512")
    saved = {
        f"passage after {gap} tokens: seen before against another one": memory.get(gap, {}).values()
        for gap in (128, 256)
    }
    name = "passage after 384 tokens: memory of 512 against the 128 of training"
    saved[name] = results.subtract(long.get(384, {}), memory.get(384, {}))
    return rows + [
        Contrast(name, [*effects], "nats per token", SAME_NATS) for name, effects in saved.items()
    ]


def contrast_values(records: Records, mem_len: int) -> Contrast:
    """Return a contrast with guessing, at the longest distances within a memory."""
    ranges = list_ranges(records)
    within = [low for low in ranges if 2 * low <= mem_len or low == min(ranges)]
    distances = ranges[within[-1]].replace("-", " to ")
    name = f"values {distances} tokens ago: memory of {mem_len} against guessing"
    shares = [each[within[-1]] - GUESSING for each in collect_shares(records, mem_len).values()]
    return Contrast(name, shares, "% of the values", SAME_SHARE)
