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
from ..evaluation.environment import peak_memory
from ..evaluation.metrics import MeanNats, RightAnswers
from ..evaluation.results import readings
from ..evaluation.scoring import segment_answers, segment_nats
from ..model import EvalLengths, EvalSameLength, Memory, TransformerXL, TransformerXLConfig
from .callbacks.non_finite import NonFiniteGuard
from .callbacks.training_state import TrainingStateCheckpoint
from .callbacks.weight_averaging import refuse_other_averages, select_trained_weights
from .compiling import compile_in_place
from .fsdp import data_mesh, enable_activation_checkpointing, shard
from .memory_bank import MemoryBank, make_eval_lengths, measure_memory
from .micro_batches import nats_in_micro_batches
from .optimizers import OptimConfig, apply_settings, make_optimizer, make_scheduler
from .ranks import Ranks


class LanguageModel(LightningModule):
    """Train and measure a Transformer-XL on segments.

    Each stage has memories of its own in `memory_bank`, so that a validation in mid-epoch leaves
    those of training alone.

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
        self.optim = OptimConfig.from_dict(optim) if isinstance(optim, dict) else optim
        with prefix_errors("model.net"):
            self.net = TransformerXL(net)
        eval_lengths = make_eval_lengths(eval_mem_len, eval_clamp_len, eval_same_length)
        self.memory_bank = MemoryBank(self.net, eval_lengths, compile)
        # Plain values: a checkpoint with objects of ours would not load under weights_only.
        plain = {"net": net.to_dict(), "optim": self.optim.to_dict()}
        self.save_hyperparameters(ignore=["net", "optim"])
        self.save_hyperparameters(plain)
        self.step_before = -1
        self.train_nats = MeanNats()
        self.metrics = nn.ModuleDict()

    def setup(self, stage: str) -> None:
        self.ranks = Ranks()

    def forward(self, tokens_BL: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """The network's logits_BLV and next memory."""
        return self.net(tokens_BL, memory)

    def training_step(self, segment: Segment, batch_idx: int) -> Tensor:
        """Mean nats of the segment; TrainingStateCheckpoint commits its memory."""
        memory = self.memory_bank.get("train", 0, len(segment.tokens_BL))
        n_part = self.corpus.config.micro_batches if self.corpus else 1
        nats_BL, memory = nats_in_micro_batches(
            self.net, segment, memory, self.ext_len("train"), n_part
        )
        self.memory_bank.stage("train", 0, memory)
        self.train_nats.update(nats_BL, segment.targets_BL)
        if self.is_logged(self.global_step + 1, batch_idx):
            self.log_training(segment, memory)
        # Over all ranks: theirs are averaged, and they may not score equally many.
        return nats_BL.sum() / (segment.loss_denominator or 1)

    def validation_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self.evaluate_segment("val", segment, dataloader_idx)

    def test_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self.evaluate_segment("test", segment, dataloader_idx)

    def predict_step(self, segment: Segment, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self.evaluate_segment("predict", segment, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self.log_results("val")

    def on_test_epoch_end(self) -> None:
        self.log_results("test")

    def on_predict_epoch_end(self) -> None:
        self.forget("predict")

    def configure_model(self) -> None:
        # Lightning calls it again for each stage: all three leave what is done as it is.
        if self.hparams["compile"]:
            compile_in_place(self.net)
        if self.hparams["recompute"]:
            enable_activation_checkpointing(self.net)
        if self.device_mesh is not None:
            shard(self.net, data_mesh(self.device_mesh))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = make_optimizer(self.optim, self.net)
        scheduler = make_scheduler(self.optim, optimizer, self.trainer.max_steps)
        by_step = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": by_step}

    def configure_callbacks(self) -> list[Callback]:
        refuse_other_averages(getattr(self._trainer, "callbacks", []))
        return [NonFiniteGuard(self.optim.max_skipped_updates), TrainingStateCheckpoint()]

    def on_train_start(self) -> None:
        [config] = self.trainer.lr_scheduler_configs
        if self.global_step:
            # Settings given now win over those that the checkpoint restored.
            apply_settings(config.scheduler, make_optimizer(self.optim, self.net))

    def on_train_batch_start(self, segment: Segment, batch_idx: int) -> None:
        self.step_before = self.global_step

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Called before the weights are loaded: of another text's, ids mean something else.
        if self._trainer is not None:
            if self.trainer.state.fn == "fit":
                select_trained_weights(checkpoint, self.trainer.callbacks)
            # Lightning loads them first, and would round 64-true to the float32 of a new network.
            self.trainer.precision_plugin.convert_module(self)
        state = checkpoint.get(CorpusDataModule.__qualname__)
        if self.corpus and state is not None:
            self.corpus.load_state_dict(state)

    def evaluate_segment(self, stage: str, segment: Segment, loader: int) -> Tensor:
        """Score one segment and remember it: nats_BL, nan where nothing is scored."""
        memory = self.memory_bank.get(stage, loader, len(segment.tokens_BL))
        reader, ext_len = self.memory_bank.reader, self.ext_len(stage)
        if self.example_len:
            nats_BL, right_BL, memory = segment_answers(reader, segment, memory, ext_len)
            answers = self.metric(f"{stage}/{loader}/answers", RightAnswers, self.example_len)
            answers.update(right_BL, segment.targets_BL, segment.doc_pos_BL)
        else:
            nats_BL, memory = segment_nats(reader, segment, memory, ext_len)
        self.memory_bank.stage(stage, loader, memory)
        self.memory_bank.commit()
        self.metric(f"{stage}/{loader}/nats", MeanNats).update(nats_BL, segment.targets_BL)
        return nats_BL.masked_fill(segment.targets_BL == IGNORED, math.nan)

    def metric(self, name: str, kind: type[Metric], *args: Any) -> Metric:
        """Return a metric by stage, dataloader and kind, made when it is first needed."""
        if name not in self.metrics:
            self.metrics[name] = kind(*args).to(self.device)
        return self.metrics[name]

    def log_results(self, stage: str) -> None:
        """Log what a pass over a stage's texts has found, and forget it."""
        for name, metric in self.metrics.items():
            of_stage, loader, kind = name.split("/")
            if of_stage == stage:
                # First of all, because the ranks compute together.
                values = metric.compute()
                if kind == "nats" and values.isnan() and not metric.count:
                    raise ValueError(
                        "data.eval_warmup_len: nothing was scored; the batches that trainer's "
                        "limits allow must go beyond the warm-up"
                    )
                values = self.readings(stage, values) if kind == "nats" else values
                group = stage if loader == "0" else f"{stage}/{loader}"
                self.log_dict({f"{group}/{key}": values[key] for key in values}, sync_dist=True)
        self.forget(stage)

    def forget(self, stage: str) -> None:
        """Drop a stage's memories and metrics."""
        self.memory_bank.discard(stage)
        for name in [name for name in self.metrics if name.startswith(stage)]:
            # Made under inference_mode by trainer.validate, it could not be updated in fit.
            del self.metrics[name]

    @property
    def between_steps(self) -> bool:
        """True if no gradient waits for more segments, also before the first step."""
        return self.global_step > self.step_before

    def is_logged(self, step: int, batch_idx: int) -> bool:
        """Return whether this segment ends step number `step` and that step is logged."""
        ends_step = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        return ends_step and self.is_logged_step(step)

    def is_logged_step(self, step: int) -> bool:
        every = self.trainer.log_every_n_steps
        return every > 0 and step % every == 0

    def log_training(self, segment: Segment, memory: Memory) -> None:
        """Log the means since the last time."""
        values = self.readings("train", self.train_nats.compute())
        self.train_nats.reset()
        lr = self.trainer.optimizers[0].param_groups[0]["lr"]
        values |= {"lr": lr, "tokens_seen": float(self.tokens_seen(segment))}
        values |= measure_memory(memory) | {"peak_memory_bytes": peak_memory(self.device)}
        self.log_dict({f"train/{key}": values[key] for key in values}, sync_dist=True)

    def readings(self, stage: str, nats: Tensor) -> dict[str, float]:
        """Return mean nats in the units of the text, and as "loss" for other tools."""
        size = self.corpus.bytes_per_token(stage) if self.corpus else None
        return {"loss": nats.item(), **readings(nats.item(), self.unit, size)}

    @property
    def eval_lengths(self) -> EvalLengths:
        """mem_len, clamp_len and same_length of evaluation; None is as in training."""
        return self.memory_bank.eval_lengths

    @property
    def unit(self) -> str:
        return self.corpus.vocab.unit if self.corpus else "token"

    def ext_len(self, stage: str) -> int:
        if self.corpus is None:
            return 0
        config = self.corpus.config
        return config.ext_len if stage == "train" else config.eval_ext_len

    def tokens_seen(self, segment: Segment) -> int:
        loader = self.trainer.train_dataloader
        return loader.tokens_seen(segment.index + 1) if isinstance(loader, TrainingLoader) else 0

    @property
    def example_len(self) -> int | None:
        return self.corpus.store.example_len if self.corpus else None

    @property
    def corpus(self) -> CorpusDataModule | None:
        # Lightning's own `trainer` raises where there is none, as in load_from_checkpoint.
        data = getattr(self._trainer, "datamodule", None)
        return data if isinstance(data, CorpusDataModule) else None
