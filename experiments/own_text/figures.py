"""Bits per byte of an unseen book by chapter: figure, table, page, claims."""

from pathlib import Path
from typing import Any

from experiments.common import (
    COLOURS,
    Claim,
    find_results,
    load_records,
    open_figure,
    write_table,
)


def main() -> None:
    """Draw chapters.png, write table.md and page.txt, of the first seed."""
    path = find_results(__file__)
    record = next(iter(load_records(path).values()))
    draw_chapters(record, path.with_name("chapters.png"))
    write_table(path.with_name("table.md"), list_rows(record))
    page = f"{record['prompt']}\n--- and as the model goes on:\n{record['page']}\n"
    path.with_name("page.txt").write_text(page)


def draw_chapters(record: dict[str, Any], path: Path) -> None:
    with open_figure(path, inches=(9, 4)) as (axes,):
        for (mem_len, bits), colour in zip(list_curves(record).items(), COLOURS, strict=False):
            label = f"memory of {mem_len}" if mem_len != "0" else "no memory"
            # What is before the first chapter is a title, of which no model knows much.
            bits = bits[int(record["chapters"][0] == "before") :]
            place = range(1, len(bits) + 1)
            axes.plot(place, bits, "o-", label=label, color=colour, markersize=4)
        xz = record["xz_bits_per_byte"]
        axes.axhline(xz, color="gray", linestyle=":", label="xz, the whole book")
        axes.set(xlabel="chapter", ylabel="bits per byte")
        axes.set_title(f"{record['book']}, {record['book_bytes']:,} bytes, not in the training")
        axes.legend(frameon=False)


def list_curves(record: dict[str, Any]) -> dict[str, list[float]]:
    curves = record["chapter_bits_by_mem_len"]
    return {mem_len: curves[mem_len] for mem_len in sorted(curves, key=int, reverse=True)}


def list_rows(record: dict[str, Any]) -> list[list[Any]]:
    whole, curves = record["bits_per_byte_by_mem_len"], list_curves(record)
    rows = [["chapter", *(f"mem_len {mem_len}" for mem_len in curves)]]
    rows.append(["the whole book", *(f"{whole[mem_len]:.3f}" for mem_len in curves)])
    rows.append(["the same by xz", *(f"{record['xz_bits_per_byte']:.3f}" for _ in curves)])
    for place, name in enumerate(record["chapters"]):
        rows.append([name, *(f"{bits[place]:.3f}" for bits in curves.values())])
    return rows


def list_claims(records: dict[str, dict[str, Any]]) -> list[Claim]:
    record = next(iter(records.values()))
    whole, xz = record["bits_per_byte_by_mem_len"], record["xz_bits_per_byte"]
    with_memory = max(whole, key=int)
    ours, without = whole[with_memory], whole["0"]
    scale = f"{record['options']['trainer.max_steps']:,} steps, {record['parameters']:,} parameters"
    name = f"bits per byte of a book not seen ({record['book']})"
    verdict = "smaller" if ours < xz else "xz is smaller"
    shown = f"{ours:.3f} ({without:.3f} without the memory; 1 seed)"
    return [Claim(name, "xz -9 of the book", f"{xz:.3f}", shown, scale, verdict)]


if __name__ == "__main__":
    main()
