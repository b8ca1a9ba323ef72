"""Half precision's scale of the loss: carried over an interruption, and not taken for a fault."""

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.plugins import MixedPrecision


class Scales(Callback):
    def __init__(self):
        self.scales, self.losses = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.scales.append(trainer.precision_plugin.scaler.state_dict())
        self.losses.append(outputs["loss"].item())


@pytest.fixture
def fit(make_model, make_data, make_trainer):
    """Train in half precision on a CPU, from a scale that may be too high."""

    def run(steps: int, scale: float, ckpt_path=None):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
        record = Scales()
        options = {"max_steps": steps, "limit_val_batches": 0, "callbacks": [record]}
        trainer = make_trainer(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **options)
        seed_everything(3, verbose=False)
        model = make_model(dropout=0.2, optim={"schedule": "constant"})
        trainer.fit(model, datamodule=make_data(), ckpt_path=ckpt_path)
        return trainer, record

    return run


def test_scale_and_its_count_continue_after_a_resume(fit, tmp_path):
    _, whole = fit(10, 2.0**10)
    trainer, first = fit(5, 2.0**10)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    _, second = fit(10, 1.0, ckpt_path=tmp_path / "a.ckpt")
    assert first.scales + second.scales == whole.scales
    assert first.losses + second.losses == whole.losses
    assert len({state["scale"] for state in whole.scales}) == 4
    assert {state["_growth_tracker"] for state in whole.scales} == {0, 1, 2}


def test_gradients_infinite_by_the_scale_lower_it_and_stop_nothing(fit):
    # The schedule goes on although nothing was updated.
    with pytest.warns(UserWarning, match=r"`lr_scheduler\.step\(\)` before"):
        trainer, record = fit(30, 2.0**31)
    assert trainer.global_step == 30
    scales = [state["scale"] for state in record.scales]
    assert scales[0] == 2.0**30
    assert min(scales) < 2.0**28
    assert record.losses[-1] < record.losses[0]
