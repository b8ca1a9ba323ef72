"""What is seen of a model after each validation: what it writes, where it errs, how far it looks.

B rows   L segment
"""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from ...analysis.attention_distance import sum_attention, summarize_heads
from ...data.stream import Segment
from ...generation import generate
from ...generation.streaming import StreamingDetokenizer
from .history import in_fit

PROMPT = 32
"""Tokens of the validation text that samples go on from."""
MOST = 100
"""Samples that are kept."""
SEGMENTS = 4
"""Segments in which attention is looked at, once the memory is full."""


class ValidationProbe(Callback):
    """Look at the model after each validation of fit, on rank 0; training does not notice.

    Args:
        sample_len: Tokens of a sample; 0, none is written.

    Attributes:
        samples: The step of each of the last validations, and a text that the model wrote: the
            beginning of the validation text, and how it goes on.
        prompt: How many characters of the text are not the model's.
        nats: Places of a segment where something is scored, and the mean nats there at the last
            validation (context fragmentation).
        attention: How far back each head looks (`summarize_heads`), at the last one.
    """

    def __init__(self, sample_len: int = 200) -> None:
        self.sample_len = sample_len
        self.samples: list[list[Any]] = []
        self.prompt = 0
        self.nats: list[tuple[int, float]] = []
        self.attention: list[dict[str, Any]] = []
        self.begin()

    def begin(self) -> None:
        """Nothing of this validation has been seen."""
        self.nats_L, self.count_L = torch.zeros(0), torch.zeros(0)
        self.segments: list[Segment] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One that was broken off says nothing of this one."""
        self.begin()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor,
        batch: Segment,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a segment's nats up by their places, and keep some of its text."""
        if not in_fit(trainer) or not trainer.is_global_zero or dataloader_idx:
            return
        first = self.segments[0] if self.segments else batch
        if len(self.segments) < filling(pl_module, first) + SEGMENTS:
            self.segments.append(batch.rows(slice(1)).to("cpu"))
        nats_BL = outputs[:, batch.n_context :].cpu().double()
        self.nats_L = added(self.nats_L, nats_BL.nansum(dim=0))
        self.count_L = added(self.count_L, nats_BL.isfinite().sum(dim=0))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look, while the weights are those that were measured (`WeightAverage`)."""
        if not self.segments:
            return
        mean_L = (self.nats_L / self.count_L).tolist()
        self.nats = [(place, nats) for place, nats in enumerate(mean_L) if nats == nats]
        # Alone, a rank cannot compute with parts of weights; a compiled network has other memories.
        whole = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
        if whole and not pl_module.hparams["compile"]:
            # The first row has no text before its own, and repeats a token for a warm-up.
            text_T = torch.cat([each.tokens_BL[0, each.n_context :] for each in self.segments])
            text_T = text_T[pl_module.corpus.eval_warmup_len :]
            if self.sample_len and len(text_T):
                self.samples.append([trainer.global_step, self.sample(trainer, pl_module, text_T)])
            self.samples = self.samples[-MOST:]
            self.look(pl_module)
        self.begin()

    def sample(self, trainer: Trainer, pl_module: LightningModule, text_T: Tensor) -> str:
        """The beginning of the validation text, and what the model writes after it."""
        net, vocab = pl_module.net, trainer.datamodule.vocab
        prompt_L, context = text_T[:PROMPT], 0
        if not net.config.mem_len or net.config.is_absolute:
            context = PROMPT
        how = {"seed": 1, "temperature": 0.8, "ext_len": context}
        ids_L = generate(net, prompt_L, self.sample_len, **how)
        self.prompt = len(written(vocab, prompt_L))
        return written(vocab, torch.cat([prompt_L, ids_L.cpu()]))

    def look(self, pl_module: LightningModule) -> None:
        """How far back the heads look, if the text that was validated is long enough to tell."""
        net, n_warm = pl_module.net, filling(pl_module, self.segments[0])
        whole = [each for each in self.segments if each.new_len == self.segments[0].new_len]
        if len(whole) > n_warm:
            memory = net.empty_memory(1, *pl_module.eval_lengths)
            sums = sum_attention(net, whole, memory, n_warm, pl_module.ext_len("val"))
            self.attention = summarize_heads(sums)

    def state_dict(self) -> dict[str, Any]:
        """What was seen so far."""
        return {name: getattr(self, name) for name in ("samples", "prompt", "nats", "attention")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in state_dict.items():
            setattr(self, name, value)


def filling(pl_module: LightningModule, segment: Segment) -> int:
    """Segments after which a row sees as far back as it ever will."""
    corpus, mem_len = pl_module.corpus, remembered(pl_module)
    return -(-(corpus.eval_warmup_len + mem_len + corpus.eval_ext_len) // segment.new_len)


def remembered(pl_module: LightningModule) -> int:
    """States that a row remembers in validation."""
    given = pl_module.eval_lengths[0]
    return pl_module.net.config.mem_len if given is None else given


def written(vocab: Any, ids_L: Tensor) -> str:
    """Text in whole characters."""
    stream = StreamingDetokenizer(vocab, ())
    return "".join([*(stream.add(index) for index in ids_L.tolist()), stream.rest()])


def added(one_L: Tensor, other_L: Tensor) -> Tensor:
    """The sum, of which the shorter one has the beginning."""
    sum_L = torch.zeros(max(len(one_L), len(other_L)), dtype=torch.float64)
    sum_L[: len(one_L)] += one_L
    sum_L[: len(other_L)] += other_L
    return sum_L
