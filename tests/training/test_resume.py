"""Where training goes on from."""

import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from txl_lightning.checkpoints.files import check
from txl_lightning.errors import CheckpointError
from txl_lightning.training.resume import SavingConfig, starting_point

AUTO = "--resume=auto"


@pytest.fixture
def root(run_folder, tmp_path) -> Path:
    """The folder of runs, of which one is finished."""
    shutil.copytree(run_folder.parent, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def last(root) -> Path:
    """What it wrote last."""
    return root / "version_0" / "checkpoints" / "last.ckpt"


def step_of(path: Path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def latest(root: Path) -> Path:
    """The folder of the last run; of others there may be any number."""
    return max(root.glob("version_*"), key=lambda path: int(path.name.removeprefix("version_")))


def flip(path: Path) -> None:
    """Change one bit."""
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


@pytest.mark.parametrize(
    ("resume", "ckpt_path"), [("auto", None), ("must", None), ("never", "last"), ("auto", "last")]
)
def test_it_is_the_newest_whole_checkpoint_and_is_said(root, last, capsys, resume, ckpt_path):
    assert starting_point(resume, ckpt_path, root) == last
    assert f"resume: {last}" in capsys.readouterr().err


def test_unless_it_is_asked_for_training_starts_from_the_beginning(root, capsys):
    assert starting_point("never", None, root) is None
    assert capsys.readouterr().err == ""


def test_a_checkpoint_that_is_named_is_it(root, last):
    best = last.with_name("best.ckpt")
    assert starting_point("never", str(best), root) == best


def test_both_given_are_refused(root, last):
    with pytest.raises(ValueError, match=r"resume: invalid auto with ckpt_path .*; leave"):
        starting_point("auto", str(last), root)


def test_nothing_to_resume_is_said_or_refused(tmp_path, capsys):
    assert starting_point("auto", None, tmp_path) is None
    assert f"nothing under {tmp_path}; training starts from the beg" in capsys.readouterr().err
    for resume, ckpt_path, said in (("must", None, "resume: must"), ("never", "last", "ckpt_path")):
        with pytest.raises(CheckpointError, match=rf"{said}.*: there is no whole checkpoint"):
            starting_point(resume, ckpt_path, tmp_path)


def test_a_damaged_one_is_passed_over_with_a_warning(root, last, capsys):
    flip(last)
    last.with_name("best.ckpt").unlink()
    assert starting_point("must", None, root) == last.with_name("previous.ckpt")
    said = capsys.readouterr().err
    assert f"warning: {last}: damaged: its sha256" in said
    assert "; passed over" in said


def test_clocks_do_not_matter(root, last):
    for nth, path in enumerate((last, *last.parent.glob("[bp]*.ckpt"))):
        os.utime(path, (0, 1e9 + 3600 * nth))
    assert starting_point("auto", None, root) == last


def test_what_the_dead_were_writing_is_removed(root, last):
    part = last.with_name(f".last.ckpt.{os.uname().nodename.split('.')[0]}.{2**22 + 1}.part")
    part.touch()
    starting_point("auto", None, root)
    assert not part.exists()


@pytest.mark.parametrize("every", [0, -3])
def test_an_impossible_interval_is_refused(every):
    with pytest.raises(ValueError, match=f"every_n_steps: invalid {every}"):
        SavingConfig(every)


def test_the_same_command_starts_goes_on_and_is_done(txl, small, capsys):
    code, output = txl("fit", *small, AUTO)
    assert code == 0
    assert "resume: nothing under runs; training starts from the beginning" in output.err
    code, output = txl("fit", *small, AUTO, "--trainer.max_steps=6")
    assert code == 0
    assert "resume: runs/version_0/checkpoints/last.ckpt" in output.err
    assert step_of(Path("runs/version_1/checkpoints/last.ckpt")) == 6
    code, output = txl("fit", *small, "--resume=must", "--trainer.max_steps=6")
    assert code == 0
    assert "all 6 steps are done; more with --trainer.max_steps" in output.err
    assert not Path("runs/version_2").exists()


def test_nothing_to_resume_where_something_must_be_is_exit_code_4(txl, small):
    code, output = txl("fit", *small, "--resume=must")
    assert code == 4
    assert "error: resume: must: there is no whole checkpoint of a run under runs" in output.err
    assert not Path("runs").exists()


def test_a_checkpoint_that_is_named_and_damaged_is_exit_code_4(txl, small, last):
    flip(last)
    code, output = txl("fit", *small, f"--ckpt_path={last}")
    assert code == 4
    assert f"error: {last}: damaged: its sha256" in output.err
    assert len(output.err.strip().splitlines()) == 1


def test_a_saved_config_does_not_say_how_its_run_was_begun(txl, small, last):
    assert txl("fit", *small, AUTO, "--trainer.max_steps=6")[0] == 0
    config = yaml.safe_load((latest(last.parents[2]) / "config.yaml").read_text())
    assert (config["resume"], config["ckpt_path"]) == ("never", None)


def test_the_best_so_far_comes_along(txl, small, last):
    before = last.with_name("best.ckpt")
    assert (
        txl("fit", *small, AUTO, "--trainer.max_steps=5", "--trainer.val_check_interval=9")[0] == 0
    )
    best = latest(last.parents[2]) / "checkpoints" / "best.ckpt"
    assert best.read_bytes() == before.read_bytes()
    assert check(best)["step"] == step_of(before)
    assert before.is_file()


def test_without_a_logger_runs_do_not_mix(txl, small):
    bare = (*small, "--trainer.logger=false", "--trainer.default_root_dir=bare")
    for steps in (6, 4):
        assert txl("fit", *bare, f"--trainer.max_steps={steps}")[0] == 0
    runs = [Path("bare", f"version_{n}", "checkpoints", "last.ckpt") for n in range(2)]
    assert list(map(step_of, runs)) == [6, 4]
    assert starting_point("auto", None, Path("bare")) == runs[1]


def test_checkpoints_are_written_by_nothing_else(txl, small):
    code, output = txl("fit", *small, "--trainer.plugins=AsyncCheckpointIO")
    assert code == 2
    assert "trainer.plugins: invalid AsyncCheckpointIO" in output.err
