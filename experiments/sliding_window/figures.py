"""Table, figure and claims of the sliding window's slowdown, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

HEAD = ["attention length", "ms with memory", "ms with a window", "times slower", "paper"]


def list_rows(records: results.Records) -> list[list[Any]]:
    columns = {"memory_ms_per_token": 2, "window_ms_per_token": 0, "speedup": 0}
    found = [(gather(records, key), digits) for key, digits in columns.items()]
    theirs = find_published(records)
    rows = [
        [
            f"{at:,}",
            *(results.format_spread(each[at], digits) for each, digits in found),
            theirs.get(at),
        ]
        for at in found[0][0]
    ]
    return [HEAD, *rows]


def gather(records: results.Records, key: str) -> dict[int, list[float]]:
    """Return the values of a column, one for each repetition, by attention length."""
    found: dict[int, list[float]] = {}
    for record in records.values():
        for row in record["rows"]:
            found.setdefault(row["attention_len"], []).append(row[key])
    return found


def find_published(records: results.Records) -> dict[int, int]:
    columns = gather(records, "published_speedup")
    return {at: values[0] for at, values in columns.items() if values[0] is not None}


def draw(records: results.Records, folder: Path) -> None:
    """Draw the slowdown, ours and the paper's."""
    times, theirs = gather(records, "speedup"), find_published(records)
    [*lengths], [*columns] = times, times.values()
    with results.open_figure(folder / "sliding_window.png") as (axes,):
        rows = list(zip(*columns, strict=True))
        threads = next(iter(records.values()))["origin"]["machine"]["threads"]
        results.plot_seeds(
            axes, lengths, rows, label=f"ours, CPU, {threads} threads", **results.STYLES[0]
        )
        if theirs:
            label = "paper, one GPU"
            axes.plot(list(theirs), list(theirs.values()), "--", label=label, **results.STYLES[1])
        axes.set(xlabel="attention length (tokens)", ylabel="times slower than memory")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")
        seeds = results.format_seeds(len(rows)).replace("seeds", "repetitions")
        results.label_figure(axes, f"How much slower is a sliding window? ({seeds})")


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each attention length of the paper."""
    times, claims = gather(records, "speedup"), []
    for at, theirs in find_published(records).items():
        verdict = "holds" if results.spread(times[at])[0] >= theirs else "less than theirs"
        if any(record["disturbed"] for record in records.values()):
            verdict += "; other work disturbed it"
        name = f"A sliding window of {at:,} is slower than memory"
        texts = f"{theirs:,} times", f"{results.format_spread(times[at], 0)} times"
        claims.append(
            results.Claim(name, "paper, Table 9", *texts, "12 layers of 512, a CPU", verdict)
        )
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
