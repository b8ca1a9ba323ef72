"""Table, figure and claims of bytes and words, from results.json alone."""

import math
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
MARGIN = 0.01
"""Bits per byte; nats per word."""
PUBLISHED = 99.3
"""Test perplexity of the LSTM without a cache on WikiText-2: Grave et al. 2017."""


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["model", "parameters", "mem_len", "bits per byte (seeds)", "perplexity (seeds)"]]
    for kind, name in NAMES.items():
        for mem_len in list_mem_lens(records, kind):
            size = f"{results.select(records, kind=kind)[0]['parameters']:,}"
            bits = results.format_spread(collect(records, kind, mem_len).values())
            perplexity = collect(records, kind, mem_len, "perplexity").values()
            rows.append([name, size, mem_len, bits, results.format_spread(perplexity, 1)])
    if xz := records.get("xz"):
        rows.append(["xz -9e, alone", "", "", f"{xz['alone']:.3f}", ""])
        rows.append(["xz -9e, after the training text", "", "", f"{xz['after']:.3f}", ""])
    return rows


def list_mem_lens(records: results.Records, kind: str) -> list[str]:
    found = results.select(records, kind=kind)
    return sorted(found[0]["test_by_mem_len"], key=int) if found else []


def collect(
    records: results.Records, kind: str, mem_len: str, name: str = "bits_per_byte"
) -> dict[int, float]:
    return results.collect(records, "test_by_mem_len", mem_len, name, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of each model, and of xz."""
    bits = {
        f"{label} {mem_len}": collect(records, kind, mem_len).values()
        for kind, label in BARS.items()
        for mem_len in list_mem_lens(records, kind)
    }
    if bits:
        seeds = results.format_seeds(*map(len, bits.values()))
        xz = records["xz"]
        bits |= {"xz, after the training text": [xz["after"]], "xz, alone": [xz["alone"]]}
        title = f"Bytes of enwik8: does memory help? ({seeds}; xz beside it)"
        results.draw_bits(folder / "bytes.png", title, bits)


def list_claims(records: results.Records) -> list[results.Claim]:
    claims, ours = [], collect(records, "bytes", "128")
    shown = results.format_spread(ours.values()) if ours else ""
    if ours and (xz := records.get("xz")):
        theirs = f"{xz['after']:.3f} after the training text, {xz['alone']:.3f} alone"
        texts = "Bits per byte of enwik8's prefix", "xz -9e", theirs, shown, SCALE
        gains = results.subtract(dict.fromkeys(ours, xz["after"]), ours)
        claims.append(results.Claim(*texts, gains, MARGIN))
    if ours and (plain := collect(records, "plain bytes", "0")):
        name = "Memory beats no memory at equal parameters, bytes"
        without = f"{results.format_spread(plain.values())}, ours trained without"
        texts = name, "paper, Section 4", without, shown, SCALE
        claims.append(results.Claim(*texts, results.subtract(plain, ours), MARGIN))
    return claims + claim_perplexity(records)


def claim_perplexity(records: results.Records) -> list[results.Claim]:
    ours = collect(records, "words", "128", "perplexity").values()
    if not ours:
        return []
    size = f"{results.select(records, kind='words')[0]['parameters']:,} parameters"
    scale = f"{size}, one pass over the text; theirs an LSTM, converged"
    source, shown = "Grave et al. 2017: LSTM without a cache", results.format_spread(ours, 1)
    texts = "WikiText-2, test perplexity", source, f"{PUBLISHED}", shown, scale
    return [results.Claim(*texts, [math.log(PUBLISHED / each) for each in ours], MARGIN)]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
