"""What is trained, and what has come of it, as tables of words."""

from collections.abc import Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer
from rich.filesize import decimal

from ...evaluation.tables import align_columns
from ...model import TransformerXL
from .history import History
from .memory_gain import SAVED

PARTS = (
    ("norms", "norm"),
    ("attention", ".attention."),
    ("feed-forward", ".feed_forward."),
    ("embedding", "embedding."),
    ("positions", "positions."),
    ("softmax", "head."),
)
"""Parts of a network, and what the names of their parameters have in them, the first that fits."""
SHOWN = 8
"""Validations in the final table: the first, and the last ones."""


def parts(net: TransformerXL) -> dict[str, int]:
    """Parameters of each part; what the softmax shares with the embedding is the embedding's."""
    found = dict.fromkeys([name for name, _ in PARTS[1:]] + ["norms"], 0)
    for name, parameter in net.named_parameters():
        found[next(part for part, fits in PARTS if fits in name)] += parameter.numel()
    return {part: count for part, count in found.items() if count}


def memory_bytes(trainer: Trainer, module: LightningModule) -> int:
    """Bytes that this process will remember of the training text, once its memory is full."""
    config, rows = module.net.config, module.corpus.train_shape[0] // trainer.world_size
    with trainer.precision_plugin.forward_context():
        size = module.net.compute_dtype.itemsize
    return config.n_layer * rows * config.mem_len * config.d_model * size


def beginning(trainer: Trainer, module: LightningModule) -> str:
    """Parameters of each part, and the memory."""
    found, n_layer = parts(module.net), module.net.config.n_layer
    total = sum(found.values())
    rows = [
        (name, f"{count:,}", f"{100 * count / total:.1f} %", note)
        for name, count in found.items()
        for note in (f"in {n_layer} layers" if name in ("attention", "feed-forward") else "",)
    ]
    rows.append(("all", f"{total:,}", "", f"on {trainer.strategy.root_device}"))
    lines = align_columns([("", "parameters", "", ""), *rows])
    if module.corpus is not None:
        held = decimal(memory_bytes(trainer, module))
        lines += f"\nmemory: {module.net.config.mem_len:,} states a row, {held} on each device"
    return lines


def ending(trainer: Trainer, history: History) -> str:
    """How far it came, in what time, and its validations."""
    steps = f"{trainer.global_step:,}"
    steps += f" of {trainer.max_steps:,}" if trainer.max_steps > 0 else ""
    said = f"trained {steps} steps, {history.tokens:,} tokens, in {duration(history.seconds)}"
    found, best = history.validations, history.best
    if not found and trainer.enable_validation:
        said += f"\nno validation: trainer.val_check_interval is {trainer.val_check_interval}"
    if not found:
        return said
    shown = found if len(found) <= SHOWN else [found[0], *found[1 - SHOWN :]]
    if best is not None and not any(row is best for row in shown):
        shown = [shown[0], best, *shown[1:]]
    head, cells = columns(shown)
    notes = ["best" * (row is best) for row in shown]
    rows = [(note, *row, "") for row, note in zip(cells, notes, strict=True)]
    return f"{said}\n{align_columns([('', *head, ''), *rows])}"


def columns(rows: Sequence[Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """The names of all that rows have, and each row's readings in words."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    # It is logged before the losses that it is about.
    names.sort(key=SAVED.__eq__)
    cells = [[number(row[name]) if name in row else "" for name in names] for row in rows]
    return [name.replace("_", " ") for name in names], cells


def number(value: float) -> str:
    """A reading."""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1000:
        return f"{value:z,.3f}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in the two largest units that it has."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{int(seconds)} s"
