"""Table, figure and claims of the memory length, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.ablation.rows import POSITIONS

TRAINED = "64"  # memory length in training of the models that are evaluated with others
MARGIN = 0.005  # nats that count as no difference


def list_rows(records: results.Records) -> list[list[str]]:
    lengths = list_lengths(records)
    rows = [["nats per subword, by mem_len at evaluation", *lengths]]
    for label, nats in collect_schemes(records).items():
        columns = ([each[length] for each in nats.values()] for length in lengths)
        rows.append([f"positions: {label}", *(results.format_spread(each) for each in columns)])
    return rows


def list_lengths(records: results.Records) -> list[str]:
    return sorted(results.select(records, kind="read")[0]["nats"], key=int)


def collect_schemes(records: results.Records) -> dict[str, results.BySeed]:
    """Return nats by memory length and seed of each position scheme."""
    found = {
        label: results.collect(records, "nats", kind="read", positions=positions)
        for positions, label in POSITIONS.items()
    }
    return {label: nats for label, nats in found.items() if nats}


def draw(records: results.Records, folder: Path) -> None:
    """Draw nats by memory length at evaluation."""
    schemes, lengths = collect_schemes(records), list_lengths(records)
    seeds = results.format_seeds(*map(len, schemes.values()))
    title = f"Do memories longer than in training help? ({seeds})"
    xlabel = f"mem_len at evaluation ({TRAINED} in training)"
    with results.draw_figure(
        folder / "read.png", title, xlabel=xlabel, ylabel="nats per subword"
    ) as axes:
        for label, by_seed in schemes.items():
            rows = [[nats[n] for n in lengths] for nats in by_seed.values()]
            results.plot_seeds(axes, range(len(lengths)), rows, label=f"positions: {label}")
        axes.set_xticks(range(len(lengths)), lengths)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each position scheme: nats saved by the longest memory."""
    claims = []
    for label, by_seed in collect_schemes(records).items():
        if not (found := [nats for nats in by_seed.values() if TRAINED in nats]):
            continue
        longest = max(found[0], key=int)
        saved = [nats[TRAINED] - nats[longest] for nats in found]
        name = f"Memory of {int(longest):,}, unclamped, after {TRAINED} in training: {label}"
        texts = "longer memories at evaluation help", f"{results.format_spread(saved)} nats saved"
        texts = name, "paper, Section 4.1", *texts, "subwords"
        claims.append(results.Claim(*texts, saved, MARGIN))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
