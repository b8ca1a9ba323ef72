"""Bits per byte beside xz, and perplexity of words: figure, table, claims."""

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

NAMES = {
    "bytes": "enwik8's first 4.15 MB, memory",
    "plain bytes": "the same, no memory",
    "words": "WikiText-2, adaptive softmax",
}


def main() -> None:
    """Draw bytes.png, write table.md."""
    path = find_results(__file__)
    records = load_records(path)
    if bars := list_bars(records):
        with open_figure(path.with_name("bytes.png")) as (axes,):
            drawn = axes.barh(*zip(*bars.items(), strict=True), color=COLOURS[0])
            axes.bar_label(drawn, [f"{value:.3f}" for value in bars.values()], padding=2)
            axes.set_xlim(0, 1.15 * max(bars.values()))
            axes.invert_yaxis()
            axes.set(xlabel="bits per byte of the test text")
            axes.set_title("A prefix of enwik8, bytes")
    write_table(path.with_name("table.md"), list_rows(records))


def list_bars(records: dict[str, dict[str, Any]]) -> dict[str, float]:
    bars = {}
    for kind, name in (("bytes", "memory"), ("plain bytes", "trained without, no memory")):
        if found := choose(records, kind=kind):
            for mem_len in sorted(found[0]["test_by_mem_len"], key=int):
                label = f"{name} {mem_len}" if kind == "bytes" else name
                bars[label] = spread(select(found, mem_len, "bits_per_byte"))[0]
    if "xz" in records:
        bars |= {"xz, after the training text": records["xz"]["after"]}
        bars |= {"xz, alone": records["xz"]["alone"]}
    return bars


def select(found: list[dict[str, Any]], mem_len: str, name: str) -> list[float]:
    return [each["test_by_mem_len"][mem_len][name] for each in found]


def list_rows(records: dict[str, dict[str, Any]]) -> list[list[Any]]:
    rows = [["model", "parameters", "mem_len", "bits per byte (seeds)", "perplexity (seeds)"]]
    for kind, name in NAMES.items():
        if found := choose(records, kind=kind):
            for mem_len in sorted(found[0]["test_by_mem_len"], key=int):
                values = [select(found, mem_len, n) for n in ("bits_per_byte", "perplexity")]
                size = f"{found[0]['parameters']:,}"
                shown = show_spread(values[0]), show_spread(values[1], 1)
                rows.append([name, size, mem_len, *shown])
    if xz := records.get("xz"):
        rows.append(["xz -9e, alone", "", "", f"{xz['alone']:.3f}", ""])
        rows.append(["xz -9e, after the training text", "", "", f"{xz['after']:.3f}", ""])
    return rows


def list_claims(records: dict[str, dict[str, Any]]) -> list[Claim]:
    claims, memory = [], choose(records, kind="bytes")
    scale = "3.7 MB of enwik8, 1.5 MB of them read once"
    if memory and "xz" in records:
        ours, xz = select(memory, "128", "bits_per_byte"), records["xz"]
        ways = [way for way in ("alone", "after") if spread(ours)[0] < xz[way]]
        verdict = f"smaller than xz {' and '.join(ways)}" if ways else "xz is smaller"
        theirs = f"{xz['alone']:.3f} alone, {xz['after']:.3f} after the training text"
        texts = "xz -9e", theirs, show_spread(ours)
        claims.append(Claim("bits per byte of enwik8's prefix", *texts, scale, verdict))
    if memory and (plain := choose(records, kind="plain bytes")):
        ours, theirs = select(memory, "128", "bits_per_byte"), select(plain, "0", "bits_per_byte")
        verdict = "holds" if spread(ours)[0] < spread(theirs)[0] else "does not hold"
        texts = "paper, Section 4", show_spread(theirs), show_spread(ours)
        claims.append(Claim("memory beats none, equal weights, bytes", *texts, scale, verdict))
    if words := choose(records, kind="words"):
        ours, size = select(words, "128", "perplexity"), words[0]["parameters"]
        scale = f"{size:,} parameters, one pass over the text; theirs an LSTM"
        verdict = "reached" if spread(ours)[0] <= 99.3 else "not reached in one pass"
        source = "Grave et al. 2017: LSTM without a cache"
        texts = source, "99.3", show_spread(ours, 1)
        claims.append(Claim("WikiText-2, test perplexity", *texts, scale, verdict))
    return claims


if __name__ == "__main__":
    main()
