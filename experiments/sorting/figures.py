"""Accuracy of sorting by place, and the time of answering by length: figures, table, claims."""

from typing import Any

from experiments.common import (
    COLOURS,
    Claim,
    choose,
    find_results,
    load_records,
    open_figure,
    show_spread,
    spread,
    write_table,
)

WAYS = {"memory": "with a memory", "rereading": "reading all again"}
SOURCE = "augustwester/transformer-xl and its blog post"


def main() -> None:
    """Draw accuracy.png and time.png, write table.md."""
    path = find_results(__file__)
    records = load_records(path)
    answers = choose(records, kind="answers")
    with open_figure(path.with_name("accuracy.png")) as (axes,):
        for (way, label), colour, style in zip(WAYS.items(), COLOURS, ("o-", "x:"), strict=False):
            places = zip(*(each[f"{way}_digit_accuracy"] for each in answers), strict=True)
            means, errors = zip(
                *(spread([100 * x for x in place]) for place in places), strict=True
            )
            place = range(1, len(means) + 1)
            axes.errorbar(place, means, yerr=errors, fmt=style, label=label, color=colour)
        axes.set(xlabel="place in the answer", ylabel="digits right (%)")
        axes.set_xticks([1, *range(5, len(means) + 1, 5)])
        axes.set_title(f"Sorting {len(means)} digits (stroke: standard deviation of the seeds)")
        axes.legend(frameon=False)
    if "time" in records:
        draw_times(records["time"], path.with_name("time.png"))
    write_table(path.with_name("table.md"), list_rows(answers, records.get("time")))


def draw_times(record: dict[str, Any], path: Any) -> None:
    lengths = [row["length"] for row in record["rows"]]
    with open_figure(path) as (axes,):
        for (way, label), colour in zip(WAYS.items(), COLOURS, strict=False):
            seconds = [row[f"{way}_seconds"] for row in record["rows"]]
            axes.plot(lengths, seconds, "o-", label=label, color=colour)
        axes.set(xscale="log", yscale="log", xlabel="digits to sort", ylabel="seconds")
        axes.set_xticks(lengths, lengths)
        axes.minorticks_off()
        axes.set_title(f"Time to answer {record['samples']:,} samples")
        axes.legend(frameon=False)


def list_rows(answers: list[dict[str, Any]], timed: dict[str, Any] | None) -> list[list[Any]]:
    rows = [["measured", "mean ± standard deviation (seeds)"]]
    for way, label in WAYS.items():
        shares = [100 * each[f"{way}_accuracy"] for each in answers]
        rows.append([f"answers right, {label} (%)", show_spread(shares, 2)])
    rows.append(["the same answer both ways (%)", show_identical(answers)])
    for row in timed["rows"] if timed else ():
        rows.append([f"times as fast with a memory, {row['length']} digits", f"{row['times']:.2f}"])
    return rows


def show_identical(answers: list[dict[str, Any]]) -> str:
    return show_spread([100 * each["identical"] for each in answers], 2)


def list_claims(records: dict[str, dict[str, Any]]) -> list[Claim]:
    answers = choose(records, kind="answers")
    shares = [100 * each["memory_accuracy"] for each in answers]
    steps = answers[0]["options"]["trainer.max_steps"]
    scale = f"{answers[0]['samples']:,} fresh samples; {steps:,} steps of 128, theirs 6,256"
    mean = spread(shares)[0]
    verdict = "holds" if mean >= 97.32 else "does not hold"
    verdict += f"; {'' if mean >= 99.9 else 'not '}99.9 %"
    same = f"identical in {show_identical(answers)} %"
    claims = [
        Claim("20 digits sorted", SOURCE, "97.32 %", f"{show_spread(shares, 2)} %", scale, verdict),
        Claim(
            "the same answers with a memory as without", SOURCE, "identical", same, scale,
            "holds" if all(each["identical"] == 1 for each in answers) else "nearly",
        ),
    ]  # fmt: skip
    if "time" in records:
        [row] = [row for row in records["time"]["rows"] if row["length"] == 20]
        times = f"{row['times']:.2f} times"
        verdict = "holds" if row["times"] >= 3.04 else "does not hold"
        claims.append(
            Claim("faster with a memory", SOURCE, "3.04 times", times, "20 digits", verdict)
        )
    return claims


if __name__ == "__main__":
    main()
