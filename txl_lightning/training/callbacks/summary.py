"""What is trained and what has come of it, in words: parameters, memory, validations, times."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer

from ...evaluation.tables import align_columns
from ...model import TransformerXL
from .run_metrics import RunMetrics

MAX_ROWS = 8
"""Validations in the final table: the first, the best and the last ones."""


def count_parameters(net: TransformerXL) -> dict[str, int]:
    """Parameters of each part; what the softmax shares with the embedding is the embedding's."""
    counts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        parts = name.split(".")
        part = parts[2] if parts[0] == "layers" else parts[0]
        part = "norms" if "norm" in name else part.replace("_", "-")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def full_memory_bytes(trainer: Trainer, module: Any) -> int:
    """Bytes that this process remembers of the training text, once its memory is full."""
    config, rows = module.net.config, module.corpus.train_shape[0] // trainer.world_size
    with trainer.precision_plugin.forward_context():
        size = module.net.compute_dtype.itemsize
    return config.n_layer * rows * config.mem_len * config.d_model * size


def format_final_table(metrics: RunMetrics) -> str:
    """The validations as a table of at most MAX_ROWS rows, the best one marked."""
    rows, best = metrics.validations, metrics.best
    shown = rows if len(rows) <= MAX_ROWS else [rows[0], *rows[1 - MAX_ROWS :]]
    if best and best not in shown:
        shown = [shown[0], best, *shown[2:]]
    head, *cells = format_columns(shown)
    marks = ["", *("best" * (row == best) for row in shown)]
    return align_columns([(m, *row, "") for m, row in zip(marks, [head, *cells], strict=True)])


def format_columns(rows: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """A table of words: the names of all that the rows have, then each row's values."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = [name.replace("_", " ") for name in names]
    return [head, *([format_number(r[n]) if n in r else "" for n in names] for r in rows)]


def format_number(value: float) -> str:
    """Return a whole number in full, another one with three decimals below 1,000."""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1000:
        return f"{value:z,.3f}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{int(seconds)} s"
