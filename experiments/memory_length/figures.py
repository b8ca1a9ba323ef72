"""Figures, table and claims of the length of memory, from results.json alone.

python -m experiments.memory_length.figures [FILE]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.ablation.rows import POSITIONS
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
from experiments.memory_length.pairs import VALUES

Records = Mapping[str, dict[str, Any]]
PUBLISHED = {
    "recurrence_ours_full": (700, 600, 500), "recurrence_shaw_full": (400, 400, 300),
    "alone_ours_full": (300, 300, 300), "alone_al_rfou_half": (128, 128, 128),
}  # fmt: skip
"""RECL in Table 8, for r of 0.1, 0.5 and 1."""
NAMES = {
    "recurrence_ours_full": "recurrence, the paper's positions",
    "recurrence_shaw_full": "recurrence, Shaw", "recurrence_learned_full": "recurrence, learned",
    "alone_ours_full": "no recurrence", "alone_al_rfou_half": "Transformer (Al-Rfou)",
}  # fmt: skip
RECALLED = 0.9
SHARES = (0.1, 0.5, 1.0)


def main() -> None:
    out = find_results(__file__)
    records = load_records(out)
    if choose(records, kind="recl"):
        head = ["RECL", *(f"r = {share:g} (paper)" for share in SHARES)]
        write_table(out.with_name("table.md"), [head, *recl_rows(records)])
        draw_contexts(records, out.with_name("contexts.png"))
    if choose(records, kind="read"):
        draw_read(records, out.with_name("read.png"))
    if choose(records, kind="pairs"):
        draw_pairs(records, out.with_name("pairs.png"))


def find_recl(records: Records, model: str, share: float) -> list[int]:
    """Return the RECL of each seed."""
    rows = [row for record in choose(records, kind="recl") for row in record["rows"]]
    return [row["recl"] for row in rows if (row["model"], row["r"]) == (model, share)]


def recl_rows(records: Records) -> list[list[str]]:
    rows = []
    for model, theirs in PUBLISHED.items():
        cells = [
            f"{show_spread(find_recl(records, model, share), 0)} ({paper})"
            for share, paper in zip(SHARES, theirs, strict=True)
        ]
        rows.append([NAMES[model], *cells])
    return rows


def draw_contexts(records: Records, path: Path) -> None:
    """Draw nats by the tokens that each prediction is made from."""
    found = choose(records, kind="recl")
    with open_figure(path) as (axes,):
        for colour, model in zip(COLOURS, PUBLISHED, strict=False):
            means, deviations = spread_columns([record["nats"][model] for record in found])
            how = {"color": colour, "label": NAMES[model], "fmt": "o-", "markersize": 3}
            axes.errorbar(found[0]["contexts"], means, yerr=deviations, **how)
        axes.set(xlabel="context of each prediction (subwords)", ylabel="nats per subword")
        axes.set_title(f"Loss by context (seeds: {len(found)})", fontsize=10)
        axes.legend(frameon=False)


def draw_read(records: Records, path: Path) -> None:
    """Draw nats by the length of memory at evaluation."""
    with open_figure(path) as (axes,):
        for colour, model in zip(COLOURS, NAMES, strict=False):
            if found := choose(records, kind="read", row=model):
                lengths = sorted(found[0]["nats"], key=int)
                columns = [[record["nats"][n] for n in lengths] for record in found]
                means, deviations = spread_columns(columns)
                label = POSITIONS[found[0]["positions"]]
                how = {"color": colour, "label": label, "fmt": "o-", "markersize": 4}
                axes.errorbar(range(len(lengths)), means, yerr=deviations, capsize=3, **how)
        axes.set_xticks(range(len(lengths)), lengths)
        axes.set(xlabel="mem_len at evaluation; 64 in training", ylabel="nats per subword")
        axes.set_title(f"Longer memory than in training (seeds: {len(columns)})", fontsize=10)
        axes.legend(frameon=False)


def draw_pairs(records: Records, path: Path) -> None:
    """Draw the share of values recalled right by distance."""
    found = choose(records, kind="pairs")
    with open_figure(path) as (axes,):
        for colour, mem_len in zip(COLOURS, sorted({r["mem_len"] for r in found}), strict=False):
            same = choose(records, kind="pairs", mem_len=mem_len)
            nearest = [row["nearest"] for row in same[0]["rows"]]
            rows = [[row["accuracy"] for row in record["rows"]] for record in same]
            means, deviations = spread_columns(rows)
            label = f"mem_len {mem_len}" if mem_len else "no memory"
            how = {"color": colour, "label": label, "fmt": "o-", "markersize": 4}
            axes.errorbar(range(len(nearest)), means, yerr=deviations, capsize=3, **how)
        axes.set_xticks(range(len(nearest)), [f"{low}-{2 * low - 1}" for low in nearest])
        axes.axhline(1 / VALUES, color="grey", linestyle=":", label="guessing")
        axes.set(xlabel="tokens since the key's value", ylabel="values recalled right")
        segment = found[0]["segment"]
        axes.set_title(
            f"Recall by distance, segments of {segment} (seeds: {len(rows)})", fontsize=10
        )
        axes.legend(frameon=False)


def spread_columns(rows: list[list[float]]) -> tuple[list[float], list[float]]:
    """Return means and standard deviations of each column."""
    means, deviations = zip(*map(spread, zip(*rows, strict=True)), strict=True)
    return list(means), list(deviations)


def list_claims(records: Records) -> list[Claim]:
    return [*recl_claims(records), *read_claims(records), *pairs_claims(records)]


def recl_claims(records: Records) -> list[Claim]:
    """Return one row: the paper's order of RECL at r = 0.1."""
    found = {model: find_recl(records, model, SHARES[0]) for model in PUBLISHED}
    if not all(found.values()):
        return []
    means = {model: spread(lengths)[0] for model, lengths in found.items()}
    ours = "; ".join(f"{NAMES[m]} {show_spread(found[m], 0)}" for m in PUBLISHED)
    theirs = "; ".join(f"{NAMES[m]} {lengths[0]}" for m, lengths in PUBLISHED.items())
    ordered = list(means.values()) == sorted(means.values(), reverse=True)
    verdict = "the same order" if ordered else "not the same order"
    scale = f"{choose(records, kind='recl')[0]['positions']} positions, segments of 64"
    return [
        Claim("Effective context, RECL at r 0.1", "paper, Table 8", theirs, ours, scale, verdict)
    ]


def read_claims(records: Records) -> list[Claim]:
    """Return one row for each position scheme: nats saved by the longest memory."""
    claims = []
    for model in NAMES:
        if found := choose(records, kind="read", row=model):
            longest = max(found[0]["nats"], key=int)
            saved = [r["nats"]["64"] - r["nats"][longest] for r in found if "64" in r["nats"]]
            if not saved:
                continue
            what = f"Memory of {longest} after training with 64, {POSITIONS[found[0]['positions']]}"
            best = "longer memories at evaluation help"
            ours = f"{show_spread(saved)} nats saved"
            mean, deviation = spread(saved)
            verdict = "saves" if mean > deviation else "loses" if mean < -deviation else "no change"
            claims.append(Claim(what, "paper, Section 4.1", best, ours, "subwords", verdict))
    return claims


def pairs_claims(records: Records) -> list[Claim]:
    """Return a row for each length of memory: recall within its reach."""
    claims = []
    for mem_len in sorted({record["mem_len"] for record in choose(records, kind="pairs")}):
        found = choose(records, kind="pairs", mem_len=mem_len)
        rows = [[row for row in each["rows"] if 2 * row["nearest"] <= mem_len] for each in found]
        if not rows[0]:
            continue
        far = [each[-1]["accuracy"] for each in rows]
        near = rows[0][-1]["nearest"]
        what = f"Values recalled from {near} to {2 * near - 1} tokens ago, mem_len {mem_len}"
        verdict = "recalled" if min(far) > RECALLED else "not in every seed"
        claims.append(Claim(what, "none", "none", show_spread(far, 2), "2 layers of 64", verdict))
    return claims


if __name__ == "__main__":
    main()
