"""The checkpoints of our own runs."""

import pytest
import torch

from txl_lightning.checkpoints import load_run, read_checkpoint


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none\.ckpt: no such file"):
        read_checkpoint(tmp_path / "none.ckpt")
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"text\.ckpt is not a checkpoint"):
        read_checkpoint(tmp_path / "text.ckpt")
    foreign = [{"state_dict": {}}, [1, 2], {"hyper_parameters": {"net": {"layers": 3}}}]
    for content in (*foreign, {"hyper_parameters": {"net": {}}}):
        torch.save(content, tmp_path / "other.ckpt")
        with pytest.raises(ValueError, match=r"other\.ckpt is not a checkpoint written by fit"):
            load_run(tmp_path / "other.ckpt")


def test_a_missing_checkpoint_names_those_that_are_there(tmp_path):
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(ValueError, match=r"best\.ckpt: no such file \(there is last\.ckpt\)"):
        read_checkpoint(tmp_path / "best.ckpt")


def test_a_runs_folder_is_no_checkpoint_but_knows_where_one_is(run_folder, tmp_path):
    for folder in (run_folder, run_folder / "checkpoints"):
        with pytest.raises(ValueError, match=r"is a run's folder; did you mean .*/best\.ckpt"):
            load_run(folder)
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        load_run(tmp_path)
