"""The nats of every token that predict scores, as a file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from ...errors import show_controls


class SaveNats(BasePredictionWriter):
    """Write nats.npy in a folder: nats of the scored tokens, [B, T] in input order.

    Where one row scores a token and another does not, the other has nan. Each of several ranks
    writes its own rows: nats.rank0.npy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: Any, predictions: list[Tensor], *_: Any
    ) -> None:
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"nats{rank}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        nats_BT = torch.cat(predictions, dim=1).float().cpu().numpy()
        # The warm-up is no part of the text that is scored.
        np.save(path, nats_BT[:, ~np.isnan(nats_BT).all(axis=0)])
        print(show_controls(f"nats of every scored token: {path}"))
