"""Table, figure, page and claim of an unseen book, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results


def list_rows(records: results.Records) -> list[list[Any]]:
    found = list(records.values())
    first, mem_lens = found[0], list_mem_lens(found[0])
    rows = [["chapter", *(f"mem_len {mem_len}" for mem_len in mem_lens)]]
    rows.append(
        ["the whole book", *(results.format_spread(select_bits(found, n)) for n in mem_lens)]
    )
    rows.append(["the whole book, xz", *(f"{first['xz_bits_per_byte']:.3f}" for _ in mem_lens)])
    for place, name in enumerate(first["chapters"]):
        curves = [[r["chapter_bits_by_mem_len"][n][place] for r in found] for n in mem_lens]
        rows.append([name, *(f"{results.spread(bits)[0]:.3f}" for bits in curves)])
    return rows


def list_mem_lens(record: dict[str, Any]) -> list[str]:
    return sorted(record["bits_per_byte_by_mem_len"], key=int, reverse=True)


def select_bits(found: list[dict[str, Any]], mem_len: str) -> list[float]:
    return [record["bits_per_byte_by_mem_len"][mem_len] for record in found]


def draw(records: results.Records, folder: Path) -> None:
    """Draw chapters.png, and write page.txt of the first seed."""
    found = list(records.values())
    first = found[0]
    with results.open_figure(folder / "chapters.png", inches=(9, 4)) as (axes,):
        for mem_len, style in zip(list_mem_lens(first), results.STYLES, strict=False):
            # The part before the first chapter is a title, which no model predicts well.
            start = int(first["chapters"][0] == "before")
            rows = [record["chapter_bits_by_mem_len"][mem_len][start:] for record in found]
            label = f"memory of {mem_len}" if mem_len != "0" else "no memory"
            results.plot_seeds(axes, range(1, len(rows[0]) + 1), rows, label=label, **style)
        xz = first["xz_bits_per_byte"]
        axes.axhline(xz, color="gray", linestyle=":", label="xz, the whole book")
        axes.set(xlabel="chapter", ylabel="bits per byte (fewer is better)")
        title = f"Does memory help in every chapter of an unseen book? ({first['book']}"
        results.label_figure(axes, f"{title}; {results.format_seeds(len(found))})")
    page = f"{first['prompt']}\n--- the model continues:\n{first['page']}\n"
    (folder / "page.txt").write_text(page)


def list_claims(records: results.Records) -> list[results.Claim]:
    found = list(records.values())
    first, xz = found[0], found[0]["xz_bits_per_byte"]
    ours = select_bits(found, max(list_mem_lens(first), key=int))
    without = results.format_spread(select_bits(found, "0"))
    scale = f"{first['options']['trainer.max_steps']:,} steps, {first['parameters']:,} parameters"
    name = f"Bits per byte of an unseen book ({first['book']})"
    verdict = "smaller" if results.spread(ours)[0] < xz else "xz is smaller"
    shown = f"{results.format_spread(ours)}; without memory {without}"
    return [results.Claim(name, "xz -9 of the book", f"{xz:.3f}", shown, scale, verdict)]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
