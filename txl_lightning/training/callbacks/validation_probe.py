"""Measurements after each validation: samples, loss by position, attention distance, memory gain.

B rows   L segment   T tokens of a text
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...analysis.attention_distance import sum_attention, summarize_heads
from ...data.stream import Segment, TrainingLoader
from ...evaluation.metrics import MeanNats
from ...evaluation.scoring import segment_nats
from ...files import write_json
from ...generation import generate
from .run_metrics import is_fitting

PROMPT_LEN = 32
"""Tokens of the validation text that samples continue."""
MAX_SAMPLES = 100
N_ATTENTION = 4
"""Segments in which attention is measured, once the memory is full."""
N_GAIN = 16
"""Segments that are read without memory too, once the memory is full."""
NOTES = ("samples", "prompt_len", "nats_by_position", "attention")


class ValidationProbe(Callback):
    """Measure the model in each validation of fit; training is bit for bit as without it.

    Logged: val/tokens_seen, and val/memory_gain: mean nats of the same few segments without memory
    less those with it. Above 0 memory helps; it says nothing about a model trained without.

    Args:
        sample_len: tokens of a sample; 0: none is generated.

    Attributes:
        samples: [step, text] of the last validations; a text begins with the validation text's.
        prompt_len: characters of a sample that are the validation text's.
        nats_by_position: [position in the segment, mean nats] of the last validation.
        attention: rows of `measure_attention_distance`, of the last validation.
    """

    def __init__(self, sample_len: int = 200) -> None:
        self.sample_len, self.prompt_len = sample_len, 0
        self.samples: list[list[Any]] = []
        self.nats_by_position: list[list[float]] = []
        self.attention: list[dict[str, Any]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A new metric: one made under trainer.validate's inference_mode could not count in fit.
        self.gain = MeanNats().to(pl_module.device)
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
                alone_BL = nats_without_memory(pl_module, batch)
            self.gain.update(alone_BL - outputs, batch.targets_BL)
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
        mean_L = (self.nats_L / self.count_L).tolist()
        self.nats_by_position = [[at, nats] for at, nats in enumerate(mean_L) if nats == nats]
        # One rank alone cannot compute with shards; a compiled network has other memories.
        is_whole = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
        if self.segments and is_whole and not pl_module.hparams["compile"]:
            self.add_sample(trainer, pl_module)
            self.measure_attention(pl_module)

    def add_sample(self, trainer: Trainer, pl_module: Any) -> None:
        """Let the model continue the beginning of the validation text."""
        # The first row has no text before its own and repeats a token for its warm-up.
        text_T = torch.cat([each.tokens_BL[0, each.n_context :] for each in self.segments])
        prompt_L = text_T[pl_module.corpus.eval_warmup_len :][:PROMPT_LEN]
        if not self.sample_len or not len(prompt_L):
            return
        net, vocab = pl_module.net, trainer.datamodule.vocab
        # A model that cannot remember must read its own last tokens again.
        context = PROMPT_LEN if not net.config.mem_len or net.config.is_absolute else 0
        options = {"seed": 1, "temperature": 0.8, "ext_len": context}
        ids_T = generate(net, prompt_L, self.sample_len, **options).cpu()
        self.prompt_len = len(vocab.decode(prompt_L.tolist()))
        text = vocab.decode(torch.cat([prompt_L, ids_T]).tolist())
        self.samples = [*self.samples, [trainer.global_step, text]][-MAX_SAMPLES:]

    def measure_attention(self, pl_module: Any) -> None:
        """Measure attention distances, if the validation is long enough to fill the memory."""
        net, tgt_len = pl_module.net, self.segments[0].new_len
        whole = [each for each in self.segments if each.new_len == tgt_len]
        if len(whole) > self.n_warmup:
            memory = net.empty_memory(1, pl_module.eval_lengths)
            ext_len = pl_module.corpus.eval_ext_len
            sums = sum_attention(net, whole, memory, self.n_warmup, ext_len)
            self.attention = summarize_heads(sums)

    def save(self, path: Path) -> None:
        """Write all notes as JSON, so that a resumed run keeps them."""
        write_json({name: getattr(self, name) for name in NOTES}, path)

    def load(self, path: Path, global_step: int) -> None:
        """Read the notes of this run up to a step, if it has any."""
        if global_step and path.is_file():
            vars(self).update(json.loads(path.read_text()))
            self.samples = [sample for sample in self.samples if sample[0] <= global_step]


def n_warmup_segments(pl_module: Any, segment: Segment) -> int:
    """Segments after which every row sees as many states as it ever will."""
    corpus = pl_module.corpus
    before = corpus.eval_warmup_len + eval_mem_len(pl_module) + corpus.eval_ext_len
    return -(-before // segment.new_len)


def eval_mem_len(pl_module: Any) -> int:
    return pl_module.eval_lengths.resolve(pl_module.net.config).mem_len


def nats_without_memory(pl_module: Any, segment: Segment) -> Tensor:
    """Nats of a segment's targets, nats_BL, where nothing before the segment is remembered."""
    reader, lengths = pl_module.memory_bank.reader, replace(pl_module.eval_lengths, mem_len=0)
    memory = reader.empty_memory(len(segment.tokens_BL), lengths)
    return segment_nats(reader, segment, memory)[0]
