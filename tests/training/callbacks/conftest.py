"""Runs of a small model with callbacks."""

import pytest
from lightning.pytorch import Callback, Trainer


@pytest.fixture
def fit(fit):
    """Train with callbacks at a constant learning rate; return the Trainer (and see fit.record)."""

    def run(*callbacks: Callback, sizes=(), optim=(), limit_val_batches=3, **options) -> Trainer:
        net = dict(sizes) | {"optim": {"schedule": "constant"} | dict(optim)}
        options |= {"callbacks": callbacks, "limit_val_batches": limit_val_batches}
        try:
            return fit(net, **options).trainer
        finally:
            run.record = fit.record

    return run
