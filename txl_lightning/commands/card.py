"""The model card of a converted folder: README.md, as model hubs show it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..checkpoints.runs import read_checkpoint, result_folder
from ..data.vocab import Vocabulary
from ..errors import CheckpointError, format_line
from ..evaluation.run_metrics import read_metrics
from ..files import write_text
from ..model import TransformerXL

CARD = "README.md"
COLUMNS = ("Text", "Split", "Protocol", "Weights", "Bits per byte", "Nats per token", "Tokens")
LOAD = {
    "txl": """```python
import txl_lightning

model, vocab = txl_lightning.load({name!r})
print(txl_lightning.generate(model, "Once", 200, vocab=vocab))
```""",
    "huggingface": """```python
from transformers import TransfoXLLMHeadModel  # transformers 4.57 and before

model = TransfoXLLMHeadModel.from_pretrained({name!r})
```""",
}
HEADER = """---
library_name: {library}
pipeline_tag: text-generation
tags:
- {tag}
- pytorch
# license: which one is yours to say
# language: not known to convert
---

# {name}

A Transformer-XL language model, written by txl_lightning.

| | |
|---|---|
{facts}

## Use

{load}
"""


def write_card(
    folder: Path, model: TransformerXL, vocab: Vocabulary | None, source: Path, to: str
) -> None:
    """Write what is known of a network that was converted from `source`, and how to load it."""
    facts = describe_network(model, vocab) | describe_training(source)
    library, tag = ("txl-lightning", "transformer-xl")
    if to == "huggingface":
        library, tag = ("transformers", "transfo-xl")
    rows = "\n".join(f"| {name} | {escape(value)} |" for name, value in facts.items())
    name = folder.resolve().name
    load = LOAD[to].format(name=name)
    about = {"library": library, "tag": tag, "name": name, "facts": rows, "load": load}
    write_text(HEADER.format(**about), folder / CARD)


def describe_network(model: TransformerXL, vocab: Vocabulary | None) -> dict[str, str]:
    config, size = model.config, sum(each.numel() for each in model.parameters())
    kind = "tokens, not in this folder" if vocab is None else f"{vocab.unit}s"
    return {
        "Parameters": f"{size:,}",
        "Layers": f"{config.n_layer}, of width {config.d_model} and {config.n_head} heads",
        "Memory": f"{config.mem_len:,} hidden states of each layer",
        "Positions": config.positions,
        "Vocabulary": f"{config.n_token:,} {kind}",
    }


def describe_training(source: Path) -> dict[str, str]:
    """Return what a checkpoint of fit, and the run's folder around it, say of its training."""
    checkpoint: dict[str, Any] = {}
    with suppress(CheckpointError):
        checkpoint = read_checkpoint(source)
    if "global_step" not in checkpoint:
        return {"Converted from": source.name}
    data = checkpoint.get("datamodule_hyper_parameters", {}).get("data", {})
    # The path of a text on somebody's machine concerns nobody else.
    names = [Path(part).name for part in str(data.get("corpus", "unknown")).split(", ")]
    step, rows, tgt_len = checkpoint["global_step"], data.get("batch_size"), data.get("tgt_len")
    facts = {
        "Trained on": f"{', '.join(names)} (fingerprint {data.get('fingerprint', 'unknown')})",
        "Training": f"{step:,} steps of {rows} rows of {tgt_len} tokens",
    }
    return facts | describe_validation(result_folder(source), step)


def describe_validation(folder: Path, step: int) -> dict[str, str]:
    """Return the validation after a step of the run in a folder, if it is known."""
    for row in read_metrics(folder).validations:
        if row["step"] == step:
            bits = [f"{row[name]:.4f} {name}" for name in row if name.startswith("bits_per_")]
            return {"Validation": ", ".join(bits).replace("_", " ")}
    return {}


def add_result(folder: Path, record: Mapping[str, Any]) -> None:
    """Put a record of an evaluation into the table of a folder's card, in place of the same one.

    Nothing is done where there is no card.
    """
    if not (folder / CARD).is_file():
        return
    lines = (folder / CARD).read_text(encoding="utf-8").rstrip().splitlines()
    head, rule = format_row(COLUMNS), "|---" * len(COLUMNS) + "|"
    if head not in lines:
        lines += ["", "## Evaluation", "", head, rule]
    start = end = lines.index(head) + 2
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    changed = f" ({', '.join(record['changed'])} changed)" if record["changed"] else ""
    key = [Path(record["text"]).name, record["split"], f"{record['protocol']}{changed}"]
    key.append(record["weights"])
    values = [
        f"{record[name]:.4f}" if name in record else "-" for name in ("bits_per_byte", "nats")
    ]
    others = [line for line in lines[start:end] if not line.startswith(format_row(key))]
    row = format_row([*key, *values, f"{record['tokens_scored']:,}"])
    write_text("\n".join([*lines[:start], *others, row, *lines[end:]]) + "\n", folder / CARD)


def format_row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"


def escape(text: str) -> str:
    return format_line(text).replace("|", "\\|")
