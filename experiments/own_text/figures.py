"""Table, figure, page and claim of an unseen book, from results.json alone."""

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results

MARGIN = 0.01  # bits per byte
XZ = {
    "alone": "alone",
    "read": "after the training text that the model has read",
    "after": "after all of the training text",
}


def list_rows(records: results.Records) -> list[list[Any]]:
    [first, *_] = results.select(records, kind="book")
    mem_lens = list_mem_lens(first)
    rows = [["chapter", *(f"mem_len {mem_len}" for mem_len in mem_lens)]]
    whole = (results.format_spread(collect_bits(records, n).values()) for n in mem_lens)
    rows.append(["the whole book", *whole])
    for way, label in XZ.items() if "xz" in records else ():
        rows.append([f"the whole book, xz -9e {label}", f"{records['xz'][way]:.3f}", ""])
    curves = [collect_curves(records, mem_len) for mem_len in mem_lens]
    for place, name in enumerate(first["chapters"]):
        means = (fmean(curve[place] for curve in each) for each in curves)
        rows.append([name, *(f"{mean:.3f}" for mean in means)])
    return rows


def list_mem_lens(record: dict[str, Any]) -> list[str]:
    return sorted(record["bits_per_byte_by_mem_len"], key=int, reverse=True)


def collect_bits(records: results.Records, mem_len: str) -> dict[int, float]:
    return results.collect(records, "bits_per_byte_by_mem_len", mem_len, kind="book")


def collect_curves(records: results.Records, mem_len: str) -> list[list[float]]:
    """Return bits per byte of each chapter, for each seed."""
    curves = results.collect(records, "chapter_bits_by_mem_len", mem_len, kind="book")
    return [*curves.values()]


def draw(records: results.Records, folder: Path) -> None:
    """Draw chapters.png, and write page.txt of the first seed."""
    [first, *others] = results.select(records, kind="book")
    title = f"Does memory help in every chapter of an unseen book? ({first['book']}"
    title += f"; {results.format_seeds(1 + len(others))})"
    labels = {"xlabel": "chapter", "ylabel": "bits per byte (fewer is better)"}
    with results.draw_figure(folder / "chapters.png", title, 9, 4, **labels) as axes:
        for mem_len in list_mem_lens(first):
            # The part before the first chapter is a title, which no model predicts well.
            start = int(first["chapters"][0] == "before")
            rows = [curve[start:] for curve in collect_curves(records, mem_len)]
            label = f"memory of {mem_len}" if mem_len != "0" else "no memory"
            results.plot_seeds(axes, range(1, len(rows[0]) + 1), rows, label=label)
        for way, line in {"alone": ":", "read": "--"}.items() if "xz" in records else ():
            label = f"xz, the whole book, {XZ[way]}"
            axes.axhline(records["xz"][way], color="gray", linestyle=line, label=label)
    page = f"{first['prompt']}\n--- the model continues:\n{first['page']}\n"
    (folder / "page.txt").write_text(page)


def list_claims(records: results.Records) -> list[results.Claim]:
    found, xz = results.select(records, kind="book"), records.get("xz")
    if not found or not xz:
        return []
    first = found[0]
    ours = collect_bits(records, list_mem_lens(first)[0])
    without = results.format_spread(collect_bits(records, "0").values())
    texts = [
        f"Bits per byte of an unseen book ({first['book']})",
        "xz -9e",
        f"{xz['read']:.3f} after the text that ours has read, {xz['alone']:.3f} alone",
        f"{results.format_spread(ours.values())}; the same network without its memory {without}",
        f"{first['options']['trainer.max_steps']:,} steps, {first['parameters']:,} parameters",
    ]
    gains = results.subtract(dict.fromkeys(ours, xz["read"]), ours)
    return [results.Claim(*texts, gains, MARGIN)]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
