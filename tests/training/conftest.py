"""A small model, a Trainer as in a run, and a record of training."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig


@pytest.fixture(autouse=True)
def _only_where_there_is_a_gpu(request):
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture
def make_model():
    def make(optim=(), settings=(), **changes) -> LanguageModel:
        sizes = {"n_token": 256, "n_layer": 2, "n_head": 2, "d_model": 16, "mem_len": 12}
        how = {"name": "adamw", "lr": 3e-3, "schedule": "cosine"} | dict(optim)
        net = TransformerXLConfig(**sizes | changes)
        return LanguageModel(net, OptimConfig(**how), **dict(settings))

    return make


@pytest.fixture
def make_trainer(tmp_path):
    def make(**changes) -> Trainer:
        silent = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        options = dict.fromkeys(silent, False) | {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 6,
            "max_epochs": -1,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 3,
            "check_val_every_n_epoch": None,
            "use_distributed_sampler": False,
            "default_root_dir": str(tmp_path / "runs"),
        }
        return Trainer(**options | changes)

    return make


class Record(Checkpoint):
    """Records for every training segment its tokens, the memory before it, and logged metrics.

    Also weights after every step, and results of validations. A Checkpoint, which Lightning calls
    last: after the memory is committed. It can save.
    """

    def __init__(self, save=(None, None)) -> None:
        self.path, self.step = save
        self.segments = []
        self.filled = []
        self.weights = []
        self.val_nats = []
        self.losses = []
        self.logged = []
        self.scales = []
        self.draws = []

    def on_train_start(self, trainer, module):
        self.left = dict(module.memory_bank.committed), dict(module.metrics)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        memory = module.memory_bank.committed.get(("train", 0))
        self.filled.append(int(memory.filled_B.min()) if hasattr(memory, "filled_B") else 0)
        self.segments.append(batch)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.between_steps:
            self.weights.append({n: each.clone() for n, each in module.net.state_dict().items()})
        self.losses.append(outputs["loss"].item())
        self.logged.append({name: v.item() for name, v in trainer.callback_metrics.items()})
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.scales.append(scaler and scaler.state_dict())
        # Numbers of other generators whose states are also in a checkpoint.
        self.draws.append((random.random(), np.random.random()))
        if trainer.global_step == self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer, module):
        if nats := trainer.callback_metrics.get("val/nats"):
            self.val_nats.append(nats.item())

    @property
    def memory(self):
        return self.model.memory_bank.committed["train", 0]

    def continues(self, whole: "Record") -> bool:
        """Tell whether a resumed run is bit by bit the rest of an uninterrupted one."""
        n_step = len(self.losses)
        assert 0 < n_step < len(whole.losses)
        assert (self.draws, self.scales) == (whole.draws[-n_step:], whole.scales[-n_step:])
        pairs = zip(self.model.parameters(), whole.model.parameters(), strict=True)
        return self.losses == whole.losses[-n_step:] and all(torch.equal(*pair) for pair in pairs)


@pytest.fixture
def fit(make_model, make_data, make_trainer):
    """Train from the same weights; return a record, also as `fit.record` if training fails."""

    def run(
        net=(), data=(), ckpt_path=None, save=(None, None), callbacks=(), model=None, **options
    ) -> Record:
        seed_everything(3, verbose=False)
        run.record = record = Record(save)
        always = {"enable_checkpointing": True, "callbacks": [*callbacks, record]}
        options = {"limit_val_batches": 0} | options | always
        record.model = model or make_model(**dict(net))
        record.trainer = make_trainer(**options)
        data = data if isinstance(data, CorpusDataModule) else make_data(**dict(data))
        record.trainer.fit(record.model, datamodule=data, ckpt_path=ckpt_path)
        return record

    return run


@pytest.fixture
def count_bytes():
    """Return the bytes that a computation saves for its gradients."""

    def count(compute) -> int:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            compute()
        return sum(tensor.nbytes for tensor in kept)

    return count
