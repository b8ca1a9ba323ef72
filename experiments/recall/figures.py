"""Table, figure and claims of recall by distance, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.recall.pairs import LONGEST, VALUES

GUESSING = 100 / VALUES
RECALLED = 50  # percent of right values from which on a seed counts as one that recalls them
MARGIN = 5  # percent of the values


def list_mem_lens(records: results.Records) -> list[int]:
    return sorted({record["mem_len"] for record in records.values()})


def collect_shares(records: results.Records, mem_len: int) -> dict[int, dict[int, float]]:
    """Return the percent of right values of each seed, by the nearest distance of a range."""
    found = results.collect(records, "rows", mem_len=mem_len)
    return {
        seed: {row["nearest"]: 100 * row["accuracy"] for row in rows}
        for seed, rows in found.items()
    }


def list_ranges(records: results.Records) -> dict[int, str]:
    """Return the name of each range of distances by its nearest one."""
    nearest = next(iter(collect_shares(records, list_mem_lens(records)[0]).values()))
    return {low: f"{low}-{min(2 * low - 1, 2 * LONGEST)}" for low in nearest}


def list_rows(records: results.Records) -> list[list[Any]]:
    ranges = list_ranges(records)
    rows = [
        [
            "values recalled (%), by tokens back",
            "seed",
            *ranges.values(),
            "half of the loss's fall by step",
        ]
    ]
    for mem_len in list_mem_lens(records):
        curves = results.collect(records, "curve", mem_len=mem_len)
        for seed, shares in collect_shares(records, mem_len).items():
            cells = [f"{shares[low]:.0f}" for low in ranges]
            rows.append([f"mem_len {mem_len}", seed, *cells, find_learning_step(curves[seed])])
    return rows


def find_learning_step(curve: dict[str, list[float]]) -> int:
    """Return the step of the first validation after half of the fall of the nats."""
    steps, nats = curve["steps"], curve["val/nats"]
    half = (nats[0] + nats[-1]) / 2
    return next(step for step, value in zip(steps, nats, strict=True) if value <= half)


def draw(records: results.Records, folder: Path) -> None:
    """Draw the share of recalled values by distance; seeds learn to recall, or not: no mean."""
    ranges, segment = list_ranges(records), next(iter(records.values()))["segment"]
    title = f"How far back are values recalled? (segments of {segment}; a line per seed)"
    labels = {"xlabel": "distance to the value (tokens)", "ylabel": "values recalled (%)"}
    with results.draw_figure(folder / "recall.png", title, **labels) as axes:
        for mem_len, style in zip(list_mem_lens(records), results.STYLES, strict=False):
            style = style | {"label": f"trained with mem_len {mem_len}"}
            for shares in collect_shares(records, mem_len).values():
                results.plot_seeds(axes, range(len(ranges)), [list(shares.values())], **style)
                style.pop("label", None)
        axes.axhline(GUESSING, color="gray", linestyle=":", label="guessing")
        axes.set_xticks(range(len(ranges)), ranges.values())


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each memory length: recall at the longest distance within it."""
    claims = []
    for mem_len in list_mem_lens(records):
        by_seed = collect_shares(records, mem_len).values()
        within = [low for low in list_ranges(records) if 2 * low <= mem_len]
        if not within:
            continue
        shares = [each[within[-1]] for each in by_seed]
        first, last = list_ranges(records)[within[-1]].split("-")
        name = f"Values recalled from {first} to {last} tokens ago, mem_len {mem_len}"
        seeds = f"{sum(share >= RECALLED for share in shares)} of {len(shares)} seeds"
        ours = f"{seeds} recall them: {', '.join(f'{share:.0f}' for share in shares)} %"
        texts = "none", f"guessing: {GUESSING:.1f} %", ours, "2 layers of 64, 2,000 steps"
        claims.append(results.Claim(name, *texts, [each - GUESSING for each in shares], MARGIN))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
