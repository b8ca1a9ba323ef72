"""ValidationProbe: samples, loss by position, attention distance and memory gain of a run.

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
from ...data.sources import DataConfig
from ...data.stream import Segment
from ...generation import generate
from ...generation.state import find_missing_memory
from ...model.config import is_transformer_xl
from ...model.reading import score_segment
from ..module import LanguageModel
from ..segments import MeanNats

PROMPT_LEN = 32  # number of tokens of the validation text that a sample continues
MAX_SAMPLES = 100
N_ATTENTION = 4  # segments with full memory on which attention is measured
N_GAIN = 16  # and those on which memory gain is


class FinalValidation(Callback):
    """Validate after the last step of a run, even if no interval ends there.

    With n_validation, so many times in the whole run, in place of an interval.
    """

    def __init__(self, n_validation: int | None = None) -> None:
        self.n_validation = n_validation

    def on_fit_start(self, trainer: Trainer, module: LanguageModel) -> None:
        # The passes are steps now, and the loop has not read the interval yet.
        if self.n_validation:
            per_step = trainer.accumulate_grad_batches
            trainer.val_check_interval = self.find_interval(trainer.max_steps, per_step)

    def find_interval(self, n_step: int, per_step: int) -> int:
        """Return the segments from one validation to the next, of a run of so many steps."""
        assert self.n_validation
        return max(n_step * per_step // self.n_validation, 1)

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if module.between_steps and trainer.global_step == trainer.max_steps:
            # Lightning validates before it stops.
            trainer.should_stop = True


class ValidationProbe(Callback):
    """Measure the model in each validation of fit, without changing a bit of training.

    Logged: val/tokens_seen; val/memory_gain, mean nats of a few segments read without memory minus
    those with it; and val/memory_gain_error, its standard error. This is the same network without
    its memory: a network trained without memory is usually better than that.
    """

    def __init__(self, sample_len: int = 200, with_attention: bool = True) -> None:
        self.sample_len = sample_len
        self.with_attention = with_attention
        # [step, text] of the last validations, and the number of characters in their prompt.
        self.samples: list[list[Any]] = []
        self.prompt_len = 0
        # [position in the segment, mean nats], and rows of `measure_attention_distance`.
        self.nats_by_position: list[list[float]] = []
        self.attention: list[dict[str, Any]] = []

    def on_validation_start(self, trainer: Trainer, module: LanguageModel) -> None:
        # New metrics: those made under trainer.validate's inference_mode cannot be updated in fit.
        self.gain = MeanNats(module.device)
        # One per row of a segment; nan without a target.
        self.gains_N = CatMetric(nan_strategy="disable").to(module.device)
        self.nats_L = torch.zeros(0)
        self.count_L = torch.zeros(0)
        self.segments: list[Segment] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: LanguageModel,
        outputs: Tensor,
        batch: Segment,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not module.is_fitting or dataloader_idx:
            return
        if batch_idx == 0:
            self.n_warmup = count_warmup_segments(module, module.corpus.config, batch)
        if measures_gain(module) and 0 <= batch_idx - self.n_warmup < N_GAIN:
            with trainer.precision_plugin.forward_context():
                bank = module.memory_bank
                lengths = replace(bank.eval_lengths, mem_len=0)
                memory = bank.reader.empty_memory(len(batch.tokens_BL), lengths)
                alone_BL, _ = score_segment(bank.reader, batch, memory)
            self.gain.update(alone_BL - outputs, batch.targets_BL)
            self.gains_N.update((alone_BL - outputs).nanmean(dim=1))
        if trainer.is_global_zero:
            if batch_idx < self.n_warmup + N_ATTENTION:
                self.segments.append(batch.rows(slice(1)).to("cpu"))
            nats_BL = outputs.cpu().double()
            counts = (self.nats_L, nats_BL.nansum(dim=0)), (self.count_L, (~nats_BL.isnan()).sum(0))
            # Shorter segments have the first positions only.
            self.nats_L, self.count_L = (pad_sequence([*pair]).sum(dim=1) for pair in counts)

    def on_validation_epoch_end(self, trainer: Trainer, module: LanguageModel) -> None:
        # Not in on_validation_end, where `WeightAverage` has put back the trained weights.
        if not module.is_fitting:
            return
        module.log("val/tokens_seen", float(module.tokens_seen), sync_dist=True)
        if self.gain.update_called and (gain := self.gain.compute()).isfinite():
            module.log("val/memory_gain", gain, sync_dist=True)
            gains_N = self.gains_N.compute()
            gains_N = gains_N[~gains_N.isnan()]
            if len(gains_N) > 1:
                # Assumes independent segments.
                error = gains_N.std() / len(gains_N) ** 0.5
                module.log("val/memory_gain_error", error, sync_dist=True)
        mean_L = (self.nats_L / self.count_L).tolist()
        self.nats_by_position = [[n, nats] for n, nats in enumerate(mean_L) if nats == nats]
        # One rank alone cannot compute with shards, nor a compiled network with other shapes.
        is_whole = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
        if self.segments and is_whole and not module.hparams["compile"]:
            self.add_sample(trainer, module)
            if self.with_attention:
                self.measure_attention(module)

    def add_sample(self, trainer: Trainer, module: LanguageModel) -> None:
        # The warm-up of the first row, which has no text before it, repeats its first token.
        text_T = torch.cat([each.tokens_BL[0, each.n_context :] for each in self.segments])
        prompt_L = text_T[module.corpus.config.eval_warmup_len :][:PROMPT_LEN]
        if not self.sample_len or not len(prompt_L):
            return
        net = module.net
        vocab = trainer.datamodule.vocab
        # A model without memory rereads its last tokens.
        ext_len = PROMPT_LEN if find_missing_memory(net, None) else 0
        options = {"seed": 1, "temperature": 0.8, "min_p": 0.05, "ext_len": ext_len}
        ids_T = generate(net, prompt_L, self.sample_len, **options).cpu()
        self.prompt_len = len(vocab.decode(prompt_L.tolist()))
        text = vocab.decode(torch.cat([prompt_L, ids_T]).tolist())
        self.samples = [*self.samples, [trainer.global_step, text]][-MAX_SAMPLES:]

    def measure_attention(self, module: LanguageModel) -> None:
        segments = [each for each in self.segments if each.new_len == self.segments[0].new_len]
        # In a shorter validation, the memory is never full.
        if len(segments) > self.n_warmup and is_transformer_xl(module.net):
            memory = module.net.empty_memory(1, module.memory_bank.eval_lengths)
            sums = sum_attention(module.net, segments, memory, self.n_warmup)
            self.attention = summarize_heads(sums)


def measures_gain(module: LanguageModel) -> bool:
    # A compiled network would be compiled again for a memory of another length.
    return bool(eval_mem_len(module)) and not module.hparams["compile"]


def count_warmup_segments(module: LanguageModel, config: DataConfig, segment: Segment) -> int:
    """Return the number of segments after which the memory of every row is full."""
    n_token = config.eval_warmup_len + eval_mem_len(module) + config.eval_ext_len
    return -(-n_token // segment.new_len)


def eval_mem_len(module: LanguageModel) -> int:
    return module.memory_bank.eval_lengths.resolve(module.net.config).mem_len
