"""Table, figure and claims of layers with and without memory, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

READ = ("segments", "window")
KINDS = {
    "4, memory": ("4 layers, memory of 128", ("memory",)),
    "4": ("4 layers without memory", READ),
    "4, equal time": ("4 layers without memory, for as long", READ),
    "8": ("8 layers without memory", READ),
    "12": ("12 layers without memory", READ),
}
EQUAL = "paper: 1.06 and 1.11 bits per byte with and without memory, 12 layers"
DEEPER = "paper: 12 layers with memory equal 64 without, 1.06 bits per byte"
PUBLISHED = {"4": EQUAL, "4, equal time": EQUAL, "8": DEEPER, "12": DEEPER}
WAYS = {"segments": "in segments, as trained", "window": "by a window that moves by 8"}
MARGIN = 0.01  # bits per byte


def list_rows(records: results.Records) -> list[list[Any]]:
    head = ["network", "parameters", "learning rate", "updates", "read"]
    rows = [[*head, "bits per byte (seeds)"]]
    for kind, (name, ways) in KINDS.items():
        found = results.select(records, kind=kind)
        for way in ways if found else ():
            updates = f"{found[0]['options']['trainer.max_steps']:,}"
            cells = f"{found[0]['parameters']:,}", f"{found[0]['rate']:g}", updates
            bits = results.format_spread(collect_bits(records, kind, way).values())
            rows.append([name, *cells, WAYS.get(way, "with memory, as trained"), bits])
    if xz := records.get("xz"):
        rows.append(["xz -9e, alone", *[""] * 4, f"{xz['alone']:.3f}"])
        rows.append(["xz -9e, after the training text", *[""] * 4, f"{xz['after']:.3f}"])
    return rows


def collect_bits(records: results.Records, kind: str, way: str) -> results.BySeed:
    return results.collect(records, "bits_per_byte", way, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte by layers, with a line for the network with memory."""
    ours = collect_bits(records, "4, memory", "memory")
    depths = [kind for kind in ("4", "8", "12") if results.select(records, kind=kind)]
    if not ours or not depths:
        return
    title = f"How many layers does memory replace? ({results.format_seeds(len(ours))})"
    labels = {"xlabel": "layers", "ylabel": "bits per byte of enwik8's prefix"}
    with results.draw_figure(folder / "depth.png", title, 8, 4, **labels) as axes:
        for way, shown in WAYS.items():
            columns = [[*collect_bits(records, kind, way).values()] for kind in depths]
            rows, label = [*zip(*columns, strict=True)], f"without memory, {shown}"
            results.plot_seeds(axes, [*map(int, depths)], rows, label=label)
        mean, _ = results.spread(ours.values())
        axes.axhline(mean, linestyle="--", color="black", label="4 layers with memory")
        axes.set_xticks([*map(int, depths)])


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each network without memory and way of reading, and one for xz."""
    ours, rows = collect_bits(records, "4, memory", "memory"), []
    if not ours:
        return []
    shown, size = results.format_spread(ours.values()), "bytes of enwik8's prefix"
    for kind, (name, ways) in list(KINDS.items())[1:]:
        for way in ways:
            theirs = collect_bits(records, kind, way)
            if gains := results.subtract(theirs, ours):
                text = f"{PUBLISHED[kind]}; trained here: {results.format_spread(theirs.values())}"
                claim = f"Depth: fewer bits than {name}, read {WAYS[way]}"
                scale = f"{count_bytes(records, '4, memory')} and {count_bytes(records, kind)}"
                texts = claim, "paper, Table 2", text, shown, f"{scale} {size}"
                rows.append(results.Claim(*texts, gains, MARGIN))
    if xz := records.get("xz"):
        theirs = f"{xz['after']:.3f} after the training text"
        gains = results.subtract(dict.fromkeys(ours, xz["after"]), ours)
        scale = f"{count_bytes(records, '4, memory')} {size}"
        texts = "Depth: fewer bits than xz", "xz -9e", theirs, shown, scale
        rows.append(results.Claim(*texts, gains, MARGIN))
    return rows


def count_bytes(records: results.Records, kind: str) -> str:
    [first, *_] = results.select(records, kind=kind)
    options = first["options"]
    size = options["data.batch_size"] * options["data.tgt_len"]
    return f"{options['trainer.max_steps'] * size / 1e6:.1f}M"


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
