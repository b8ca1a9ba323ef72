"""README.md of a converted folder: a model card for model hubs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints import LoadedCheckpoint
from ..data.vocab import Vocabulary
from ..errors import format_line
from ..files import write_text
from ..model import TransformerXL
from ..runs.metrics_table import read_metrics

CARD = "README.md"
COLUMNS = ("Text", "Split", "Protocol", "Weights", "Bits per byte", "Nats per token", "Tokens")
LIBRARIES = {
    "txl": ("txl-lightning", "transformer-xl"),
    "huggingface": ("transformers", "transfo-xl"),
    "pt2": ("pytorch", "transformer-xl"),
    "onnx": ("onnx", "transformer-xl"),
}
"""Library and tag of each format."""
USE = {
    "txl": """import txl_lightning

model, vocab = txl_lightning.load({name!r})
print(txl_lightning.generate(model, "Once", 200, vocab=vocab))""",
    "huggingface": """from transformers import TransfoXLLMHeadModel  # transformers 4.57 and before

model = TransfoXLLMHeadModel.from_pretrained({name!r})""",
    "pt2": """import torch

program = torch.export.load("model.pt2").module()
memory = torch.zeros({shape})  # layers, rows, states, width
filled = torch.zeros(1, dtype=torch.long)  # states of each row that count; 0 starts it afresh
for tokens in ([[0, 1, 0]], [[1, 1]]):  # ids of vocab.json, rows of one text, segment by segment
    logits, memory, filled = program(torch.tensor(tokens), memory, filled)""",
    "onnx": """import numpy
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
memory = numpy.zeros({shape}, "float32")  # layers, rows, states, width
filled = numpy.zeros(1, "int64")  # states of each row that count; 0 starts it afresh
for tokens in ([[0, 1, 0]], [[1, 1]]):  # ids of vocab.json, rows of one text, segment by segment
    inputs = {{"tokens": numpy.array(tokens), "memory": memory, "filled": filled}}
    logits, memory, filled = session.run(None, inputs)""",
}
TEMPLATE = """---
library_name: {library}
pipeline_tag: text-generation
tags:
- {tag}
- pytorch
# license: for you to choose
# language: unknown to convert
---

# {name}

A Transformer-XL language model, written by txl_lightning.

| | |
|---|---|
{facts}

## Use

```python
{use}
```
"""


def write_card(
    folder: Path,
    name: str,
    model: TransformerXL,
    vocab: Vocabulary | None,
    source: LoadedCheckpoint | Path,
    to: str,
    more: Mapping[str, str] | None = None,
    shape: str = "",
) -> None:
    """Write what is known about a converted network, with `more` facts, and how to load it.

    `shape` is that of the memory of one row.
    """
    facts = describe_network(model, vocab) | describe_training(source) | dict(more or {})
    rows = [f"| {fact} | {escape(value)} |" for fact, value in facts.items()]
    library, tag = LIBRARIES[to]
    use = USE[to].format(name=name, shape=shape)
    text = TEMPLATE.format(library=library, tag=tag, name=name, facts="\n".join(rows), use=use)
    write_text(text, folder / CARD)


def describe_network(model: TransformerXL, vocab: Vocabulary | None) -> dict[str, str]:
    config, size = model.config, sum(each.numel() for each in model.parameters())
    unit = "tokens, not in this folder" if vocab is None else f"{vocab.unit}s"
    return {
        "Parameters": f"{size:,}",
        "Layers": f"{config.n_layer}, of width {config.d_model} and {config.n_head} heads",
        "Memory": f"{config.mem_len:,} hidden states of each layer",
        "Positions": config.positions,
        "Vocabulary": f"{config.n_token:,} {unit}",
    }


def describe_training(source: LoadedCheckpoint | Path) -> dict[str, str]:
    """Return facts from a checkpoint of fit and from its run's folder."""
    if isinstance(source, Path) or "global_step" not in source.saved:
        return {"Converted from": (source if isinstance(source, Path) else source.path).name}
    checkpoint = source.saved
    data = checkpoint.get("datamodule_hyper_parameters", {}).get("data", {})
    # Only names: paths of somebody's machine are private.
    names = [Path(part).name for part in str(data.get("corpus", "unknown")).split(", ")]
    step, rows, tgt_len = checkpoint["global_step"], data.get("batch_size"), data.get("tgt_len")
    facts = {
        "Trained on": f"{', '.join(names)} (fingerprint {data.get('fingerprint', 'unknown')})",
        "Training": f"{step:,} steps of {rows} rows of {tgt_len} tokens",
    }
    for row in read_metrics(source.run_folder).validations:
        if row["step"] == step:
            bits = [f"{row[name]:.4f} {name}" for name in row if name.startswith("bits_per_")]
            facts["Validation"] = ", ".join(bits).replace("_", " ")
    return facts


def add_result(card: Path, record: Mapping[str, Any]) -> None:
    """Add the record of an evaluation to a card; replace an earlier one of the same protocol."""
    lines = card.read_text(encoding="utf-8").rstrip().splitlines()
    header = format_row(COLUMNS)
    if header not in lines:
        lines += ["", "## Evaluation", "", header, "|---" * len(COLUMNS) + "|"]
    start = end = lines.index(header) + 2
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    changed = f" ({', '.join(record['changed'])} changed)" if record["changed"] else ""
    protocol = f"{record['protocol']}{changed}"
    key = [Path(record["text"]).name, record["split"], protocol, record["weights"]]
    values = (record.get(name) for name in ("bits_per_byte", "nats"))
    cells = ["-" if value is None else f"{value:.4f}" for value in values]
    row = format_row([*key, *cells, f"{record['tokens_scored']:,}"])
    others = [line for line in lines[start:end] if not line.startswith(format_row(key))]
    write_text("\n".join([*lines[:start], *others, row, *lines[end:]]) + "\n", card)


def format_row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"


def escape(text: str) -> str:
    return format_line(text).replace("|", "\\|")
