"""A run as one page that needs nothing else: no network, no script."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from .history import History
from .memory_gain import SAVED, SEGMENTS
from .plots import NARROW, SMALL, WIDE, Drawing, attention, errors, learning, saved, single, svg
from .summary import columns, duration, number
from .validation_probe import ValidationProbe

BESIDE = {
    "lr": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
    "model_flops_per_second": "model FLOP per second",
    "mem_filled": "states remembered",
    "peak_memory_bytes": "most bytes in use",
}
"""Curves that are drawn small, unless they are 0 throughout."""
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
CONTROLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
"""What a page must not hold, and the signs for it: bytes, and what turns the text around."""


@dataclass(frozen=True)
class Run:
    """What there is to tell of a run."""

    name: str
    state: str
    step: int
    max_steps: int
    unit: str
    history: History
    looks: ValidationProbe
    parts: Mapping[str, int]
    memory_bytes: int
    mem_len: int
    config: str
    environment: Mapping[str, Any]


def page(run: Run) -> str:
    """The page, as HTML."""
    style = (Path(__file__).parent / "page.css").read_text()
    sections = (learnt, validated, seen, written, settings)
    body = "\n".join([top(run), *(section(run) for section in sections)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(run.name)}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def top(run: Run) -> str:
    """What it is, and the numbers that are looked for first."""
    of = f" of {run.max_steps:,}" if run.max_steps > 0 else ""
    state = f"{run.state}, step {run.step:,}{of}; {run.environment['date']}"
    cards = "".join(f"<div>{pair(*card)}</div>" for card in numbers(run).items())
    return (
        f'<header>\n<h1>{escape(run.name)}</h1>\n<p class="faint">{escape(state)}</p>\n'
        f'<dl class="cards">{cards}</dl>\n</header>'
    )


def numbers(run: Run) -> dict[str, str]:
    """The numbers that are looked for first."""
    history, cards = run.history, {}
    if best := history.best:
        name = history.bits if history.bits in best else "nats"
        cards[f"best validation, {name.replace('_', ' ')}"] = number(best[name])
        cards["at step"] = number(best["step"])
        if "answer_accuracy" in best:
            cards["answers that are right"] = f"{best['answer_accuracy']:.1%}"
        if SAVED in best:
            cards["nats saved by memory"] = number(best[SAVED])
    cards |= {"tokens read": number(history.tokens), "time": duration(history.seconds)}
    if rates := [rate for _, rate in history.training("tokens_per_second")]:
        cards["tokens per second, median"] = f"{median(rates):,.0f}"
    cards["parameters"] = number(sum(run.parts.values()))
    cards["memory, states a row"] = number(run.mem_len)
    return cards


def learnt(run: Run) -> str:
    """The curves."""
    history = run.history
    curves = [(name, history.training(key)) for key, name in BESIDE.items()]
    small = "".join(
        f"<div><h3>{escape(name)}</h3>{figure(single(points), [SMALL])}</div>"
        for name, points in curves
        if any(value for _, value in points)
    )
    text = "A loss of training is the mean since the last one that was logged."
    shown = figure(learning(history)) if history.curves else "<p>Nothing was logged.</p>"
    return part("Is it learning?", text, shown, f'<div class="small">{small}</div>')


def validated(run: Run) -> str:
    """The table of validations."""
    history = run.history
    if not history.validations:
        return part("Validation", "There was none.")
    head, rows = columns(history.validations)
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=best' if row is history.best else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for row, cells in zip(history.validations, rows, strict=True)
    )
    text = "Over as much of the validation text as the run reads; the best is marked."
    return part(
        "Validation", text, f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'
    )


def seen(run: Run) -> str:
    """What memory saves, where the model errs, and how far it looks."""
    shown, looks = [], run.looks
    if run.history.validation(SAVED):
        text = (
            "Mean nats where nothing is remembered, less those with the memory, over the same "
            f"{SEGMENTS} segments of each validation, or as many as it has: above 0 memory helps."
        )
        shown.append(part("Does memory help?", text, figure(saved(run.history, run.unit))))
    if len(looks.nats) > 1:
        before = "only the memory" if run.mem_len else "nothing"
        text = (
            f"At the beginning of a segment {before} tells what stands before; where the "
            "curve falls, the context is fragmented."
        )
        shown.append(
            part("Loss by position in the segment", text, figure(errors(looks.nats, run.unit)))
        )
    if looks.attention:
        text = "Of each head. Dot: mean; dash: median; stroke: from 10 to 90 % of its attention."
        shown.append(part("How far back it looks", text, figure(attention(looks, run.unit))))
    return "\n".join(shown)


def written(run: Run) -> str:
    """What it writes: the last text, and those before it."""
    looks = run.looks
    if not looks.samples:
        return ""
    latest, *before = [sample(step, text, looks.prompt) for step, text in reversed(looks.samples)]
    earlier = f"<details><summary>{len(before)} before</summary>{''.join(before)}</details>"
    text = "The beginning of the validation text (grey), and how the model goes on."
    return part("What it writes", text, latest, earlier if before else "")


def sample(step: int, text: str, prompt: int) -> str:
    """A text, and after which step it was written."""
    given, ours = (escape(part.translate(CONTROLS)) for part in (text[:prompt], text[prompt:]))
    return f"<h3>after step {step:,}</h3>\n<pre><b>{given}</b>{ours}</pre>"


def settings(run: Run) -> str:
    """The network's parts, where it was trained, and the config."""
    facts = {name: f"{count:,} parameters" for name, count in run.parts.items()}
    facts["full memory"] = f"{run.memory_bytes:,} bytes on each device"
    told = part("Model", "", table(facts.items()))
    told += part("Environment", "", table(flat(run.environment)))
    config = escape(run.config)
    return told + part(
        "Config", "", f"<details open><summary>config.yaml</summary><pre>{config}</pre></details>"
    )


def flat(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Facts about facts in one list."""
    found = []
    for name, value in facts.items():
        found += flat(value) if isinstance(value, Mapping) else [(name, value)]
    return found


def table(facts: Iterable[tuple[str, Any]]) -> str:
    """Names and values."""
    words = ((name, f"{v:.3g}" if isinstance(v, float) else str(v)) for name, v in facts)
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(word)}</td></tr>" for name, word in words)
    return f'<table class="facts">{"".join(rows)}</table>'


def pair(name: str, value: str) -> str:
    """A number and its name."""
    return f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"


def part(title: str, text: str, *shown: str) -> str:
    """A section under its heading."""
    said = f'<p class="faint">{escape(text)}</p>' if text else ""
    return "\n".join([f"<section>\n<h2>{escape(title)}</h2>", said, *shown, "</section>\n"])


def figure(drawing: Drawing, shapes: Sequence[tuple[float, float]] = (WIDE, NARROW)) -> str:
    """A figure in the shapes that windows may want."""
    names = ("wide", "narrow") if len(shapes) > 1 else ("",)
    drawn = (
        f'<div class="{name}">{svg(drawing, shape)}</div>'
        for name, shape in zip(names, shapes, strict=True)
    )
    return f"<figure>{''.join(drawn)}</figure>"
