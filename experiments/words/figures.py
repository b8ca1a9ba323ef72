"""Table, figure and claims of bytes and words, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

NAMES = {
    "bytes": "enwik8's first 4.15 MB, trained with memory 128",
    "plain bytes": "the same, trained without memory",
    "words": "WikiText-2, adaptive softmax",
}
BARS = {"bytes": "trained with memory, tested with", "plain bytes": "trained without, tested with"}
SCALE = "3.7 MB of enwik8, 1.5 MB of them read once"
PUBLISHED = 99.3
"""Test perplexity of the LSTM without a cache on WikiText-2: Grave et al. 2017."""


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["model", "parameters", "mem_len", "bits per byte (seeds)", "perplexity (seeds)"]]
    for kind, name in NAMES.items():
        found = results.select(records, kind=kind)
        for mem_len in list_mem_lens(found):
            bits = results.format_spread(select_tests(found, mem_len, "bits_per_byte"))
            perplexity = results.format_spread(select_tests(found, mem_len, "perplexity"), 1)
            rows.append([name, f"{found[0]['parameters']:,}", mem_len, bits, perplexity])
    if xz := records.get("xz"):
        rows.append(["xz -9e, alone", "", "", f"{xz['alone']:.3f}", ""])
        rows.append(["xz -9e, after the training text", "", "", f"{xz['after']:.3f}", ""])
    return rows


def list_mem_lens(found: list[dict[str, Any]]) -> list[str]:
    return sorted(found[0]["test_by_mem_len"], key=int) if found else []


def select_tests(found: list[dict[str, Any]], mem_len: str, name: str) -> list[float]:
    return [each["test_by_mem_len"][mem_len][name] for each in found]


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of each model, and of xz."""
    if not (bars := list_bars(records)):
        return
    with results.open_figure(folder / "bytes.png", inches=(8, 3.4)) as (axes,):
        means, errors = zip(*map(results.spread, bars.values()), strict=True)
        colours = [results.COLOURS[-1 if name.startswith("xz") else 0] for name in bars]
        drawn = axes.barh(list(bars), means, xerr=errors, color=colours)
        axes.bar_label(drawn, [f"{mean:.3f}" for mean in means], padding=3)
        axes.set_xlim(0, 1.15 * max(means))
        axes.invert_yaxis()
        axes.set(xlabel="bits per byte of the test text (fewer is better)")
        seeds = results.format_seeds(
            *(n for kind in BARS if (n := len(results.select(records, kind=kind))))
        )
        results.label_figure(axes, f"Bytes of enwik8: does memory help? ({seeds}; xz beside it)")


def list_bars(records: results.Records) -> dict[str, list[float]]:
    bars = {}
    for kind, label in BARS.items():
        found = results.select(records, kind=kind)
        for mem_len in list_mem_lens(found):
            bars[f"{label} {mem_len}"] = select_tests(found, mem_len, "bits_per_byte")
    if xz := records.get("xz"):
        bars |= {"xz, after the training text": [xz["after"]], "xz, alone": [xz["alone"]]}
    return bars


def list_claims(records: results.Records) -> list[results.Claim]:
    memory, plain, words = (results.select(records, kind=kind) for kind in NAMES)
    claims = []
    if memory and "xz" in records:
        claims.append(claim_xz(select_tests(memory, "128", "bits_per_byte"), records["xz"]))
    if memory and plain:
        ours, theirs = (
            select_tests(found, mem_len, "bits_per_byte")
            for found, mem_len in ((memory, "128"), (plain, "0"))
        )
        claims.append(claim_memory(ours, theirs))
    if words:
        claims.append(claim_words(words))
    return claims


def claim_xz(ours: list[float], xz: dict[str, float]) -> results.Claim:
    ways = [way for way in ("alone", "after") if results.spread(ours)[0] < xz[way]]
    verdict = f"smaller than xz {' and '.join(ways)}" if ways else "xz is smaller"
    theirs = f"{xz['alone']:.3f} alone, {xz['after']:.3f} after the training text"
    texts = "xz -9e", theirs, results.format_spread(ours), SCALE, verdict
    return results.Claim("Bits per byte of enwik8's prefix", *texts)


def claim_memory(ours: list[float], theirs: list[float]) -> results.Claim:
    verdict = "holds" if results.spread(ours)[0] < results.spread(theirs)[0] else "does not hold"
    texts = (
        "paper, Section 4",
        f"{results.format_spread(theirs)}, ours without",
        results.format_spread(ours),
    )
    return results.Claim(
        "Memory beats no memory at equal parameters, bytes", *texts, SCALE, verdict
    )


def claim_words(words: list[dict[str, Any]]) -> results.Claim:
    ours = select_tests(words, "128", "perplexity")
    scale = f"{words[0]['parameters']:,} parameters, one pass over the text; theirs an LSTM"
    verdict = "reached" if results.spread(ours)[0] <= PUBLISHED else "not reached in one pass"
    texts = "Grave et al. 2017: LSTM without a cache", f"{PUBLISHED}"
    return results.Claim(
        "WikiText-2, test perplexity", *texts, results.format_spread(ours, 1), scale, verdict
    )


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
