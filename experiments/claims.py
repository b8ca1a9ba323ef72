"""The primary contrasts, as claims.yaml names them: at most 25, chosen by question.

A word (contrasts.py) stands beside these alone; everything else in a folder's table is exploratory.
Published numbers, and those of compressors, are references.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from experiments.contrasts import Contrast
from experiments.results import Records
from txl_lightning.files import load_yaml


@dataclass(frozen=True)
class Question:
    """A primary contrast: its folder, its name there, and why it is one."""

    folder: str
    contrast: str
    text: str
    why: str
    front: bool = False
    """It is in the table of the first page."""


PRIMARY = [Question(**each) for each in load_yaml(Path(__file__).with_suffix(".yaml").read_text())]
"""In the order of experiments/README.md."""


def list_contrasts(name: str, records: Records) -> list[Contrast]:
    """Return the contrasts of a folder that have results."""
    found = import_module(f"experiments.{name}.figures").list_contrasts(records)
    return [contrast for contrast in found if len(contrast.effects)]


def list_primary(results: Mapping[str, Records]) -> list[tuple[Question, Contrast | None]]:
    """Return each primary contrast, and None for one without results."""
    found = {
        (name, contrast.name): contrast
        for name, records in results.items()
        for contrast in list_contrasts(name, records)
    }
    return [(each, found.get((each.folder, each.contrast))) for each in PRIMARY]
