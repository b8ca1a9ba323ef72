"""Run Hugging Face's TransfoXL in a Python that has it: see requirements.txt.

python transfo_xl.py make ROOT      for each setting in ROOT/settings.json, a random network
python transfo_xl.py measure ROOT   of each network in ROOT, the nats of ROOT/tokens.npy
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

import torch  # noqa: E402
from transformers import TransfoXLConfig, TransfoXLLMHeadModel  # noqa: E402

TGT_LEN = 7


def type_as(self, other=None, dtype=None, of=torch.Tensor.type_as):
    """Replace Tensor.type_as: the model passes a dtype, which torch refuses; it means `to`."""
    return of(self, other) if dtype is None else self.to(dtype)


def make(root: Path) -> None:
    """Write networks by save_pretrained, with every weight changed from its initial value."""
    for name, settings in json.loads((root / "settings.json").read_text()).items():
        torch.manual_seed(0)
        model = TransfoXLLMHeadModel(TransfoXLConfig(**settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        # safetensors refuses biases that all layers share.
        model.save_pretrained(root / name, safe_serialization=model.config.untie_r)


@torch.no_grad()
def measure(root: Path) -> None:
    """Write the nats of every token except each row's first, read in segments."""
    tokens_BT = torch.from_numpy(np.load(root / "tokens.npy"))
    for folder in sorted(path.parent for path in root.glob("*/config.json")):
        model, info = TransfoXLLMHeadModel.from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), (folder, info)
        nats_BT = nats(model.eval(), tokens_BT % model.config.vocab_size)
        np.save(folder / "nats.npy", nats_BT.numpy())


def nats(model: TransfoXLLMHeadModel, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Return -log p of each row's tokens except its first."""
    rows = len(tokens_BT)
    config = model.config
    empty = [torch.zeros(0, rows, config.d_model) for _ in range(config.n_layer)]
    memories = empty if config.mem_len else None
    parts = []
    inputs_BT = tokens_BT[:, :-1]
    targets_BT = tokens_BT[:, 1:]
    for segment, target in zip(
        inputs_BT.split(TGT_LEN, dim=1), targets_BT.split(TGT_LEN, dim=1), strict=True
    ):
        output = model(input_ids=segment.contiguous(), mems=memories)
        parts.append(-output.prediction_scores.gather(2, target[..., None]).squeeze(2))
        memories = output.mems
    return torch.cat(parts, dim=1)


if __name__ == "__main__":
    torch.Tensor.type_as = type_as
    {"make": make, "measure": measure}[sys.argv[1]](Path(sys.argv[2]))
