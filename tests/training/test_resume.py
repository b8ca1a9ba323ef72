"""The start of training, and the folder of a resumed run."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import Namespace

from txl_lightning import TransformerXLConfig
from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.checkpoints.saving import save_checkpoint
from txl_lightning.errors import CheckpointError, DataError
from txl_lightning.model.config import describe_config
from txl_lightning.runs import folder
from txl_lightning.runs.folder import lock_folder
from txl_lightning.runs.logger import RunLogger
from txl_lightning.runs.metrics_table import read_log
from txl_lightning.training import start
from txl_lightning.training.options import CheckpointConfig
from txl_lightning.training.settings import read_given
from txl_lightning.training.start import check_same_model

AUTO = "--resume=auto"
WRONG_ROWS = ("a,1", "1,b", "1.5,2", ",3", "1,2,3")


def find_start(resume, ckpt_path, root, *words):
    given = [f"--resume={resume}", f"--trainer.default_root_dir={root}", *words]
    given += [f"--ckpt_path={ckpt_path}"] if ckpt_path else []
    return start.find_start(resume, read_given(given))


@pytest.fixture
def root(run_folder, tmp_path) -> Path:
    """A folder of runs, one of them finished after 4 steps."""
    shutil.copytree(run_folder, tmp_path / "runs" / "version_0")
    return tmp_path / "runs"


@pytest.fixture
def last(root) -> Path:
    return root / "version_0" / "checkpoints" / "last.ckpt"


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def read_rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("resume", "ckpt_path"), [("auto", None), ("must", None), ("never", "last"), ("auto", "last")]
)
def test_start_is_the_newest_intact_checkpoint_and_is_printed(
    root, last, capsys, resume, ckpt_path
):
    for nth, path in enumerate((last, *last.parent.glob("[bp]*.ckpt"))):
        # Time stamps of files do not matter.
        os.utime(path, (0, 1e9 + 3600 * nth))
    assert find_start(resume, ckpt_path, root).path == last
    assert f"resume: {last}" in capsys.readouterr().err


def test_start_without_a_request_or_a_checkpoint_is_none_or_refused(root, last, tmp_path, capsys):
    best = last.with_name("best.ckpt")
    assert find_start("never", None, root) is None
    assert find_start("never", str(best), root).path == best
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=r"resume: invalid auto; expected never with ckpt_path"):
        find_start("auto", str(last), root)
    empty = tmp_path / "empty"
    assert find_start("auto", None, empty) is None
    assert f"nothing under {empty}; training starts from the beg" in capsys.readouterr().err
    for resume, ckpt_path, key in (("must", None, "resume: must"), ("never", "last", "ckpt_path")):
        with pytest.raises(CheckpointError, match=rf"{key}.*: there is no whole checkpoint"):
            find_start(resume, ckpt_path, empty)


def test_start_skips_a_damaged_checkpoint_and_removes_partial_files_of_ended_processes(
    root, last, capsys
):
    flip_a_bit(last)
    last.with_name("best.ckpt").unlink()
    part = last.with_name(f".last.ckpt.{os.uname().nodename.split('.')[0]}.{2**22 + 1}.part")
    part.touch()
    assert find_start("must", None, root).path == last.with_name("previous.ckpt")
    printed = capsys.readouterr().err
    assert f"warning: {last}: damaged: its sha256" in printed
    assert "; passed over" in printed
    assert not part.exists()


@pytest.mark.parametrize("kind", ["killed", "crashed", "damaged", "without state", "empty"])
def test_a_run_without_checkpoints_is_not_replaced_by_an_older_one(root, last, capsys, kind):
    run = root / "version_1"
    (run if kind == "empty" else run / "checkpoints").mkdir(parents=True)
    if kind != "empty":
        shutil.copy(root / "version_0" / "config.yaml", run)
    if kind not in ("empty", "without state"):
        shutil.copy(root / "version_0" / "run.json", run)
    if kind in ("crashed", "damaged"):
        name = "crash-4.ckpt" if kind == "crashed" else "last.ckpt"
        content = {"step": 4, "exact": kind == "damaged"}
        save_checkpoint({"global_step": 4}, run / "checkpoints" / name, content)
    if kind == "damaged":
        flip_a_bit(run / "checkpoints" / "last.ckpt")
    assert find_start("auto", None, root) is None
    *warnings, said = capsys.readouterr().err.splitlines()
    assert len(warnings) == (kind == "damaged")
    new = "has no checkpoint to continue; training starts from the beginning"
    older = f"--config {root}/version_0/config.yaml would continue that run"
    assert said == f"resume: {run} {new} ({older})"
    with pytest.raises(CheckpointError, match=rf"must: there is no whole checkpoint of {run}"):
        find_start("must", None, root)
    assert find_start("must", None, root, f"--config={last.parents[1]}/config.yaml")
    # Nor is another one than the run whose config is given.
    (root / "version_2").mkdir()
    if kind != "empty":
        named = [f"--config={run}/config.yaml"]
        with pytest.raises(CheckpointError, match=rf"must: there is no whole checkpoint of {run}"):
            find_start("must", None, root, *named)


def test_only_an_older_run_with_a_checkpoint_is_said_to_continue(root, last, capsys):
    def ask(number):
        run = root / f"version_{number}"
        run.mkdir()
        assert find_start("auto", None, root) is None
        return capsys.readouterr().err.splitlines()[-1]

    # The newest of these has no checkpoint, either.
    hint = f"(--config {root}/version_0/config.yaml would continue that run)"
    assert ask(1).endswith(hint)
    shutil.copy(root / "version_0" / "config.yaml", root / "version_1")
    assert ask(2).endswith(hint)
    # A newer one is no earlier training.
    with_config = f"--config={root / 'version_1' / 'config.yaml'}"
    (root / "version_1" / "run.json").write_bytes((root / "version_0" / "run.json").read_bytes())
    (root / "version_0").rename(root / "version_3")
    assert find_start("auto", None, root, with_config) is None
    assert "would continue" not in capsys.readouterr().err


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="every_n_steps: invalid 0; expected at least 1"):
        CheckpointConfig(0)
    learned = describe_config(TransformerXLConfig(n_token=9, positions="learned", clamp_len=4))
    settings = Namespace(net=Namespace(**learned | {"clamp_len": 5}))
    check_same_model(settings, {"net": learned | {"clamp_len": 5}}, training=False)
    with pytest.raises(ValueError, match=r"model\.net\.clamp_len: invalid 5; expected 4, as in"):
        check_same_model(settings, {"net": learned}, training=False)


@pytest.mark.parametrize("logger", [(), ("--trainer.logger=false",)], ids=["logger", "no logger"])
def test_same_command_starts_a_run_continues_it_and_reports_its_end(accepted, small, logger):
    command = ("fit", *small, *logger, "--model.optim.schedule=constant")
    output = accepted(*command, AUTO)
    assert "resume: nothing under runs; training starts from the beginning" in output.err
    output = accepted(*command, AUTO, "--trainer.max_steps=6")
    assert "resume: runs/version_0/checkpoints/last.ckpt" in output.err
    assert load(Path("runs/version_0/checkpoints/last.ckpt"))["global_step"] == 6
    output = accepted(*command, "--resume=must", "--trainer.max_steps=6")
    assert "all 6 steps are done; more with --trainer.max_steps" in output.err
    assert [path.name for path in Path("runs").iterdir()] == ["version_0"]


def test_resumed_run_has_the_metrics_config_and_vocabulary_of_an_uninterrupted_one(txl, small):
    command = ("fit", *small, "--model.optim.schedule=constant", "--checkpoint.every_n_steps=3")
    whole = Path("whole/version_0")
    run = Path("runs/version_0")
    assert txl(*command, "--trainer.max_steps=6", "--trainer.default_root_dir=whole")[0] == 0
    assert txl(*command)[0] == 0
    best = load_checkpoint(run / "checkpoints" / "best.ckpt").saved
    # Resumed from step 3, the rows of step 4 and its validation are logged again.
    checkpoints = run / "checkpoints"
    (checkpoints / "last.ckpt").unlink()
    if best["global_step"] > 3:
        (checkpoints / "best.ckpt").unlink()
    assert txl(*command, AUTO, "--trainer.max_steps=6")[0] == 0
    names = ("step", "train/loss", "train/grad_norm", "train/tokens_seen", "val/nats")
    rows = [
        [{name: row[name] for name in names} for row in read_rows(folder)]
        for folder in (whole, run)
    ]
    assert rows[0] == rows[1]
    assert len(rows[1]) == 6 + 3
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["resume"], config["ckpt_path"]) == ("never", None)
    assert config["trainer"]["max_steps"] == 6
    assert (run / "vocab.json").read_text() == (whole / "vocab.json").read_text()


def test_a_full_disk_keeps_the_config_of_a_resumed_run(accepted, txl, small, limit_file_size):
    accepted("fit", *small)
    config = Path("runs", "version_0", "config.yaml")
    before = config.read_text()
    assert before.startswith("# lightning.pytorch==")
    with limit_file_size(1000):
        code, output = txl("fit", *small, AUTO, "--trainer.max_steps=6")
    message = "error: runs/version_0/config.yaml: cannot be written (File too large; "
    assert (code, output.err.splitlines()[-1][: len(message)]) == (6, message)
    assert config.read_text() == before


def test_advice_about_a_damaged_config_helps(accepted, refused, small):
    accepted("fit", *small)
    config = Path("runs", "version_0", "config.yaml")
    config.write_text("")
    code, line = refused("test", "runs/version_0")
    advice = "remove it, and name the text with --data.path or --data.corpus"
    assert (code, line.endswith(advice)) == (4, True), line
    config.unlink()
    accepted("test", "runs/version_0", small[-1])
    accepted("fit", *small, AUTO, "--trainer.max_steps=6")


def test_settings_that_a_resumed_run_changes_are_named(accepted, small):
    accepted("fit", *small)
    said = accepted("fit", *small, "--resume=auto", "--trainer.max_steps=6").err
    assert "resume: changed trainer.max_steps 4 to 6\n" in said


def test_finished_run_that_goes_on_logs_the_steps_of_an_uninterrupted_one(txl, small):
    # No interval ends at the last step.
    command = ("fit", *small, AUTO, "--trainer.val_check_interval=100")
    for steps in (4, 6, 9):
        assert txl(*command, f"--trainer.max_steps={steps}")[0] == 0
    rows = [int(row["step"]) for row in read_rows(Path("runs/version_0")) if row["train/loss"]]
    assert rows == [*range(9)]


def test_best_checkpoint_keeps_its_path_and_is_replaced_only_by_a_better_one(txl, small, last):
    best = last.with_name("best.ckpt")
    before = best.read_bytes()
    score = load(best)["callbacks"]
    # The folder was moved: the paths in the checkpoint are outdated.
    worse = ("--model.optim.lr=3", "--model.optim.schedule=constant", "--trainer.max_steps=8")
    assert txl("fit", *small, AUTO, *worse)[0] == 0
    assert best.read_bytes() == before
    rows = [float(row["val/nats"]) for row in read_rows(last.parents[1]) if row["val/nats"]]
    assert len(rows) == 4
    kept = next(score[key] for key in score if key.startswith("BestCheckpoint"))
    assert kept["best_model_score"].item() == pytest.approx(min(rows), rel=1e-6)


def test_checkpoint_given_by_path_starts_a_new_run(txl, small, last):
    files = {path: path.read_bytes() for path in last.parents[1].rglob("*") if path.is_file()}
    assert txl("fit", *small, f"--ckpt_path={last}", "--trainer.max_steps=5")[0] == 0
    assert {path: path.read_bytes() for path in files} == files
    new = last.parents[2] / "version_1"
    assert load(new / "checkpoints" / "last.ckpt")["global_step"] == 5
    # One row of training, and one of the validation at the end.
    assert [row["step"] for row in read_rows(new)] == ["4", "4"]


def test_a_checkpoint_does_not_determine_the_kernel(txl, accepted, small, last):
    start = f"--ckpt_path={last}"
    assert txl("fit", *small, start, "--trainer.max_steps=5", "--model.net.kernel=sdpa")[0] == 0
    start = f"--ckpt_path={last.parents[2]}/version_1/checkpoints/last.ckpt"
    output = accepted("fit", *small, start, "--trainer.max_steps=6")
    assert "; kernel: per_head; " in output.out


def test_runs_without_a_logger_have_their_own_folders(txl, small):
    bare = (*small, "--trainer.logger=false", "--trainer.default_root_dir=bare")
    for steps in (6, 4):
        assert txl("fit", *bare, f"--trainer.max_steps={steps}")[0] == 0
    runs = [Path("bare", f"version_{n}", "checkpoints", "last.ckpt") for n in range(2)]
    assert [load(path)["global_step"] for path in runs] == [6, 4]
    assert find_start("auto", None, Path("bare")).path == runs[1]


def test_run_that_another_process_trains_is_neither_resumed_nor_changed(txl, small, root):
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    handle = lock_folder(root / "version_0")
    more = ("fit", *small, AUTO, "--trainer.max_steps=6")
    code, output = txl(*more)
    assert code == 6
    assert output.err.splitlines()[-1] == "error: runs/version_0: another process trains there"
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == files
    os.close(handle)
    assert txl(*more)[0] == 0
    # Its lock is released at its end.
    os.close(lock_folder(root / "version_0"))


def test_two_runs_that_start_at_once_have_separate_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "list_versions", lambda root: [root / "version_2"])
    loggers = [RunLogger(tmp_path, name="") for _ in range(2)]
    assert [Path(logger.log_dir).name for logger in loggers] == ["version_3", "version_4"]


def test_rows_that_a_resumed_run_logs_again_are_dropped_also_of_a_validation_still_due(tmp_path):
    rows = ["step,train/loss,val/nats", "0,3,", "1,2,", "1,,5", "2,1,", ""]
    for is_due, kept in ((False, rows[1:4]), (True, rows[1:3])):
        logger = RunLogger(tmp_path, name="", version=str(is_due))
        path = Path(logger.log_dir, "metrics.csv")
        path.parent.mkdir()
        path.write_text("\n".join(rows))
        logger.drop_rows(2, validation_due=is_due)
        assert path.read_text().split()[1:] == kept


@pytest.mark.parametrize("tokens", [1000, 16_777_219, 3_000_000_129])
def test_resumed_run_keeps_its_last_validation_although_tokens_are_logged_in_float32(
    tmp_path, tokens
):
    logger = RunLogger(tmp_path, name="", version="0")
    # Rounded up, and more than the run has read.
    for step, seen in enumerate((tokens, 1.01 * tokens)):
        values = {"val/nats": 1.0, "val/tokens_seen": float(np.float32(seen))}
        logger.log_metrics(values, step)
    logger.save()
    logger.drop_rows(2, False, tokens)
    assert [row["step"] for row in logger.experiment.read_rows()] == ["0"]


@pytest.mark.parametrize("row", WRONG_ROWS)
def test_metrics_with_a_cell_that_is_not_a_number_are_refused_by_name(tmp_path, row):
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,loss\n0,1\n{row}\n1,cut")
    with pytest.raises(DataError, match=rf"{path}: damaged \(.*\); mend it, or move it away"):
        list(read_log(path))
    path.write_text("step,loss\n0,1\n7,\n1,cut")
    assert list(read_log(path)) == [{"step": "0", "loss": "1"}, {"step": "7", "loss": ""}]


def test_mistakes_about_checkpoints_have_their_exit_codes(refused, small, last):
    flip_a_bit(last)
    for options, expected, message in (
        (["--resume=must", "--trainer.default_root_dir=none"], 4, "resume: must: there is no wh"),
        ([f"--ckpt_path={last}"], 4, "runs/version_0/checkpoints/last.ckpt: damaged: its sha256"),
        (["--trainer.plugins=AsyncCheckpointIO"], 2, "trainer.plugins: invalid AsyncCheckpointIO"),
    ):
        code, line = refused("fit", *small, *options)
        assert (code, line.startswith(message)) == (expected, True), line
    assert not Path("none").exists()
