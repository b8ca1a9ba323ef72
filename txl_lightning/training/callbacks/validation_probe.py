"""Measurements after each validation: samples, loss by position, attention distance, memory gain.

B rows   L segment   T tokens of a text
"""

from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.aggregation import CatMetric

from ...analysis.attention_distance import sum_attention, summarize_heads
from ...data.stream import Segment, TrainingLoader
from ...evaluation.metrics import MeanNats
from ...evaluation.scoring import segment_nats
from ...generation import generate
from .run_folder import is_fitting

PROMPT_LEN = 32
"""Tokens of the validation text that samples continue."""
MAX_SAMPLES = 100
N_ATTENTION, N_GAIN = 4, 16
"""Segments whose attention is measured, and that are read without memory too, once it is full."""
NOTES = ("samples", "prompt_len", "nats_by_position", "attention")
"""What a checkpoint keeps, so that the report of a resumed run has it."""


class FinalValidation(Callback):
    """Validate after the last step of a run, also where no interval ends."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.between_steps and trainer.global_step == trainer.max_steps:
            # Lightning validates before it stops, which LastCheckpoint looks up after this hook.
            trainer.should_stop = True


class ValidationProbe(Callback):
    """Measure the model in each validation of fit; training is bit for bit as without it.

    Logged: val/tokens_seen; val/memory_gain, mean nats of the same few segments without memory less
    those with it; and val/memory_gain_error, its standard error. Above 0 memory helps; it says
    nothing about a model trained without.
    A sample has `sample_len` tokens; 0: there is none.
    """

    def __init__(self, sample_len: int = 200) -> None:
        self.sample_len = sample_len
        # [step, text] of the last validations, and a text's characters that were its prompt.
        self.samples: list[list[Any]] = []
        self.prompt_len = 0
        # [position in the segment, mean nats], and rows of `measure_attention_distance`.
        self.nats_by_position: list[list[float]] = []
        self.attention: list[dict[str, Any]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        # A new metric: one made under trainer.validate's inference_mode could not count in fit.
        self.gain = MeanNats().to(pl_module.device)
        # Of each row's segment; nan without a target, as every rank must have as many.
        self.gains_N = CatMetric(nan_strategy="disable").to(pl_module.device)
        self.nats_L, self.count_L = torch.zeros(0), torch.zeros(0)
        self.segments: list[Segment] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Tensor,
        batch: Segment,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not is_fitting(trainer) or dataloader_idx:
            return
        if batch_idx == 0:
            self.n_warmup = n_warmup_segments(pl_module, batch)
        # Compiling once more, for a memory of another length, would take longer than it is worth.
        has_gain = eval_mem_len(pl_module) and not pl_module.hparams["compile"]
        if has_gain and 0 <= batch_idx - self.n_warmup < N_GAIN:
            with trainer.precision_plugin.forward_context():
                bank = pl_module.memory_bank
                lengths = replace(bank.eval_lengths, mem_len=0)
                memory = bank.reader.empty_memory(len(batch.tokens_BL), lengths)
                alone_BL, _ = segment_nats(bank.reader, batch, memory)
            self.gain.update(alone_BL - outputs, batch.targets_BL)
            self.gains_N.update((alone_BL - outputs).nanmean(dim=1))
        if trainer.is_global_zero:
            if batch_idx < self.n_warmup + N_ATTENTION:
                self.segments.append(batch.rows(slice(1)).to("cpu"))
            nats_BL = outputs[:, batch.n_context :].cpu().double()
            counts = (self.nats_L, nats_BL.nansum(dim=0)), (self.count_L, (~nats_BL.isnan()).sum(0))
            # Segments may be shorter than others: their positions are the first ones.
            self.nats_L, self.count_L = (pad_sequence([*pair]).sum(dim=1) for pair in counts)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        # Not in on_validation_end: then the weights are no longer those of `WeightAverage`.
        if not is_fitting(trainer):
            return
        if isinstance(loader := trainer.train_dataloader, TrainingLoader):
            pl_module.log("val/tokens_seen", float(loader.tokens_seen(loader.consumed)))
        if self.gain.update_called and (gain := self.gain.compute()).isfinite():
            pl_module.log("val/memory_gain", gain)
            gains_N = self.gains_N.compute()
            gains_N = gains_N[~gains_N.isnan()]
            if len(gains_N) > 1:
                # As if segments were independent.
                pl_module.log("val/memory_gain_error", gains_N.std() / len(gains_N) ** 0.5)
        mean_L = (self.nats_L / self.count_L).tolist()
        self.nats_by_position = [[at, nats] for at, nats in enumerate(mean_L) if nats == nats]
        # One rank alone cannot compute with shards; a compiled network has other memories.
        is_whole = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
        if self.segments and is_whole and not pl_module.hparams["compile"]:
            self.add_sample(trainer, pl_module)
            self.measure_attention(pl_module)

    def add_sample(self, trainer: Trainer, pl_module: Any) -> None:
        # The first row has no text before its own and repeats a token for its warm-up.
        text_T = torch.cat([each.tokens_BL[0, each.n_context :] for each in self.segments])
        prompt_L = text_T[pl_module.corpus.config.eval_warmup_len :][:PROMPT_LEN]
        if not self.sample_len or not len(prompt_L):
            return
        net, vocab = pl_module.net, trainer.datamodule.vocab
        # A model that cannot remember must read its own last tokens again.
        ext_len = PROMPT_LEN if not net.config.mem_len or net.config.is_absolute else 0
        options = {"seed": 1, "temperature": 0.8, "ext_len": ext_len}
        ids_T = generate(net, prompt_L, self.sample_len, **options).cpu()
        self.prompt_len = len(vocab.decode(prompt_L.tolist()))
        text = vocab.decode(torch.cat([prompt_L, ids_T]).tolist())
        self.samples = [*self.samples, [trainer.global_step, text]][-MAX_SAMPLES:]

    def measure_attention(self, pl_module: Any) -> None:
        whole = [each for each in self.segments if each.new_len == self.segments[0].new_len]
        # A shorter validation does not fill the memory.
        if len(whole) > self.n_warmup:
            memory = pl_module.net.empty_memory(1, pl_module.memory_bank.eval_lengths)
            ext_len = pl_module.corpus.config.eval_ext_len
            sums = sum_attention(pl_module.net, whole, memory, self.n_warmup, ext_len)
            self.attention = summarize_heads(sums)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NOTES}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


def n_warmup_segments(pl_module: Any, segment: Segment) -> int:
    """Segments after which every row sees as many states as it ever will."""
    config = pl_module.corpus.config
    before = config.eval_warmup_len + eval_mem_len(pl_module) + config.eval_ext_len
    return -(-before // segment.new_len)


def eval_mem_len(pl_module: Any) -> int:
    return pl_module.memory_bank.eval_lengths.resolve(pl_module.net.config).mem_len
