"""What happens beside the step: state carried over steps and stops, counting, saving."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn

from ..data.stream import Segment, TrainingLoader
from ..model import Memory

KEY = "txl_lightning"


class Carry(Callback):
    """Memory and position advance together, after the step and before a checkpoint is written.

    The checkpoint gets the memory of every rank and the state of torch's CPU generator. The
    position is in it where Lightning keeps the state of loaders.
    """

    def __init__(self) -> None:
        self.position: dict[str, Any] | None = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """The step is done: what it left is what the next one starts from."""
        pl_module.remember(batch)
        if isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.commit(batch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read on from where the checkpoint was.

        With max_epochs given, Lightning forgets it when anything has asked for
        trainer.estimated_stepping_batches.
        """
        if self.position is not None and isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.load_state_dict(self.position)
        self.position = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Runs on every rank; rank 0 writes."""
        memory = pl_module.memories.get(("train", 0))
        carried: dict[str, Any] = {"world_size": trainer.world_size, "rng": torch.get_rng_state()}
        # After an exception on one rank, gathering would wait for the others forever.
        alone = trainer.world_size > 1 and trainer.state.status == TrainerStatus.INTERRUPTED
        if memory is not None and not alone:
            gathered = pl_module.all_gather((memory.h_NBMD, memory.filled_B))
            h, filled = (t if trainer.world_size > 1 else t[None] for t in gathered)
            carried |= {"h": h.cpu(), "filled": filled.cpu()}
        checkpoint[KEY] = carried

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take back this rank's part, or say why not."""
        carried = checkpoint.get(KEY)
        if carried is None or trainer.state.fn != "fit":
            return
        torch.set_rng_state(carried["rng"])
        loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        self.position = loaders[0] if loaders else None
        if carried["world_size"] != trainer.world_size:
            was, now = carried["world_size"], trainer.world_size
            rank_zero_warn(f"saved on {was} devices, resumed on {now}: the memory starts empty")
        elif "h" not in carried:
            rank_zero_warn("the checkpoint holds no memory: it starts empty")
        else:
            rank = trainer.global_rank
            memory = Memory(carried["h"][rank], carried["filled"][rank])
            pl_module.memories["train", 0] = memory


class Throughput(Callback):
    """Log train/tokens_per_second over all devices, without the time that validation takes."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self.since: float | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Segment, batch_idx: int
    ) -> None:
        """Start the clock, unless it runs."""
        if self.since is None:
            self.since = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """Count; log as seldom as everything else is logged."""
        self.tokens += batch.targets_BL.numel() * trainer.world_size
        if pl_module.is_logged(trainer.global_step, batch_idx):
            self.pause()
            pl_module.log("train/tokens_per_second", self.tokens / max(self.seconds, 1e-9))
            self.tokens, self.seconds = 0, 0.0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self.pause()

    def pause(self) -> None:
        """Stop the clock; the next step starts it again."""
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
        self.since = None


class LastCheckpoint(ModelCheckpoint):
    """last.ckpt: after each validation, when an exception stops training, and at its end."""

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_exception=True, enable_version_counter=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The steps since the last validation are not lost."""
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(Path(self.dirpath) / "last.ckpt")


class SaveNats(BasePredictionWriter):
    """Write the nats of every token that predict scores: nats.npy, [B, T] in input order.

    Where one row scores a token and another does not, the other has nan.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="batch_and_epoch")
        self.parts: list[np.ndarray] = []

    def write_on_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, prediction: torch.Tensor, *_: Any
    ) -> None:
        """Keep a segment's nats on the host."""
        self.parts.append(prediction.float().cpu().numpy())

    def write_on_epoch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Join the segments; each rank writes its own rows."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = folder / f"nats{rank}.npy"
        nats_BT = np.concatenate(self.parts, axis=1)
        # The warm-up is no part of the text that is scored.
        np.save(path, nats_BT[:, ~np.isnan(nats_BT).all(axis=0)])
        self.parts = []
        print(f"nats of every scored token: {path}")
