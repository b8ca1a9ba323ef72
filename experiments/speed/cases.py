"""What is measured: sizes, rows and lengths of a step."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from txl_lightning.model import TransformerXLConfig

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
BASE = {"n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
NARROW = {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024}
WORDS = {"n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100}
TINY = {"n_layer": 2, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "n_token": 300}
TINY |= {"cutoffs": (), "tie_projs": (), "div_val": 1}  # so small a vocabulary has no clusters
# How the original evaluates.
SAME_LENGTH = {"same_length": "mem_len"}


@dataclass(frozen=True)
class Case:
    """One step of a network: training, or evaluation with a full memory; decoding where L is 1."""

    name: str
    sizes: dict[str, Any]
    """Fields of TransformerXLConfig, without mem_len."""
    rows: int
    tgt_len: int
    mem_len: int
    trains: bool = False

    @property
    def config(self) -> TransformerXLConfig:
        return TransformerXLConfig(**self.sizes | {"mem_len": self.mem_len})

    @property
    def kind(self) -> str:
        return "training" if self.trains else "evaluation" if self.tgt_len > 1 else "decoding"

    @property
    def tokens(self) -> int:
        return self.rows * self.tgt_len

    def shrink(self) -> "Case":
        """Return a case of the same kind that takes milliseconds."""
        clamp = {"clamp_len": 8} if "clamp_len" in self.sizes else {}
        sizes = self.sizes | TINY | clamp
        tgt_len = min(self.tgt_len, 8)
        return replace(self, sizes=sizes, rows=2, tgt_len=tgt_len, mem_len=16)


def quickstart_case() -> Case:
    config = yaml.safe_load(QUICKSTART.read_text())
    data = config["data"]
    sizes = dict(config["model"]["net"])
    mem_len = sizes.pop("mem_len")
    sizes["n_token"] = data["subwords"]["n_token"]
    rows = data["batch_size"]
    tgt_len = data["tgt_len"]
    return Case("train-quickstart", sizes, rows, tgt_len, mem_len, trains=True)


CASES = [
    Case("train-512", BASE | {"n_layer": 4}, 8, 128, 128, trains=True),
    Case("train-256", NARROW, 4, 128, 512, trains=True),
    Case("train-words", WORDS | {"n_token": 10_000}, 4, 150, 150, trains=True),
    quickstart_case(),
    Case("eval-80-2100", BASE | SAME_LENGTH | {"clamp_len": 820}, 1, 80, 2100),
    Case("decode-2100", BASE, 1, 1, 2100),
    Case("eval-128-1600", WORDS | SAME_LENGTH | {"clamp_len": 1000}, 1, 128, 1600),
    Case("eval-64-640", WORDS | SAME_LENGTH | {"clamp_len": 400}, 4, 64, 640),
]
