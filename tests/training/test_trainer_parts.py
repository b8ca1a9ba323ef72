"""Parts of Lightning and W&B that cannot work are one line before a run has a folder."""

from pathlib import Path

import pytest
import yaml
from lightning.pytorch import Trainer

from txl_lightning.training.cli import TxlCLI, set_up_libraries
from txl_lightning.training.trainer_parts import list_metrics

CALLBACK = "--trainer.callbacks+="
MONITOR = "--trainer.callbacks.monitor="
STOPPING, KEEPING = f"{CALLBACK}EarlyStopping {MONITOR}", f"{CALLBACK}ModelCheckpoint {MONITOR}"
WANDB = "--trainer.logger=WandbLogger --trainer.logger."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{STOPPING}val_loss", "EarlyStopping: monitor: invalid val_loss; expected one of val/"),
        (f"{KEEPING}nats", "ModelCheckpoint: monitor: invalid nats; expected one of val/loss"),
        (f"{STOPPING}train/loss --trainer.val_check_interval=2", "logged first at step 10"),
        (f"{STOPPING}train/loss --trainer.limit_val_batches=0", "limit_val_batches: invalid 0"),
        (f"{CALLBACK}LearningRateFinder", "invalid LearningRateFinder; expected none; compare"),
        (f"{CALLBACK}BackboneFinetuning", "invalid BackboneFinetuning; expected none, because"),
        (f"{CALLBACK}BatchSizeFinder", "invalid BatchSizeFinder; expected none; set data.b"),
        ("--trainer.barebones=true", "trainer.barebones: invalid true; expected false"),
        (f"{WANDB}project=team/p", "trainer.logger.project: invalid team/p; "),
        (f"{WANDB}id=a/b", "trainer.logger.id: invalid a/b; "),
        (f"{WANDB}entity=a/b", "trainer.logger.entity: invalid a/b; "),
        (f"{WANDB}dict_kwargs={{tags:[{'t' * 65}]}}", "trainer.logger.tags: invalid ['ttt"),
    ],
)
def test_a_part_that_cannot_work_is_refused_before_a_folder_is_made(
    refused, small, options, message
):
    code, line = refused("fit", *small, "--trainer.log_every_n_steps=10", *options.split())
    assert (code, message in line) == (2, True), line
    assert not list(Path().glob("**/version_0"))


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("WANDB_MODE", "banana", 2),
        ("WANDB_BASE_URL", "nonsense", 2),
        ("WANDB_PROJECT", "a/b", 2),
        ("WANDB_RUN_ID", "a/b", 2),
        ("WANDB_ENTITY", "a/b", 2),
        ("WANDB_TAGS", "t" * 65, 2),
        ("WANDB_DIR", "/proc/nope", 6),
    ],
)
def test_an_invalid_variable_of_wandb_is_named(refused, small, monkeypatch, name, value, code):
    monkeypatch.setenv(name, value)
    exit_code, line = refused("fit", *small, "--trainer.logger=WandbLogger")
    assert (exit_code, line.startswith(f"{name}: "), "pydantic" in line) == (code, True, False), (
        line
    )


def test_every_logged_metric_can_be_monitored(small, tmp_path):
    set_up_libraries()
    where = [f"--trainer.default_root_dir={tmp_path}", "--trainer.log_every_n_steps=1"]
    cli = TxlCLI("fit", [*small, *where])
    cli.run()
    trainer: Trainer = cli.trainer
    assert {*trainer.callback_metrics} <= {*list_metrics(trainer, cli.datamodule)}


def test_config_is_saved_whatever_objects_a_callback_has(accepted, small, tmp_path):
    duration = "--trainer.callbacks.duration=00:00:00:30"
    where = f"--trainer.default_root_dir={tmp_path / 'timed'}"
    accepted("fit", *small, f"{CALLBACK}Timer", duration, where)
    saved = yaml.safe_load((tmp_path / "timed" / "version_0" / "config.yaml").read_text())
    assert saved["trainer"]["callbacks"][0]["init_args"]["interval"] == "step"
