"""Table, figure and claims of the sliding window's slowdown, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

HEAD = ["attention length", "ms with memory", "ms with a window", "times slower", "paper"]
MARGIN = 0.1  # of the paper's ratio


def list_rows(records: results.Records) -> list[list[Any]]:
    columns = {"memory_ms_per_token": 2, "window_ms_per_token": 0, "speedup": 0}
    theirs = find_published(records)
    rows = {at: [f"{at:,}"] for at in gather(records, "speedup")}
    for key, digits in columns.items():
        for at, values in gather(records, key).items():
            rows[at].append(results.format_spread(values, digits))
    return [HEAD, *([*cells, theirs.get(at)] for at, cells in rows.items())]


def gather(records: results.Records, key: str) -> dict[int, list[float]]:
    """Return the values of a column, one for each repetition, by attention length."""
    values: dict[int, list[float]] = {}
    for record in records.values():
        for row in record["rows"]:
            values.setdefault(row["attention_len"], []).append(row[key])
    return values


def find_published(records: results.Records) -> dict[int, int]:
    columns = gather(records, "published_speedup")
    return {at: values[0] for at, values in columns.items() if values[0] is not None}


def draw(records: results.Records, folder: Path) -> None:
    """Draw the slowdown, ours and the paper's."""
    times, theirs = gather(records, "speedup"), find_published(records)
    seeds = results.format_seeds(len(records)).replace("seeds", "repetitions")
    title = f"How much slower is a sliding window? ({seeds})"
    labels = {"xlabel": "attention length (tokens)", "ylabel": "times slower than memory"}
    with results.draw_figure(folder / "sliding_window.png", title, **labels) as axes:
        threads = next(iter(records.values()))["origin"]["machine"]["threads"]
        rows = list(zip(*times.values(), strict=True))
        results.plot_seeds(axes, list(times), rows, label=f"ours, CPU, {threads} threads")
        if theirs:
            axes.plot(*zip(*theirs.items(), strict=True), linestyle="--", label="paper, one GPU")
        axes.set_xticks(list(times), [f"{length:,}" for length in times])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each attention length of the paper."""
    times, claims = gather(records, "speedup"), []
    is_disturbed = any(record["disturbed"] for record in records.values())
    for at, theirs in find_published(records).items():
        name = f"A sliding window of {at:,} is slower than memory, by the paper's ratio or more"
        texts = f"{theirs:,} times", f"{results.format_spread(times[at], 0)} times"
        gains = [each - theirs for each in times[at]]
        doubt = "other work disturbed it" if is_disturbed else ""
        scale = "12 layers of 512, a CPU; theirs a GPU"
        claims.append(
            results.Claim(name, "paper, Table 9", *texts, scale, gains, MARGIN * theirs, doubt)
        )
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
