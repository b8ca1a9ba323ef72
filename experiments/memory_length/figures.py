"""Table, figures and claims of the memory length, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.ablation.rows import POSITIONS
from experiments.memory_length.pairs import VALUES

PUBLISHED = {
    "recurrence_ours_full": (700, 600, 500), "recurrence_shaw_full": (400, 400, 300),
    "alone_ours_full": (300, 300, 300), "alone_al_rfou_half": (128, 128, 128),
}  # fmt: skip
"""RECL in Table 8, for r of 0.1, 0.5 and 1."""
SHARES = (0.1, 0.5, 1.0)
NAMES = {
    "recurrence_ours_full": "recurrence, the paper's positions",
    "recurrence_shaw_full": "recurrence, Shaw",
    "alone_ours_full": "no recurrence, the paper's positions",
    "alone_al_rfou_half": "no recurrence, Al-Rfou",
}
TRAINED = "64"
"""Memory length in training of the models that are evaluated with others."""
RECALLED = 0.9
"""Share of right values from which on we call them recalled."""


def list_rows(records: results.Records) -> list[list[str]]:
    rows = [["RECL", *(f"r = {share:g} (paper)" for share in SHARES)]]
    for model, theirs in PUBLISHED.items():
        ours = [find_recl(records, model, share) for share in SHARES]
        cells = zip(ours, theirs, strict=True)
        rows.append(
            [NAMES[model], *(f"{results.format_spread(o, 0)} ({t})" for o, t in cells if o)]
        )
    return rows


def find_recl(records: results.Records, model: str, share: float) -> list[int]:
    """Return the RECL of each seed."""
    rows = [row for record in results.select(records, kind="recl") for row in record["rows"]]
    return [row["recl"] for row in rows if (row["model"], row["r"]) == (model, share)]


def draw(records: results.Records, folder: Path) -> None:
    figures = {"recl": draw_contexts, "read": draw_longer, "pairs": draw_recall}
    names = {"recl": "contexts.png", "read": "read.png", "pairs": "pairs.png"}
    for kind, draw_kind in figures.items():
        if results.select(records, kind=kind):
            draw_kind(records, folder / names[kind])


def draw_contexts(records: results.Records, path: Path) -> None:
    """Draw nats by the number of tokens before each prediction."""
    found = results.select(records, kind="recl")
    with results.open_figure(path) as (axes,):
        for style, (model, label) in zip(results.STYLES, NAMES.items(), strict=False):
            nats = [record["nats"][model] for record in found]
            results.plot_seeds(axes, found[0]["contexts"], nats, label=label, **style)
        axes.set(xlabel="context of each prediction (subwords)", ylabel="nats per subword")
        results.label_figure(
            axes, f"How much context does a model use? ({results.format_seeds(len(found))})"
        )


def draw_longer(records: results.Records, path: Path) -> None:
    """Draw nats by memory length at evaluation."""
    counts = []
    with results.open_figure(path) as (axes,):
        for style, (positions, label) in zip(results.STYLES, POSITIONS.items(), strict=False):
            if found := results.select(records, kind="read", positions=positions):
                lengths = sorted(found[0]["nats"], key=int)
                nats = [[record["nats"][n] for n in lengths] for record in found]
                results.plot_seeds(
                    axes, range(len(lengths)), nats, label=f"positions: {label}", **style
                )
                counts.append(len(found))
        axes.set_xticks(range(len(lengths)), lengths)
        axes.set(xlabel=f"mem_len at evaluation ({TRAINED} in training)", ylabel="nats per subword")
        results.label_figure(
            axes, f"Do memories longer than in training help? ({results.format_seeds(*counts)})"
        )


def draw_recall(records: results.Records, path: Path) -> None:
    """Draw the share of recalled values by distance; seeds learn to recall, or not: no mean."""
    pairs = results.select(records, kind="pairs")
    nearest = [row["nearest"] for row in pairs[0]["rows"]]
    with results.open_figure(path) as (axes,):
        for style, mem_len in zip(
            results.STYLES, sorted({r["mem_len"] for r in pairs}), strict=False
        ):
            found = results.select(records, kind="pairs", mem_len=mem_len)
            for nth, record in enumerate(found):
                shares = [100 * row["accuracy"] for row in record["rows"]]
                label = None if nth else f"trained with mem_len {mem_len}"
                results.plot_seeds(axes, range(len(nearest)), [shares], label=label, **style)
        axes.axhline(100 / VALUES, color="gray", linestyle=":", label="guessing")
        axes.set_xticks(range(len(nearest)), [f"{low}-{2 * low - 1}" for low in nearest])
        axes.set(xlabel="distance to the value (tokens)", ylabel="values recalled (%)")
        segment = f"segments of {pairs[0]['segment']}"
        results.label_figure(
            axes, f"How far back are values recalled? ({segment}; a line per seed)"
        )


def list_claims(records: results.Records) -> list[results.Claim]:
    return [*claim_recl(records), *claim_longer(records), *claim_recall(records)]


def claim_recl(records: results.Records) -> list[results.Claim]:
    """Return one row: is the order of RECL at r = 0.1 the paper's?"""
    found = {model: find_recl(records, model, SHARES[0]) for model in PUBLISHED}
    if not all(found.values()):
        return []
    means = [results.spread(lengths)[0] for lengths in found.values()]
    ours = "; ".join(f"{NAMES[m]} {results.format_spread(found[m], 0)}" for m in PUBLISHED)
    theirs = "; ".join(f"{NAMES[m]} {lengths[0]}" for m, lengths in PUBLISHED.items())
    verdict = "the same order" if means == sorted(means, reverse=True) else "not the same order"
    scale = f"{results.select(records, kind='recl')[0]['positions']} positions, segments of 64"
    name = "Effective context length, RECL at r 0.1"
    return [results.Claim(name, "paper, Table 8", theirs, ours, scale, verdict)]


def claim_longer(records: results.Records) -> list[results.Claim]:
    """Return a row for each position scheme: nats saved by the longest memory."""
    claims = []
    for positions, label in POSITIONS.items():
        found = results.select(records, kind="read", positions=positions)
        found = [record["nats"] for record in found if TRAINED in record["nats"]]
        if not found:
            continue
        longest = max(found[0], key=int)
        saved = [nats[TRAINED] - nats[longest] for nats in found]
        mean, deviation = results.spread(saved)
        verdict = "saves" if mean > deviation else "loses" if mean < -deviation else "no change"
        name = f"Memory of {int(longest):,} after training with {TRAINED}, positions: {label}"
        texts = "longer memories at evaluation help", f"{results.format_spread(saved)} nats saved"
        claims.append(results.Claim(name, "paper, Section 4.1", *texts, "subwords", verdict))
    return claims


def claim_recall(records: results.Records) -> list[results.Claim]:
    """Return a row for each memory length: recall at the longest distance within it."""
    claims = []
    for mem_len in sorted({record["mem_len"] for record in results.select(records, kind="pairs")}):
        found = results.select(records, kind="pairs", mem_len=mem_len)
        rows = [[row for row in each["rows"] if 2 * row["nearest"] <= mem_len] for each in found]
        if not rows[0]:
            continue
        shares, near = [each[-1]["accuracy"] for each in rows], rows[0][-1]["nearest"]
        name = f"Values recalled from {near} to {2 * near - 1} tokens ago, mem_len {mem_len}"
        verdict = "recalled" if min(shares) >= RECALLED else "not in every seed"
        ours = f"{results.format_spread([100 * share for share in shares], 1)} %"
        claims.append(results.Claim(name, "none", "none", ours, "2 layers of 64", verdict))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
