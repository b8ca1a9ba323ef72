"""A run's weights on another text, a run that was moved, and which run is resumed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.checkpoints.loading import load_data_settings
from txl_lightning.data.corpora import CORPORA
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.text_files import SPLITS, slice_file


@pytest.fixture
def other_text(tmp_path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("to be or not to be, that is the question\n" * 99)
    return path


@pytest.fixture
def fine_tune(sizes, other_text, tmp_path):
    """Options of fit on the other text, in a folder of runs of its own."""
    where = [f"--data.path={other_text}", f"--data.data_dir={tmp_path / 'data'}"]
    return ["fit", *sizes, *where, f"--trainer.default_root_dir={tmp_path / 'tuned'}"]


def test_a_run_is_fine_tuned_on_another_text_from_step_0(accepted, run_folder, fine_tune, tmp_path):
    few = ["--trainer.max_steps=1", "--model.optim.lr=1e-9", "--model.optim.schedule=constant"]
    said = accepted(*fine_tune, f"--ckpt_path={run_folder}", *few).err
    assert "other.txt: weights of" in said
    new = load_checkpoint(tmp_path / "tuned" / "version_0" / "checkpoints" / "last.ckpt")
    assert new.saved["global_step"] == 1
    before = load_checkpoint(run_folder)
    assert new.load_vocabulary().to_json() == before.load_vocabulary().to_json()
    for name, weight in before.weights.items():
        torch.testing.assert_close(new.weights[name], weight, atol=1e-6, rtol=0)


def test_a_text_that_is_named_is_another_one_although_it_is_the_default(
    accepted, sizes, run_folder, tmp_path, monkeypatch
):
    default = CORPORA[DataConfig.corpus]
    [part] = slice_file(Path(load_data_settings(run_folder)["path"]))
    short = replace(default, cut=lambda paths, fractions: {split: [part] for split in SPLITS})
    monkeypatch.setitem(CORPORA, DataConfig.corpus, short)
    where = [f"--data.data_dir={tmp_path / 'data'}", f"--trainer.default_root_dir={tmp_path / 't'}"]
    given = [f"--data.corpus={DataConfig.corpus}", f"--ckpt_path={run_folder}"]
    said = accepted("fit", *sizes, *where, *given, "--trainer.max_steps=1").err
    assert f"{DataConfig.corpus}: weights of" in said


def test_fine_tuning_of_as_many_steps_as_the_run_had_says_nothing_of_steps_that_are_done(
    accepted, run_folder, fine_tune
):
    n_step = load_checkpoint(run_folder).saved["global_step"]
    steps = f"--trainer.max_steps={n_step}"
    said = accepted(*fine_tune, f"--ckpt_path={run_folder}", steps)
    assert f"trained {n_step} of {n_step} steps" in said.out + said.err
    assert "steps are done" not in said.err


def test_another_vocabulary_is_refused_before_a_folder_is_made(
    refused, run_folder, fine_tune, tmp_path
):
    code, line = refused(*fine_tune, f"--ckpt_path={run_folder}", "--data.vocab=characters")
    assert (code, "data.vocab: the checkpoint's is" in line) == (3, True)
    assert "--resume" not in line
    assert not list((tmp_path / "tuned").glob("version_*"))


def test_a_renamed_text_continues_its_run(accepted, run_folder, sizes, text_file, tmp_path):
    where = [f"--data.data_dir={tmp_path / 'data'}", f"--trainer.default_root_dir={tmp_path / 'r'}"]
    renamed = shutil.copy(text_file, tmp_path / "renamed.txt")
    options = [*sizes, f"--data.path={renamed}", *where, "--trainer.max_steps=6"]
    said = accepted("fit", *options, f"--ckpt_path={run_folder}").err
    assert "fine-tuning" not in said
    last = load_checkpoint(tmp_path / "r" / "version_0" / "checkpoints" / "last.ckpt")
    assert last.saved["global_step"] == 6


def test_a_moved_run_is_not_started_anew_in_its_old_place(refused, accepted, small, tmp_path):
    accepted("fit", *small, f"--trainer.default_root_dir={tmp_path / 'old'}")
    shutil.move(tmp_path / "old", tmp_path / "new")
    config = tmp_path / "new" / "version_0" / "config.yaml"
    code, line = refused("fit", f"--config={config}", "--resume=auto")
    assert (code, line.endswith("give --trainer.default_root_dir new")) == (4, True), line
    assert not (tmp_path / "old").exists()
    # Nor is another run, that is there now, continued with its settings.
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    code, line = refused("fit", f"--config={config}", "--resume=auto")
    assert (code, line.endswith("give --trainer.default_root_dir new")) == (4, True), line


def test_a_run_whose_config_is_given_is_resumed_though_another_one_is_newer(
    accepted, small, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = tmp_path / "runs"
    for _ in range(2):
        accepted("fit", *small, f"--trainer.default_root_dir={runs}")
    paths = [runs / f"version_{n}" / "checkpoints" / "last.ckpt" for n in (0, 1)]
    for n_step, folder in ((6, runs), (8, "~/runs")):
        config = f"--config={folder}/version_0/config.yaml"
        accepted("fit", config, "--resume=auto", f"--trainer.max_steps={n_step}")
        steps = [load_checkpoint(path).saved["global_step"] for path in paths]
        assert steps == [n_step, 4]


def test_a_job_continues_its_own_run_and_changes_no_other_one(txl, accepted, small, monkeypatch):
    def fit(job: str, seed: int, n_step: int, call=accepted):
        """Run fit as a job, "ARRAY_TASK" in an array."""
        array, _, task = job.rpartition("_")
        for name, value in (("JOB_ID", job), ("ARRAY_JOB_ID", array), ("ARRAY_TASK_ID", task)):
            monkeypatch.setenv(f"SLURM_{name}", value)
        more = ["--resume=auto", f"--trainer.max_steps={n_step}", f"--seed_everything={seed}"]
        return call("fit", *small, *more)

    for seed in (1, 2):
        assert "training starts from the beginning" in fit(f"70_{seed}", seed, 2).err
    # Requeued.
    assert "resume: runs/version_0/checkpoints/last.ckpt" in fit("70_1", 1, 4).err
    # Submitted again, with the same settings.
    said = fit("81", 2, 2).err
    assert "resume: runs/version_1/" in said
    assert "all 2 steps are done" in said
    # The steps of that run are done, but it is another run.
    code, output = fit("81", 3, 2, txl)
    assert code == 4
    assert output.err.splitlines()[-1] == (
        "error: resume: runs/version_1 is of job 70_2, and job 81 would change seed_everything "
        "2 to 3; expected a trainer.default_root_dir for each job, "
        "or --config runs/version_1/config.yaml"
    )


def test_a_run_on_its_own_text_continues_with_its_settings_of_that_text(
    accepted, sizes, text_file, tmp_path
):
    where = [f"--data.path={text_file}", f"--trainer.default_root_dir={tmp_path / 'r'}"]
    accepted("fit", *sizes, *where, "--data.vocab=characters", "--data.restart_len=16")
    run = tmp_path / "r" / "version_0"
    accepted("fit", *where, f"--ckpt_path={run}", "--trainer.max_steps=6")
    data = load_data_settings(tmp_path / "r" / "version_1" / "checkpoints" / "last.ckpt")
    assert (data["vocab"], data["restart_len"], data["tgt_len"]) == ("characters", 16, 8)


def test_a_larger_patience_continues_a_run_that_early_stopping_has_ended(accepted, small, tmp_path):
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/nats"]
    stopping += ["--trainer.callbacks.min_delta=9", "--trainer.val_check_interval=2"]
    options = [*small, *stopping, "--trainer.max_steps=30", "--resume=auto"]
    options.append(f"--trainer.default_root_dir={tmp_path / 'runs'}")
    steps = []
    for patience in (1, 1, 3):
        accepted("fit", *options, f"--trainer.callbacks.patience={patience}")
        path = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
        steps.append(load_checkpoint(path).saved["global_step"])
    assert steps == [4, 4, 8]


def test_another_text_is_measured_with_the_vocabulary_of_the_run(
    accepted, sizes, text_file, other_text, tmp_path
):
    where = [f"--data.data_dir={tmp_path / 'data'}", f"--trainer.default_root_dir={tmp_path / 'r'}"]
    options = ["--data.vocab=bpe", "--data.subwords.n_token=270", "--trainer.max_steps=2"]
    accepted("fit", *sizes, *options, f"--data.path={text_file}", *where)
    run = tmp_path / "r" / "version_0"
    with pytest.warns(UserWarning, match="data.allow_mismatch is true"):
        accepted("test", run, f"--data.path={other_text}", "--data.allow_mismatch=true", *where)
    stores = [*(tmp_path / "data" / "prepared").glob("*/vocab.json")]
    assert len(stores) == 2
    assert len({store.read_text() for store in stores}) == 1


def test_a_run_is_fine_tuned_on_a_store_with_its_vocabulary(
    accepted, run_folder, sizes, other_text, tmp_path
):
    store = tmp_path / "store"
    accepted("prepare", other_text, f"--vocab={run_folder / 'vocab.json'}", f"--out={store}")
    where = [f"--data.store={store}", f"--trainer.default_root_dir={tmp_path / 'r'}"]
    said = accepted("fit", *sizes, *where, f"--ckpt_path={run_folder}", "--trainer.max_steps=1").err
    assert "fine-tuning on" in said


def test_a_fine_tuned_run_needs_nothing_of_the_run_that_it_started_from(
    accepted, run_folder, fine_tune, tmp_path
):
    first = shutil.copytree(run_folder, tmp_path / "first" / "version_0")
    accepted(*fine_tune, f"--ckpt_path={first}", "--trainer.max_steps=2")
    shutil.rmtree(first)
    tuned = tmp_path / "tuned" / "version_0"
    assert "perplexity" in accepted("test", tuned).out
    accepted(*fine_tune, "--resume=auto", "--trainer.max_steps=3")
    assert load_checkpoint(tuned).saved["global_step"] == 3


@pytest.mark.parametrize("spell", [lambda path: path.name, lambda path: f"./{path.name}"])
def test_a_run_continues_on_its_own_text_however_its_path_is_spelled(
    accepted, sizes, text_file, tmp_path, monkeypatch, spell
):
    where = [f"--trainer.default_root_dir={tmp_path / 'r'}"]
    accepted("fit", *sizes, *where, f"--data.path={text_file}", "--data.restart_len=16")
    monkeypatch.chdir(text_file.parent)
    run = tmp_path / "r" / "version_0"
    given = [f"--data.path={spell(text_file)}", f"--ckpt_path={run}", "--trainer.max_steps=6"]
    said = accepted("fit", *where, *given).err
    assert "fine-tuning" not in said
    data = load_data_settings(tmp_path / "r" / "version_1" / "checkpoints" / "last.ckpt")
    assert (data["restart_len"], data["tgt_len"]) == (16, 8)


@pytest.mark.filterwarnings("ignore:.*reading from the start of the text")
def test_a_run_continues_on_its_text_of_another_name_only_with_how_it_was_read(
    accepted, refused, small, text_file, tmp_path
):
    where = [f"--trainer.default_root_dir={tmp_path / 'r'}"]
    reading = ["--data.restart_len=16", "--data.eval_batch_size=2"]
    accepted("fit", *small, *where, *reading, "--trainer.max_steps=2")
    run = tmp_path / "r" / "version_0"
    copy = shutil.copy(load_data_settings(run)["path"], tmp_path / "copy.txt")
    renamed = ["fit", *where, f"--data.path={copy}", f"--ckpt_path={run}", "--trainer.max_steps=4"]
    code, line = refused(*renamed, "--data.batch_size=4", "--data.eval_batch_size=2")
    assert code == 2
    assert line.startswith("data.restart_len: invalid None; expected 16, as this text was read")
    sizes = [f"--data.{name}" for name in ("batch_size=4", "tgt_len=8", "restart_len=null")]
    code, line = refused(*renamed, *sizes)
    assert (code, line.startswith("data.eval_batch_size: invalid None; expected 2")) == (2, True)
    accepted(*renamed, *sizes, "--data.eval_batch_size=2")
    accepted(*renamed, f"--config={run / 'config.yaml'}", "--data.tgt_len=4")
    found = []
    for name in ("version_1", "version_2"):
        data = load_data_settings(tmp_path / "r" / name / "checkpoints" / "last.ckpt")
        found.append((data["path"], data["restart_len"], data["tgt_len"]))
    assert found == [(str(copy), None, 8), (str(copy), 16, 4)]
