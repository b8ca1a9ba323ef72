"""Parts of Lightning and W&B that cannot work are one line before a run has a folder."""

from pathlib import Path

import pytest
import yaml
from lightning.pytorch.callbacks import Callback, EarlyStopping

from txl_lightning.training.callback_checks import check_callbacks, list_metrics
from txl_lightning.training.cli import TxlCLI, set_up_libraries

CALLBACK = "--trainer.callbacks+="
STOPPING = f"{CALLBACK}EarlyStopping --trainer.callbacks.monitor="
KEEPING = f"{CALLBACK}ModelCheckpoint --trainer.callbacks.monitor="
FOLDER = f"{CALLBACK}ModelCheckpoint --trainer.callbacks.dirpath="


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{STOPPING}val_loss", "trainer.callbacks.monitor: invalid val_loss; expected one of "),
        (f"{STOPPING}val/los", "trainer.callbacks.monitor: invalid val/los; expected one of val/l"),
        (f"{KEEPING}val/token_accuracy", "trainer.callbacks.monitor: invalid val/token_accuracy; "),
        (f"{FOLDER}memory://bucket/x", "trainer.callbacks.dirpath: invalid memory://bucket/x; exp"),
        ("--trainer.barebones=true", "trainer.barebones: invalid true; expected false"),
    ],
)
def test_a_part_that_cannot_work_is_refused_before_a_folder_is_made(
    refused, small, options, message
):
    code, line = refused("fit", *small, "--trainer.log_every_n_steps=10", *options.split())
    assert (code, message in line) == (2, True), line
    assert not list(Path().glob("**/version_0"))


@pytest.mark.parametrize(
    ("name", "value", "message", "code"),
    [
        ("WANDB_MODE", "banana", "input_value='banana'", 2),
        ("WANDB_DIR", "/proc/nope", "WANDB_DIR: /proc/nope", 6),
    ],
)
def test_an_invalid_variable_of_wandb_is_named(
    refused, small, monkeypatch, name, value, message, code
):
    monkeypatch.setenv(name, value)
    exit_code, line = refused("fit", *small, "--trainer.logger=WandbLogger")
    assert (exit_code, message in line) == (code, True), line


@pytest.mark.parametrize("corpus", ["letters", "sort"])
def test_every_logged_metric_can_be_monitored(sizes, text_file, tmp_path, corpus):
    set_up_libraries()
    text = [f"--data.path={text_file}"]
    if corpus == "sort":
        text = ["--data.corpus=sort", "--data.task.length=4"]
    where = [f"--trainer.default_root_dir={tmp_path}", f"--data.data_dir={tmp_path}"]
    cli = TxlCLI("fit", [*sizes, *text, *where])
    cli.run()
    logged = {*cli.trainer.callback_metrics}
    assert logged <= {*list_metrics(cli.datamodule)}
    assert ("val/answer_accuracy" in logged) == (corpus == "sort")


def test_any_monitor_is_accepted_beside_a_callback_of_another_package_that_may_log_it():
    class Own(Callback):
        pass

    check_callbacks([EarlyStopping("mine"), Own()], None)


def test_config_is_saved_whatever_objects_a_callback_has(accepted, small, tmp_path):
    duration = "--trainer.callbacks.duration=00:00:00:30"
    where = f"--trainer.default_root_dir={tmp_path / 'timed'}"
    accepted("fit", *small, f"{CALLBACK}Timer", duration, where)
    saved = yaml.safe_load((tmp_path / "timed" / "version_0" / "config.yaml").read_text())
    assert saved["trainer"]["callbacks"][0]["init_args"]["interval"] == "step"


@pytest.mark.parametrize(
    ("callback", "setting", "value"),
    [
        ("EarlyStopping --trainer.callbacks.monitor=val/nats", "check_on_train_epoch_end", "true"),
        ("ModelCheckpoint", "every_n_epochs", "2"),
        ("ModelCheckpoint", "save_on_train_epoch_end", "true"),
        ("LearningRateMonitor", "logging_interval", "epoch"),
        ("Timer --trainer.callbacks.duration=00:00:00:30", "interval", "epoch"),
        ("GradientAccumulationScheduler", "scheduling", "{0: 4, 5: 2}"),
    ],
)
def test_a_setting_of_a_callback_that_counts_epochs_is_refused_where_none_ends(
    parse_fit, callback, setting, value
):
    words = [*f"{CALLBACK}{callback}".split(), f"--trainer.callbacks.{setting}={value}"]
    with pytest.raises(ValueError, match=f"^trainer.callbacks.{setting}: invalid .*no epoch ends"):
        parse_fit(*words)
    parse_fit(*words, "--trainer.limit_train_batches=4")


def test_a_checkpoint_after_every_validation_counts_no_epochs(parse_fit):
    settings = parse_fit(f"{CALLBACK}ModelCheckpoint", "--trainer.callbacks.every_n_epochs=1")
    [callback] = settings.trainer.callbacks
    assert callback.init_args.every_n_epochs == 1
