"""The checkpoints of our own runs."""

import pytest
import torch

from txl_lightning.checkpoints import load_run, read_checkpoint


def test_file_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"text\.ckpt is not a checkpoint"):
        read_checkpoint(tmp_path / "text.ckpt")
    foreign = [{"state_dict": {}}, [1, 2], {"hyper_parameters": {"net": {"layers": 3}}}]
    for content in (*foreign, {"hyper_parameters": {"net": {}}}):
        torch.save(content, tmp_path / "other.ckpt")
        with pytest.raises(ValueError, match=r"other\.ckpt is not a checkpoint written by fit"):
            load_run(tmp_path / "other.ckpt")


def test_missing_checkpoint_names_those_that_are_there(tmp_path):
    with pytest.raises(ValueError, match=r"best\.ckpt: no such file; expected a"):
        read_checkpoint(tmp_path / "best.ckpt")
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(ValueError, match=r"best\.ckpt: no such file \(there is last\.ckpt\)"):
        read_checkpoint(tmp_path / "best.ckpt")


def test_folder_of_a_run_names_its_checkpoint(run_folder, tmp_path):
    for folder in (run_folder, run_folder / "checkpoints"):
        with pytest.raises(ValueError, match=r"is a run's folder; did you mean .*/best\.ckpt"):
            load_run(folder)
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        load_run(tmp_path)
