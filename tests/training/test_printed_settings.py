"""--print_config prints the settings of the run that the same words start."""

import shutil
from pathlib import Path

import pytest
import yaml

from txl_lightning.errors import flatten_settings
from txl_lightning.runs.folder import METRICS
from txl_lightning.runs.metrics_table import read_log
from txl_lightning.training import own_text


@pytest.fixture
def printed(accepted):
    """Return what --print_config prints, and the file that has it."""

    def print_settings(*words):
        text = accepted(*words, "--print_config").out
        Path("printed.yaml").write_text(text)
        return flatten_settings(yaml.safe_load(text))

    return print_settings


@pytest.fixture
def own_run(run_folder, tmp_path):
    """A copy of a finished run, as the only one in `runs`."""
    shutil.copytree(run_folder, tmp_path / "runs" / "version_0")
    return "runs/version_0"


def test_printed_settings_of_an_own_text_are_its_recipe(printed, text_file, monkeypatch):
    monkeypatch.setattr(own_text, "SMALLEST", text_file.stat().st_size)
    settings = printed("fit", f"--data.path={text_file}")
    expected = {"model.optim.name": "muon", "data.vocab": "bpe", "plan.minutes": own_text.MINUTES}
    assert {name: settings[name] for name in expected} == expected
    assert printed("fit", "--config=printed.yaml") == settings
    # Words of the user come before the recipe.
    settings = printed("fit", f"--data.path={text_file}", "--model.net.d_model=32")
    assert settings["model.net.d_model"] == 32


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_printed_settings_of_a_measurement_are_the_runs(printed, own_run, command):
    settings = printed(command, own_run, "--trainer.limit_test_batches=1")
    assert settings["model.net.d_model"] == 8
    assert Path(settings["data.path"]).name == "letters.txt"
    assert settings["trainer.limit_test_batches"] == 1
    assert printed(command, "--config=printed.yaml") == settings


@pytest.mark.parametrize(
    "words",
    [
        ["--resume=auto"],
        ["--resume=must", "--trainer.max_steps=9"],
        ["--ckpt_path=last", "--trainer.max_steps=9"],
        ["--ckpt_path=runs/version_0", "--trainer.max_steps=9"],
        ["--ckpt_path=runs/version_0", "--data.path=other.txt", "--trainer.max_epochs=1"],
    ],
)
def test_printed_settings_of_a_run_from_a_checkpoint_have_its_network(printed, own_run, words):
    Path("other.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 100)
    settings = printed("fit", *words)
    assert (settings["model.net.d_model"], settings["model.net.mem_len"]) == (8, 8)
    assert printed("fit", "--config=printed.yaml") == settings
    assert not Path("runs", "version_1").exists()


def test_a_run_with_its_printed_settings_is_bit_for_bit_the_same(
    accepted, printed, text_file, sizes, monkeypatch
):
    monkeypatch.setattr(own_text, "SMALLEST", text_file.stat().st_size)
    options = *sizes, f"--data.path={text_file}", "--data.vocab=characters"
    printed("fit", *options)
    for words in (options, ["--config=printed.yaml"]):
        accepted("fit", *words)
    losses = [list_losses(Path(f"runs/version_{n}")) for n in (0, 1)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4  # steps
    configs = [Path(f"runs/version_{n}/config.yaml").read_text() for n in (0, 1)]
    assert configs[0] == configs[1] == Path("printed.yaml").read_text()


def list_losses(run):
    """Return the losses of a run's steps, as they are written."""
    return [row["train/loss"] for row in read_log(run / METRICS) if row["train/loss"]]


def test_a_mistake_is_refused_in_place_of_being_printed(refused, text_file):
    words = "fit", f"--data.path={text_file}", "--print_config"
    code, line = refused(*words, "--data.eval_tgt_len=0")
    assert (code, line) == (2, "data.eval_tgt_len: invalid 0; expected at least 1")
    code, line = refused(*words[:-1], "--print_config=skip_default")
    assert code == 2
    assert "print_config" in line


def test_help_has_no_control_characters(accepted):
    shown = accepted("fit", "--help", "full").out
    assert "--print_config " in shown
    assert not [character for character in shown if character < " " and character != "\n"]
