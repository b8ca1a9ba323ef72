"""Table, figures and claims of sorting, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

WAYS = {"memory": "with memory", "rereading": "reading everything again"}
SOURCE = "augustwester/transformer-xl and its blog post"
PUBLISHED, AIM, PUBLISHED_TIMES = 97.32, 99.9, 3.04
"""The blog's share of right answers in percent, our aim, and the blog's speedup by memory."""


def list_rows(records: results.Records) -> list[list[Any]]:
    answers = results.select(records, kind="answers")
    rows = [["measured", "mean ± standard deviation (seeds)"]]
    for way, label in WAYS.items():
        rows.append(
            [f"right answers, {label} (%)", results.format_spread(percent(answers, way), 2)]
        )
    rows.append(["same answer both ways (%)", format_identical(answers)])
    for row in records["time"]["rows"] if "time" in records else ():
        rows.append([f"times as fast with memory, {row['length']} digits", f"{row['times']:.2f}"])
    return rows


def percent(answers: list[dict[str, Any]], way: str) -> list[float]:
    return [100 * each[f"{way}_accuracy"] for each in answers]


def format_identical(answers: list[dict[str, Any]]) -> str:
    return results.format_spread([100 * each["identical"] for each in answers], 2)


def draw(records: results.Records, folder: Path) -> None:
    draw_accuracy(results.select(records, kind="answers"), folder / "accuracy.png")
    if "time" in records:
        draw_times(records["time"], folder / "time.png")


def draw_accuracy(answers: list[dict[str, Any]], path: Path) -> None:
    with results.open_figure(path) as (axes,):
        # The curves coincide: crosses on dots.
        styles = (
            results.STYLES[0],
            results.STYLES[1] | {"marker": "x", "linestyle": ":", "markersize": 7},
        )
        for (way, label), style in zip(WAYS.items(), styles, strict=True):
            rows = [[100 * x for x in each[f"{way}_digit_accuracy"]] for each in answers]
            place = range(1, len(rows[0]) + 1)
            results.plot_seeds(axes, place, rows, label=label, **style)
        axes.set(xlabel="place in the sorted answer", ylabel="right digits (%)")
        axes.set_xticks([1, *range(5, len(place) + 1, 5)])
        results.label_figure(
            axes, f"Which digits are sorted right? ({results.format_seeds(len(answers))})"
        )


def draw_times(record: dict[str, Any], path: Path) -> None:
    rows = record["rows"]
    lengths = [row["length"] for row in rows]
    with results.open_figure(path) as (axes,):
        for (way, label), style in zip(WAYS.items(), results.STYLES, strict=False):
            axes.plot(lengths, [row[f"{way}_seconds"] for row in rows], label=label, **style)
        for row in rows:
            where = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
            axes.annotate(
                f"{row['times']:.1f}x", (row["length"], row["rereading_seconds"]), **where
            )
        axes.set(xlabel="digits to sort", ylabel="seconds", xticks=lengths)
        axes.set_ylim(0, 1.15 * max(row["rereading_seconds"] for row in rows))
        results.label_figure(axes, f"How long do {record['samples']:,} answers take? (1 seed)")


def list_claims(records: results.Records) -> list[results.Claim]:
    answers = results.select(records, kind="answers")
    shares = percent(answers, "memory")
    steps = answers[0]["options"]["trainer.max_steps"]
    scale = f"{answers[0]['samples']:,} fresh samples; {steps:,} steps of 128, theirs 6,256"
    verdict = "holds" if results.spread(shares)[0] >= PUBLISHED else "does not hold"
    verdict += f"; {'' if results.spread(shares)[0] >= AIM else 'not '}{AIM} %"
    ours = f"{results.format_spread(shares, 2)} %"
    same = "holds" if all(each["identical"] == 1 for each in answers) else "nearly"
    identical = f"identical in {format_identical(answers)} %"
    name = "Sorting: same answers with memory as without"
    claims = [
        results.Claim("Sorting 20 digits", SOURCE, f"{PUBLISHED} %", ours, scale, verdict),
        results.Claim(name, SOURCE, "identical", identical, scale, same),
    ]
    for row in records["time"]["rows"] if "time" in records else ():
        if row["length"] == 20:
            claims.append(claim_speedup(row["times"], records["time"]["samples"]))
    return claims


def claim_speedup(times: float, count: int) -> results.Claim:
    verdict = "holds" if times >= PUBLISHED_TIMES else "less than theirs"
    texts = f"{PUBLISHED_TIMES} times", f"{times:.2f} times", f"20 digits, {count:,} at once"
    return results.Claim("Sorting: faster with memory", SOURCE, *texts, verdict)


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
