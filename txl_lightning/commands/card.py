"""README.md of a converted folder: a model card for model hubs."""

from collections.abc import Mapping
from pathlib import Path

from ..checkpoints import LoadedCheckpoint
from ..data.vocab import Vocabulary
from ..errors import format_line
from ..files import write_text
from ..model import TransformerXL
from ..runs.metrics_table import read_metrics

CARD = "README.md"
LIBRARIES = {
    "txl": ("txl-lightning", "transformer-xl"),
    "huggingface": ("transformers", "transfo-xl"),
    "pt2": ("pytorch", "transformer-xl"),
    "onnx": ("onnx", "transformer-xl"),
}
"""Library and tag of each format."""


def write_card(
    folder: Path, name: str, to: str, facts: Mapping[str, str], shape: str = "", kind: str = ""
) -> None:
    """Write facts of a converted network and how to load it.

    Of a program, `shape` is that of a row's memory, and `kind` that of the vocabulary.
    """
    # jinja2 is slow to import, and needed only to write a card.
    from jinja2 import Template

    source = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    template = Template(source, trim_blocks=True, keep_trailing_newline=True)
    library, tag = LIBRARIES[to]
    values = {"library": library, "tag": tag, "name": name, "to": to, "shape": shape, "kind": kind}
    # In a cell of a table.
    values["facts"] = {fact: format_line(text).replace("|", "\\|") for fact, text in facts.items()}
    write_text(template.render(values), folder / CARD)


def list_facts(
    model: TransformerXL, vocab: Vocabulary | None, source: LoadedCheckpoint | Path
) -> dict[str, str]:
    config = model.config
    size = sum(each.numel() for each in model.parameters())
    unit = "tokens, not in this folder" if vocab is None else f"{vocab.unit}s"
    return {
        "Parameters": f"{size:,}",
        "Layers": f"{config.n_layer}, of width {config.d_model} and {config.n_head} heads",
        "Memory": f"{config.mem_len:,} hidden states of each layer",
        "Positions": config.positions,
        "Vocabulary": f"{config.n_token:,} {unit}",
    } | describe_training(source)


def describe_training(source: LoadedCheckpoint | Path) -> dict[str, str]:
    if isinstance(source, Path) or "global_step" not in source.saved:
        return {"Converted from": (source if isinstance(source, Path) else source.path).name}
    checkpoint = source.saved
    data = checkpoint.get("datamodule_hyper_parameters", {}).get("data", {})
    # Only names: paths of somebody's machine are private.
    names = [Path(part).name for part in str(data.get("corpus", "unknown")).split(", ")]
    step = checkpoint["global_step"]
    rows = data.get("batch_size")
    tgt_len = data.get("tgt_len")
    facts = {
        "Trained on": f"{', '.join(names)} (fingerprint {data.get('fingerprint', 'unknown')})",
        "Training": f"{step:,} steps of {rows} rows of {tgt_len} tokens",
    }
    for row in read_metrics(source.run_folder).validations:
        if row["step"] == step:
            bits = [f"{row[name]:.4f} {name}" for name in row if name.startswith("bits_per_")]
            facts["Validation"] = ", ".join(bits).replace("_", " ")
    return facts
