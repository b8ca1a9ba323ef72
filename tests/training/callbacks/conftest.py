"""Runs of a small model with callbacks."""

import pytest
from lightning.pytorch import Callback, Trainer, seed_everything

from txl_lightning import CorpusDataModule


@pytest.fixture
def fit(make_model, make_data, make_trainer):
    """Train with callbacks; return the trainer, also as `fit.trainer` if training fails."""

    def run(
        *callbacks: Callback, sizes=(), optim=(), data=(), model=None, ckpt_path=None, **options
    ) -> Trainer:
        seed_everything(3, verbose=False)
        run.trainer = make_trainer(callbacks=[*callbacks], **options)
        model = model or make_model(optim={"schedule": "constant"} | dict(optim), **dict(sizes))
        datamodule = data if isinstance(data, CorpusDataModule) else make_data(**dict(data))
        run.trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
        return run.trainer

    return run
