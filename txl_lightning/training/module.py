"""LanguageModel: the LightningModule that trains and evaluates the network with its memory.

B rows   L segment
"""

import math
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from ..data.stream import IGNORED, Segment
from ..errors import prefix_errors, require
from ..machine import measure_peak_memory
from ..model import EvalSameLength, HoldsNetwork, NetworkConfig, TransformerXLConfig
from ..model.config import describe_config, make_config
from ..model.contract import AnyMemory
from ..model.reading import convert_nats, score_answers, score_segment
from .callbacks.always import NonFiniteGuard, TrainingStateCheckpoint, refuse_callbacks
from .loops import PassLimit, count_steps, limit_passes
from .optimizers import OptimConfig, apply_settings, make_optimizer, make_scheduler
from .ranks import CpuProcessGroup, count_parts, free_gathered_weights, shard_network
from .run_state import RunState, prepare_resume
from .segments import (
    MeanNats,
    MemoryBank,
    RightAnswers,
    StepMean,
    capture_network,
    compile_in_place,
    count_targets,
    count_tokens,
    describe_memory,
    find_part_len,
    make_eval_lengths,
    recompute_layers,
    require_whole_units,
    segment_loss,
)


class LanguageModel(HoldsNetwork, LightningModule):
    """Train and evaluate a Transformer-XL under a Trainer, on the text of a CorpusDataModule.

    Or any network that fulfils the contract of `model/contract.py`, given by its config.

    Other loaders can be used too. Each row of a `Segment` continues that of the segment before,
    with its memory. Pairs of (tokens_BL, targets_BL) may come in any order: each row is a text of
    its own, before which nothing is remembered. A target of -100 is not scored.

    >>> from lightning import Trainer
    >>> texts = ["to be or not to be", "that is the question"] * 99
    >>> data = CorpusDataModule.from_texts(texts, "lines.jsonl", tgt_len=8, batch_size=4)
    >>> model = LanguageModel(TransformerXLConfig(n_layer=1, d_model=16, mem_len=8))
    >>> silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    >>> trainer = Trainer(max_steps=2, accelerator="cpu", **silent)
    >>> trainer.fit(model, data)
    >>> trainer.validate(model, data, verbose=False)[0].keys() >= {"val/bits_per_byte"}
    True
    >>> model = LanguageModel.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)

    Each stage has its own memories in `memory_bank`, so that a validation within an epoch does not
    change those of training.

    Args:
        net: Sizes and parts of the network; or the class of another one's settings, and these.
        optim: Optimizer and schedule.
        eval_mem_len: Memory length in validate, test and predict; null: as in training.
        eval_clamp_len: Largest relative distance there; null: as in training. To evaluate a
            sinusoidal network without clamping, set --model.net.clamp_len null.
        eval_same_length: Number of states each query attends to there; null: as in training.
        compile: Compile the layers with torch.compile, once for all: a slower start, faster steps.
        recompute: Activation checkpointing: recompute each layer in the backward pass.
        cuda_graph: On one GPU, start each segment of a fit as CUDA graphs. Not run on one yet.
        gradient_segments: Segments of a step, with gradient through the memories between them.
    """

    def __init__(
        self,
        net: NetworkConfig = TransformerXLConfig(),  # noqa: B008 (frozen)
        optim: OptimConfig = OptimConfig(),  # noqa: B008 (frozen)
        eval_mem_len: int | None = None,
        eval_clamp_len: int | None = None,
        eval_same_length: EvalSameLength = None,
        compile: bool = False,
        recompute: bool = False,
        cuda_graph: bool = False,
        gradient_segments: int = 1,
    ) -> None:
        super().__init__()
        self.optim = OptimConfig(**optim) if isinstance(optim, dict) else optim
        with prefix_errors("model.net"):
            net = make_config(net) if isinstance(net, dict) else net
            self.net = net.build()
        eval_lengths = make_eval_lengths(net, eval_mem_len, eval_clamp_len, eval_same_length)
        require(gradient_segments >= 1, "gradient_segments", gradient_segments, "at least 1")
        self.memory_bank = MemoryBank(self.net, eval_lengths, compile)
        self.captured: Any = None  # the network that is trained with model.cuda_graph
        # Plain values: a checkpoint with objects of ours would not load under weights_only.
        plain = {"net": describe_config(net), "optim": self.optim.to_dict()}
        plain |= {f"eval_{name}": value for name, value in vars(eval_lengths).items()}
        plain |= {"compile": bool(compile), "recompute": bool(recompute)}
        plain |= {"cuda_graph": bool(cuda_graph), "gradient_segments": gradient_segments}
        self.save_hyperparameters(ignore=["net", "optim"])
        self.save_hyperparameters(plain)
        self.step_before = -1
        # TrainingStateCheckpoint counts and saves them: tokens of all devices, of the steps taken
        # and of the present segment, and the time of a start without interruptions.
        self.tokens_seen = self.segment_tokens = 0
        self.started_at = 0.0
        self.loaded_state: RunState | None = None  # until training starts
        self.step_mean = StepMean()
        self.n_target = 0.0  # of the present segment, divided by the number of ranks
        self.ends_step = True
        # By STAGE/LOADER/NAME. In a dictionary, because a cast of this module would round them.
        self.metrics: dict[str, Metric] = {}

    def setup(self, stage: str) -> None:
        self.ranks = CpuProcessGroup()
        self.loaded_state = None
        self.pass_limit: PassLimit | None = None
        if self.corpus is not None:
            expected = f"at least {self.corpus.n_token}, the tokens in the data's vocabulary"
            n_token = self.net.config.n_token
            require(n_token >= self.corpus.n_token, "net.n_token", n_token, expected)
            if stage == "fit":
                require_whole_units(self.net, self.corpus.config, self.trainer.world_size)
                self.pass_limit = limit_passes(self.trainer, self.corpus.train_dataloader)

    def forward(self, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        """Return logits_BLV and the next memory of the network."""
        return self.net(*inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean nats of the segment; TrainingStateCheckpoint commits its memory."""
        segment = Segment.from_batch(batch, self.net.config.n_token)
        self.n_target = count_targets(batch, segment, self.trainer)
        self.ends_step = self.is_last_of_step(batch_idx)
        memory = self.memory_bank.get("train", 0, segment.tokens_BL)
        n_rank = self.trainer.world_size
        n_part = count_parts(self.corpus, self.trainer.strategy)
        part_len = find_part_len(segment, self.hparams["gradient_segments"], self.corpus)
        net = self.captured or self.net
        nats_BL, memory = segment_loss(net, segment, memory, n_part, part_len)
        self.memory_bank.stage("train", 0, memory)
        self.segment_tokens = count_tokens(segment, self.corpus, n_rank)
        self.get_nats("train").update(nats_BL, segment.targets_BL)
        if self.is_logged(self.global_step + 1, batch_idx):
            self.log_training(memory, self.segment_tokens / segment.new_len / n_rank)
        # The denominator covers all ranks: DDP averages losses of unequal numbers of targets.
        return nats_BL.sum() / (self.n_target or 1)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        weight = self.step_mean.weigh(self.n_target)
        super().backward(loss if weight == 1 else loss * weight, *args, **kwargs)
        free_gathered_weights(self.net)
        # Now, because after a validation the parameters of fsdp2 are others, without gradients.
        self.step_mean.parameters = [*self.parameters()]
        if self.ends_step:
            # Before the hooks that measure and clip gradients.
            self.step_mean.finish(self.trainer.accumulate_grad_batches)
            self.step_mean = StepMean()

    def evaluation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Score a segment and update its memory; return nats_BL, nan where nothing is scored."""
        segment = Segment.from_batch(batch, self.net.config.n_token)
        bank = self.memory_bank
        memory = bank.get(self.stage, dataloader_idx, segment.tokens_BL)
        if example_len := self.corpus.store.example_len if self.corpus else None:
            nats_BL, right_BL, memory = score_answers(bank.reader, segment, memory)
            name = f"{self.stage}/{dataloader_idx}/answers"
            answers = self.get_metric(name, RightAnswers, example_len)
            answers.update(right_BL, segment.targets_BL, segment.doc_pos_BL[:, segment.n_context :])
        else:
            nats_BL, memory = score_segment(bank.reader, segment, memory)
        bank.stage(self.stage, dataloader_idx, memory)
        bank.commit()
        self.get_nats(self.stage, dataloader_idx).update(nats_BL, segment.targets_BL)
        return nats_BL.masked_fill(segment.targets_BL == IGNORED, math.nan)

    validation_step = test_step = predict_step = evaluation_step

    def on_validation_epoch_end(self) -> None:
        for name, metric in self.metrics.items():
            stage, loader, measured = name.split("/")
            if stage != self.stage:
                continue
            # Before any error, because all ranks compute it together.
            values = metric.compute()
            if measured == "nats":
                # The count is of this rank alone, which may have no rows.
                [n_scored] = self.ranks.max(int(metric.count))
                found = "nothing was scored; the batches that trainer's limits allow must go beyond"
                if not n_scored:
                    raise ValueError(f"data.eval_warmup_len: {found} the warm-up")
                values = self.readings(stage, values)
            group = stage + self.memory_bank.suffix + ("" if loader == "0" else f"/{loader}")
            self.log_dict({f"{group}/{key}": values[key] for key in values}, sync_dist=True)
        self.forget_stage()

    def forget_stage(self) -> None:
        self.memory_bank.discard(self.stage)
        # Tensors made under inference_mode in trainer.validate could not be updated in fit.
        self.metrics = {n: m for n, m in self.metrics.items() if n.split("/")[0] != self.stage}

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_start = on_predict_epoch_end = forget_stage
    on_validation_epoch_start = on_test_epoch_start = forget_stage  # the last one may have failed

    def configure_model(self) -> None:
        # Lightning calls this for each stage; repeated calls of all three have no effect.
        if self.hparams["compile"]:
            compile_in_place(self.net)
        if self.hparams["recompute"]:
            recompute_layers(self.net)
        if self.device_mesh is not None:
            shard_network(self.net, self.trainer.strategy, self.trainer.precision)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = make_optimizer(self.optim, self.net)
        scheduler = make_scheduler(self.optim, optimizer, count_steps(self.trainer))
        by_step = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": by_step}

    def configure_callbacks(self) -> list[Callback]:
        refuse_callbacks(self.trainer)
        self.captured = capture_network(self)
        self.guard = NonFiniteGuard(self.optim.max_skipped_updates)
        return [self.guard, TrainingStateCheckpoint()]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val and gradient_clip_val > 0:
            # Lightning would compute the norm again.
            self.guard.clip(self.parameters(), gradient_clip_val)

    def on_train_start(self) -> None:
        if self.pass_limit and not self.trainer.fast_dev_run:
            self.print(self.pass_limit.describe())
        # An earlier fit may have ended within a step.
        self.step_mean = StepMean()
        self.zero_grad()
        [config] = self.trainer.lr_scheduler_configs
        if self.global_step:
            # Settings given now override those restored from the checkpoint.
            apply_settings(config.scheduler, make_optimizer(self.optim, self.net))

    def on_train_end(self) -> None:
        self.captured = self.memory_bank.captured = None  # graphs hold memory of the GPU

    def on_train_batch_start(self, segment: Segment, batch_idx: int) -> None:
        self.step_before = self.global_step

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        try:
            trainer = self.trainer
        except RuntimeError:
            return  # load_from_checkpoint has no Trainer
        # Otherwise Lightning would round weights of 64-true to the float32 of a new network.
        trainer.precision_plugin.convert_module(self)
        if trainer.state.fn == "fit":
            self.loaded_state = prepare_resume(trainer, self, checkpoint)
        # Before the weights, of whose ids another vocabulary changes the meaning. Removed, because
        # Lightning would load it again, and warn again.
        if self.corpus is not None and (state := checkpoint.pop("CorpusDataModule", {})):
            self.corpus.load_state_dict(state)

    def get_metric(self, name: str, metric_type: type[Metric], *args: Any) -> Metric:
        """Return the metric "STAGE/LOADER/NAME", created at its first use."""
        if name not in self.metrics:
            self.metrics[name] = metric_type(*args).to(self.device)
        return self.metrics[name]

    def get_nats(self, stage: str, loader: int = 0) -> Metric:
        """Return the mean nats of a stage's loader; of training, since its last row was logged."""
        return self.get_metric(f"{stage}/{loader}/nats", MeanNats, self.device)

    @property
    def between_steps(self) -> bool:
        """True if no gradients are accumulated, also before the first step."""
        return self.global_step > self.step_before

    def is_last_of_step(self, batch_idx: int) -> bool:
        n = batch_idx + 1
        # Lightning takes a step after the last segment of an epoch, too.
        is_last = self.trainer.is_last_batch or n == self.trainer.num_training_batches
        return is_last or n % self.trainer.accumulate_grad_batches == 0

    def is_logged(self, step: int, batch_idx: int) -> bool:
        """Return True if this segment ends step number `step` and that step is logged."""
        return self.is_last_of_step(batch_idx) and self.is_logged_step(step)

    def is_logged_step(self, step: int) -> bool:
        every = self.trainer.log_every_n_steps
        return every > 0 and step % every == 0

    def log_training(self, memory: AnyMemory, n_row: float) -> None:
        values = self.readings("train", self.get_nats("train").compute()) | {
            "lr": self.trainer.optimizers[0].param_groups[0]["lr"],
            "peak_memory_bytes": measure_peak_memory(self.device),
            **describe_memory(memory, n_row),
        }
        values["tokens_seen"] = float(self.tokens_seen + self.segment_tokens)
        self.get_nats("train").reset()
        # One copy to the device; Lightning would copy each number, and wait each time.
        numbers = torch.tensor(list(values.values()), device=self.device)
        names = [f"train/{key}" for key in values]
        self.log_dict(dict(zip(names, numbers, strict=True)), sync_dist=True)

    def readings(self, stage: str, nats: Tensor) -> dict[str, float]:
        """Return mean nats in the units of the text, and as "loss", the name in other tools."""
        size = self.corpus.bytes_per_token(stage) if self.corpus else None
        return {"loss": nats.item(), **convert_nats(nats.item(), self.unit, size)}

    @property
    def seconds(self) -> float:
        """Seconds of training until now, validations and resumed parts included."""
        return time.monotonic() - self.started_at

    @property
    def stage(self) -> str:
        """train, val, test or predict."""
        return self.trainer.state.stage.dataloader_prefix

    @property
    def is_fitting(self) -> bool:
        """True in fit, except in Lightning's sanity check before it."""
        return self.trainer.state.fn == "fit" and not self.trainer.sanity_checking

    @property
    def unit(self) -> str:
        return self.corpus.vocab.unit if self.corpus else "token"

    @property
    def corpus(self) -> Any:
        """The CorpusDataModule; None with loaders of another kind."""
        from ..data.datamodule import CorpusDataModule  # here, because other loaders do not need it

        data = self.trainer.datamodule
        return data if isinstance(data, CorpusDataModule) else None
