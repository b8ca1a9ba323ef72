"""A small model and a Trainer, as they are in a run."""

import pytest
from lightning.pytorch import Trainer

from txl_lightning import LanguageModel, OptimConfig, TransformerXLConfig


@pytest.fixture
def make_model():
    def make(optim=(), **changes) -> LanguageModel:
        sizes = {"n_token": 256, "n_layer": 2, "n_head": 2, "d_model": 16, "mem_len": 12}
        how = {"name": "adamw", "lr": 3e-3, "schedule": "cosine"} | dict(optim)
        return LanguageModel(TransformerXLConfig(**sizes | changes), OptimConfig(**how))

    return make


@pytest.fixture
def make_trainer(tmp_path):
    def make(**changes) -> Trainer:
        silent = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        options = dict.fromkeys(silent, False) | {
            "accelerator": "cpu",
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
