"""What a dashboard shows beside numbers: the curve, what the model writes, loss by position."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from ..data.stream import Segment
from ..generation import TextStream, generate
from .board import boards

PROMPT, LENGTH = 32, 200
"""Tokens of the validation text that samples go on from, and tokens of a sample."""


class Pictures(Callback):
    """After each validation, where a W&B run wants them; training does not notice.

    Logged are curve (a picture), val/samples (a table with a text for each validation so far) and
    val/nats_by_position (a curve over the places of a segment: context fragmentation).
    """

    def __init__(self) -> None:
        self.nats_L, self.count_L = torch.zeros(0), torch.zeros(0)
        self.prompt_L: Tensor | None = None
        self.samples: list[list[Any]] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor,
        batch: Segment,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a segment's nats up by their places."""
        if not is_wanted(trainer):
            return
        if self.prompt_L is None:
            self.prompt_L = batch.tokens_BL[0, :PROMPT].cpu()
        nats_BL = outputs.double().cpu()
        self.nats_L = added(self.nats_L, nats_BL.nansum(dim=0))
        self.count_L = added(self.count_L, nats_BL.isfinite().sum(dim=0))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show them."""
        if not is_wanted(trainer) or not len(self.nats_L):
            return
        import wandb

        table = wandb.Table(["position", "nats"], list(enumerate(by_place(self))))
        title = "nats by position in the segment"
        shown = {"val/nats_by_position": wandb.plot.line(table, "position", "nats", title=title)}
        # Alone, a rank cannot compute with parts of weights; a compiled network has other memories.
        sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        if not (sharded or pl_module.hparams["compile"]):
            self.samples.append([trainer.global_step, self.sample(trainer, pl_module)])
            shown["val/samples"] = wandb.Table(["step", "text"], list(self.samples))
        curve = Path(trainer.log_dir or "") / "curve.png"
        if curve.is_file():
            shown["curve"] = wandb.Image(str(curve))
        for board in boards(trainer):
            board.log_metrics(shown, trainer.global_step - 1)
        self.nats_L, self.count_L = torch.zeros(0), torch.zeros(0)

    def sample(self, trainer: Trainer, pl_module: LightningModule) -> str:
        """The beginning of the validation text, and what the model writes after it."""
        net, vocab = pl_module.net, trainer.datamodule.vocab
        context = 0 if net.config.mem_len and not net.config.is_absolute else PROMPT
        ids_L = generate(net, self.prompt_L, LENGTH, seed=1, temperature=0.8, ext_len=context)
        stream, prompt = TextStream(vocab, ()), self.prompt_L.tolist()
        pieces = [stream.add(index) for index in (*prompt, *ids_L.tolist())]
        return "".join(pieces) + stream.rest()


def is_wanted(trainer: Trainer) -> bool:
    """Whether this process shows them: in fit, on rank 0, with a W&B run."""
    in_fit = trainer.state.fn == "fit" and not trainer.sanity_checking
    return in_fit and trainer.is_global_zero and bool(boards(trainer))


def added(one_L: Tensor, other_L: Tensor) -> Tensor:
    """The sum, of which the shorter one has the beginning."""
    sum_L = torch.zeros(max(len(one_L), len(other_L)), dtype=torch.float64)
    sum_L[: len(one_L)] += one_L
    sum_L[: len(other_L)] += other_L
    return sum_L


def by_place(pictures: Pictures) -> list[float]:
    """Mean nats at each place where something was scored."""
    return (pictures.nats_L / pictures.count_L)[pictures.count_L > 0].tolist()
