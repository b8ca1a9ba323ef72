"""SaveNats: save the nats of every token that predict scores."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from ...errors import show_controls
from ...files import replace_file


class SaveNats(BasePredictionWriter):
    """Write nats.npy in a folder: nats of the scored tokens, [B, T] in input order.

    Unscored tokens of a row are nan where another row has scored ones. Each of several ranks writes
    its own rows: nats.rank0.npy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(
        self, trainer: Trainer, module: Any, predictions: list[Tensor], *_: Any
    ) -> None:
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"nats{rank}.npy"
        nats_BT = torch.cat(predictions, dim=1).float().cpu().numpy()
        buffer = io.BytesIO()
        # Without the warm-up, which no row scores.
        np.save(buffer, nats_BT[:, ~np.isnan(nats_BT).all(axis=0)])
        replace_file(path, lambda part: part.write_bytes(buffer.getbuffer()))
        print(show_controls(f"nats of every scored token: {path}"))
