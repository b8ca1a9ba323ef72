"""Steps and tokens of a run: counted once, whatever is logged, and in resumed runs."""

import csv
import os
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from txl_lightning.runs.listing import load_run
from txl_lightning.runs.metrics_table import read_metrics

AUTO = "--resume=auto"
RUN = Path("runs/version_0")


@pytest.mark.parametrize(("data", "more"), [({"batch_size": 2}, 16), ({"tgt_len": 4}, 16)], ids=str)
def test_tokens_go_on_when_a_resumed_run_reads_other_segments_and_one_warning_says_so(
    fit, tmp_path, data, more
):
    path = tmp_path / "a.ckpt"
    fit(max_steps=3, save=(path, 3))
    with pytest.warns(match="reading from the start of the text") as warned:
        assert fit(data=data, max_steps=5, ckpt_path=path).model.tokens_seen == 3 * 32 + 2 * more
    assert len([each for each in warned if "reading from" in str(each.message)]) == 1


def test_another_text_and_vocabulary_of_a_checkpoint_are_one_warning(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    other = tmp_path / "other.txt"
    fit(max_steps=3, save=(path, 3))
    other.write_bytes((tmp_path / "letters.txt").read_bytes()[::-1])
    data = {"path": str(other), "allow_mismatch": True}
    with pytest.warns() as warned:
        fit(data=data, max_steps=4, ckpt_path=path)
    assert len([each for each in warned if "allow_mismatch" in str(each.message)]) == 1


def test_validations_while_gradients_accumulate_have_rows_of_their_own(accepted, small):
    options = ("--trainer.accumulate_grad_batches=4", "--trainer.val_check_interval=3")
    printed = accepted("fit", *small, *options, "--trainer.max_steps=3").out
    expected = [(0, 96), (1, 192), (2, 288), (3, 384)]
    rows = read_metrics(RUN).validations
    assert [(row["step"], row["tokens_seen"]) for row in rows] == expected
    table = [line.removeprefix("best").split()[:2] for line in printed.splitlines()[-5:-1]]
    assert table == [[str(step), str(tokens)] for step, tokens in expected]
    lines = [line.split()[1] for line in printed.splitlines() if "  validation: " in line]
    assert lines == [str(step) for step, _ in expected]


def test_two_validations_of_one_step_are_two_rows(accepted, small):
    options = ("--trainer.accumulate_grad_batches=4", "--trainer.val_check_interval=1")
    accepted("fit", *small, *options, "--trainer.max_steps=1")
    rows = [(row["step"], row["tokens_seen"]) for row in read_metrics(RUN).validations]
    assert rows == [(0, 32), (0, 64), (0, 96), (1, 128)]


@pytest.mark.filterwarnings("ignore:reading from the start of the text")
def test_a_resumed_run_logs_a_validation_of_its_next_step_once(accepted, small):
    """Killed in the next step: its validation is in metrics.csv, and its checkpoint is older."""
    options = ("--trainer.accumulate_grad_batches=4", "--trainer.val_check_interval=100")
    accepted("fit", *small, *options, "--trainer.max_steps=2")
    later = {"epoch": 0, "step": 1, "val/nats": 9.0, "val/tokens_seen": 300.0}
    with (RUN / "metrics.csv").open("r+", newline="") as file:
        names = next(csv.reader(file))
        file.seek(0, os.SEEK_END)
        csv.DictWriter(file, names).writerow(later)
    accepted("fit", *small, *options, "--trainer.max_steps=3", AUTO, "--data.batch_size=2")
    rows = [(row["step"], row["tokens_seen"]) for row in read_metrics(RUN).validations]
    assert rows == [(2, 256), (3, 320)]


@pytest.mark.parametrize("option", ["--trainer.logger=false", "--trainer.log_every_n_steps=50"])
def test_a_run_has_its_results_without_a_logger_or_a_logged_step(accepted, small, option):
    accepted("fit", *small, option)
    printed = accepted("fit", *small, option, AUTO, "--trainer.max_steps=6").out
    assert "trained 6 of 6 steps, 192 tokens, in " in printed
    run = load_run(RUN)
    assert (run.facts["steps"], run.facts["training tokens"]) == ("6", "192")
    assert [row["step"] for row in run.metrics.validations] == [2, 4, 6]


def test_least_steps_prevent_neither_early_stopping_nor_the_last_validation(fit):
    stopping = EarlyStopping("val/nats", min_delta=99.0, patience=1)
    options = {"limit_val_batches": 1, "val_check_interval": 2, "max_steps": 20}
    assert fit(callbacks=[stopping], min_steps=7, **options).trainer.global_step == 7
    assert len(fit.record.val_nats) == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--trainer.max_steps=4"], "all 4 steps are done; more with --trainer.max_steps"),
        (["--trainer.max_epochs=0"], "trainer.max_epochs is 0: no step is taken"),
        (["--trainer.limit_train_batches=0"], "trainer.limit_train_batches is 0: no step is taken"),
        (["--trainer.max_time=00:00:00:00"], "trainer.max_time, of all parts of the run together"),
    ],
    ids=str,
)
def test_a_resumed_run_that_takes_no_step_says_why(accepted, small, options, reason):
    accepted("fit", *small)
    assert reason in accepted("fit", *small, "--trainer.max_steps=6", AUTO, *options).err


def test_a_new_run_of_no_steps_says_why(accepted, small):
    printed = accepted("fit", *small, "--trainer.max_steps=0").err
    notice = "no recipe for a text of 6,000 bytes, less than 50,000: the defaults are used\n"
    assert printed == f"{notice}trainer.max_steps is 0: no step is taken\n"


def test_a_measurement_by_another_trainer_keeps_the_tokens_of_training(
    fit, make_trainer, make_data
):
    model = fit(max_steps=2).model
    tokens = model.tokens_seen
    make_trainer().validate(model, datamodule=make_data(), verbose=False)
    assert model.tokens_seen == tokens > 0
