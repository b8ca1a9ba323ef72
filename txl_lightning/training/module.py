"""LanguageModel: the network under Lightning, with its memories.

B rows   L segment
"""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from ..data.datamodule import CorpusDataModule
from ..data.stream import IGNORED, Segment, TrainingLoader
from ..errors import prefix_errors
from ..evaluation import (
    MeanNats,
    RightAnswers,
    peak_memory,
    readings,
    segment_answers,
    segment_nats,
)
from ..model import AnyMemory, Memory, TransformerXL, TransformerXLConfig
from ..model.config import EvalSameLength
from .callbacks.non_finite import NonFiniteGuard
from .callbacks.training_state import TrainingStateCheckpoint, memory_readings
from .callbacks.weight_averaging import go_on_from, refuse_others
from .compiling import compile_in_place
from .fsdp import data_mesh, recompute, shard
from .lengths import check_eval_lengths
from .micro_batches import nats_in_micro_batches
from .optimizers import OptimConfig, make_optimizer, make_scheduler, set_as_given
from .ranks import Ranks


class LanguageModel(LightningModule):
    """Train and measure a Transformer-XL on segments; one step is one segment.

    The memories are plain attributes: DDP would overwrite buffers with rank 0's. There is one for
    each stage and dataloader, so validation in mid-epoch leaves the training memory alone.
    Evaluation remembers keys and values.

    Args:
        net: Sizes and parts of the network.
        optim: How it is trained.
        eval_mem_len: States remembered in validate, test and predict; null means as in training.
        eval_clamp_len: Greatest distance told apart there; null means as in training. A
            sinusoidal network is measured without a clamp by --model.net.clamp_len null.
        eval_same_length: How many states each query sees there; null means as in training.
        compile: Whether to compile the network: some time before the first steps, less for each.
        recompute: Compute each layer twice instead of keeping its states: less memory, more time.
    """

    def __init__(
        self,
        net: TransformerXLConfig = TransformerXLConfig(),  # noqa: B008 (frozen)
        optim: OptimConfig = OptimConfig(),  # noqa: B008 (frozen)
        eval_mem_len: int | None = None,
        eval_clamp_len: int | None = None,
        eval_same_length: EvalSameLength = None,
        compile: bool = False,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        net = TransformerXLConfig(**net) if isinstance(net, dict) else net
        self.optim = OptimConfig.of(optim) if isinstance(optim, dict) else optim
        check_eval_lengths(eval_mem_len, eval_clamp_len)
        given = {"eval_mem_len": eval_mem_len, "eval_clamp_len": eval_clamp_len}
        given |= {"eval_same_length": eval_same_length}
        self.eval_lengths = tuple(given.values())
        self.train_lengths = (net.mem_len, net.clamp_len, net.same_length)
        self.recompute = recompute
        given |= {"net": net.plain(), "optim": self.optim.plain()}
        self.save_hyperparameters(given | {"compile": compile, "recompute": recompute})
        with prefix_errors("model.net"):
            self.net = TransformerXL(net)
        self.memories: dict[tuple[str, int], AnyMemory] = {}
        self.pending: dict[tuple[str, int], Memory] = {}
        self.between_steps = True
        self.train_nats = MeanNats()
        self.meters = nn.ModuleDict()

    def setup(self, stage: str) -> None:
        """Now the processes are known."""
        self.ranks = Ranks()

    def forward(self, tokens_BL: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """The network's logits_BLV and next memory."""
        return self.net(tokens_BL, memory)

    def training_step(self, segment: Segment, batch_idx: int) -> Tensor:
        """Mean nats of the segment; its memory waits until the step is done (`Carry`)."""
        memory, n_part = (
            self.training_memory(segment),
            self.corpus.micro_batches if self.corpus else 1,
        )
        nats_BL, self.pending["train", 0] = nats_in_micro_batches(
            self.net, segment, memory, self.ext_len("train"), n_part
        )
        self.train_nats.update(nats_BL, segment.targets_BL)
        if self.is_logged(self.global_step + 1, batch_idx):
            self.log_training(segment)
        # Over all ranks: theirs are averaged, and they may not score equally many.
        return nats_BL.sum() / (segment.loss_denominator or 1)

    def remember(self) -> None:
        """The step is done."""
        self.memories |= self.pending
        self.pending = {}

    def validation_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Nats of the segment: nats_BL."""
        return self.evaluate("val", segment, dataloader_idx)

    def test_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Nats of the segment: nats_BL."""
        return self.evaluate("test", segment, dataloader_idx)

    def predict_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Nats of the segment: nats_BL."""
        return self.evaluate("predict", segment, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Report the pass and leave nothing behind."""
        self.report("val")

    def on_test_epoch_end(self) -> None:
        """Report the pass and leave nothing behind."""
        self.report("test")

    def on_predict_epoch_end(self) -> None:
        """Leave nothing behind."""
        self.forget("predict")

    def configure_model(self) -> None:
        """Fit the network to its devices; each verb asks for it again."""
        if self.hparams["compile"]:
            compile_in_place(self.net)
        if self.recompute:
            recompute(self.net)
        if self.device_mesh is not None:
            shard(self.net, data_mesh(self.device_mesh))

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser by name, and its schedule as a function of the step."""
        optimizer = make_optimizer(self.optim, self.net)
        scheduler = make_scheduler(self.optim, optimizer, self.trainer.max_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def configure_callbacks(self) -> list[Callback]:
        """What keeps memory, position and random numbers together, and bad numbers out."""
        refuse_others(getattr(self._trainer, "callbacks", []))
        return [NonFiniteGuard(self.optim.skip_budget), TrainingStateCheckpoint()]

    def on_train_start(self) -> None:
        """After a resume, train by the settings given now."""
        [config] = self.trainer.lr_scheduler_configs
        if self.global_step:
            set_as_given(config.scheduler, make_optimizer(self.optim, self.net))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights whose ids mean something else in this text, before they are loaded."""
        if self._trainer is not None:
            go_on_from(checkpoint, self.trainer)
            # Lightning loads them first, and would round 64-true to the float32 of a new network.
            self.trainer.precision_plugin.convert_module(self)
        state = checkpoint.get(CorpusDataModule.__qualname__)
        if self.corpus and state is not None:
            self.corpus.load_state_dict(state)

    def training_memory(self, segment: Segment) -> Memory:
        """What its rows remember; nothing, at first or for other rows."""
        rows, memory = len(segment.tokens_BL), self.memories.get(("train", 0))
        if memory is None or memory.batch_size != rows:
            return self.net.empty_memory(rows, *self.train_lengths)
        mem_len, *how_far = self.train_lengths
        memory = memory.resized(mem_len).read_with(*how_far)
        return memory.to(self.device, self.net.compute_dtype)

    def evaluation_memory(self, stage: str, segment: Segment, loader: int) -> AnyMemory:
        """What a stage remembers of a dataloader; nothing, at first or for other rows."""
        rows, memory = len(segment.tokens_BL), self.memories.get((stage, loader))
        if memory is not None and memory.batch_size == rows:
            return memory
        # A compiled network is one graph for what keeps its shape.
        compiled = self.hparams["compile"]
        empty = self.net.empty_memory if compiled else self.net.empty_cache
        return empty(rows, *self.eval_lengths)

    def evaluate(self, stage: str, segment: Segment, loader: int) -> Tensor:
        """Score one segment and remember it; nan where nothing is scored."""
        memory, ext_len = self.evaluation_memory(stage, segment, loader), self.ext_len(stage)
        if self.example_len:
            nats_BL, right_BL, memory = segment_answers(self.net, segment, memory, ext_len)
            answers = self.meter(f"{stage}/{loader}/answers", RightAnswers, self.example_len)
            answers.update(right_BL, segment.targets_BL, segment.doc_pos_BL)
        else:
            nats_BL, memory = segment_nats(self.net, segment, memory, ext_len)
        self.memories[stage, loader] = memory
        self.meter(f"{stage}/{loader}/nats", MeanNats).update(nats_BL, segment.targets_BL)
        return nats_BL.masked_fill(segment.targets_BL == IGNORED, math.nan)

    def meter(self, name: str, kind: type[Metric], *args: Any) -> Metric:
        """The metric of a stage and dataloader, made when it is first needed."""
        if name not in self.meters:
            self.meters[name] = kind(*args).to(self.device)
        return self.meters[name]

    def report(self, stage: str) -> None:
        """Log a stage's readings and forget what it remembered."""
        for name, meter in self.meters.items():
            of_stage, loader, what = name.split("/")
            if of_stage == stage:
                values = self.counted(meter)
                values = self.readings(stage, values) if what == "nats" else values
                group = stage if loader == "0" else f"{stage}/{loader}"
                self.log_dict({f"{group}/{key}": values[key] for key in values}, sync_dist=True)
        self.forget(stage)

    def counted(self, meter: Metric) -> Any:
        """What a metric has come to.

        Raises:
            ValueError: nothing was scored.
        """
        # First of all, because the ranks compute together.
        values = meter.compute()
        if isinstance(meter, MeanNats) and values.isnan() and not meter.count:
            raise ValueError(
                "data.eval_warmup_len: nothing was scored; the batches that trainer's limits allow "
                "must go beyond the warm-up"
            )
        return values

    def forget(self, stage: str) -> None:
        """Drop a stage's memories and counts."""
        self.memories = {key: self.memories[key] for key in self.memories if key[0] != stage}
        for name in [name for name in self.meters if name.startswith(stage)]:
            # Made under inference_mode by trainer.validate, it could not be counted on in fit.
            del self.meters[name]

    def is_logged(self, step: int, batch_idx: int) -> bool:
        """Whether this segment ends step number `step` and that one is logged."""
        ends_step = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        return ends_step and self.is_logged_step(step)

    def is_logged_step(self, step: int) -> bool:
        """Whether step number `step` is logged."""
        every = self.trainer.log_every_n_steps
        return every > 0 and step % every == 0

    def log_training(self, segment: Segment) -> None:
        """Log the mean since the last time; seldom, because each logged value takes time."""
        values = self.readings("train", self.train_nats.compute())
        self.train_nats.reset()
        lr = self.trainer.optimizers[0].param_groups[0]["lr"]
        values |= {"lr": lr, "tokens": float(self.tokens_seen(segment))}
        values |= memory_readings(self.pending["train", 0])
        values |= {"peak_memory_bytes": peak_memory(self.device)}
        self.log_dict({f"train/{key}": values[key] for key in values}, sync_dist=True)

    def readings(self, stage: str, nats: Tensor) -> dict[str, float]:
        """Mean nats in the units of the text."""
        size = self.corpus.bytes_per_token(stage) if self.corpus else None
        return readings(nats.item(), self.unit, size)

    @property
    def unit(self) -> str:
        """What one token is called in the logs."""
        return self.corpus.unit if self.corpus else "token"

    def ext_len(self, stage: str) -> int:
        """Tokens that each segment of a stage reads again."""
        if self.corpus is None:
            return 0
        return self.corpus.ext_len if stage == "train" else self.corpus.eval_ext_len

    def tokens_seen(self, segment: Segment) -> int:
        """Targets read up to the end of this segment, over all ranks and passes."""
        loader = self.trainer.train_dataloader
        return loader.tokens_seen(segment.index + 1) if isinstance(loader, TrainingLoader) else 0

    @property
    def example_len(self) -> int | None:
        """Tokens in an example, if the text is a task."""
        return self.corpus.example_len if self.corpus else None

    @property
    def corpus(self) -> CorpusDataModule | None:
        """The data module, when it is ours."""
        data = getattr(self._trainer, "datamodule", None)
        return data if isinstance(data, CorpusDataModule) else None
