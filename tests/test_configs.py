"""Every configuration that is shipped parses and builds."""

from pathlib import Path

import pytest
import yaml

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.training.cli import TxlCLI

FOLDER = Path(__file__).parents[1] / "configs"
HARDWARE = sorted((FOLDER / "hardware").glob("*.yaml"))
CONFIGS = sorted(set(FOLDER.rglob("*.yaml")) - set(HARDWARE))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_parses(path, capsys):
    with pytest.raises(SystemExit) as stop:
        TxlCLI(["fit", "--config", str(path), "--print_config"])
    assert stop.value.code == 0
    parsed = yaml.safe_load(capsys.readouterr().out)
    written = yaml.safe_load(path.read_text())
    for key, value in written["model"]["net"].items():
        assert parsed["model"]["net"][key] == value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_builds_and_says_what_it_is(path):
    text = path.read_text()
    assert text.startswith("# ")
    written = yaml.safe_load(text)
    optim = {
        k: tuple(v) if isinstance(v, list) else v for k, v in written["model"]["optim"].items()
    }
    model = LanguageModel(TransformerXLConfig(**written["model"]["net"]), OptimConfig(**optim))
    data = CorpusDataModule(**written["data"])
    assert data.train_shape[1] == written["data"]["tgt_len"]
    assert model.net.config.n_layer == written["model"]["net"]["n_layer"]


@pytest.mark.parametrize("path", HARDWARE, ids=lambda path: path.name)
def test_a_file_for_a_machine_changes_where_a_run_is_done_and_nothing_else(path, capsys):
    def parsed(*options: str) -> dict:
        arguments = ["fit", "--config", str(FOLDER / "smoke.yaml"), *options, "--print_config"]
        with pytest.raises(SystemExit) as stop:
            TxlCLI(arguments)
        assert stop.value.code == 0
        return yaml.safe_load(capsys.readouterr().out)

    before, after = parsed(), parsed("--config", str(path))
    assert after["trainer"] == before["trainer"] | yaml.safe_load(path.read_text())["trainer"]
    assert after["model"] == before["model"]
    assert after["data"] == before["data"]


@pytest.mark.parametrize("path", HARDWARE, ids=lambda path: path.name)
def test_a_file_for_a_machine_says_what_it_is_for_and_shows_a_command_that_uses_it(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert f"--config configs/hardware/{path.name}" in header[-1]
    assert "python -m txl_lightning fit --config configs/" in header[-1]
    assert set(yaml.safe_load(path.read_text())) <= {"trainer", "resume"}


def test_a_run_is_done_on_the_machine_that_the_second_file_names(text_file, tmp_path):
    files = ["--config", str(FOLDER / "smoke.yaml")]
    files += ["--config", str(FOLDER / "hardware" / "cpu.yaml")]
    data = [f"--data.path={text_file}", "--data.batch_size=4", "--data.eval_batch_size=4"]
    where = [f"--data.root={tmp_path}", f"--trainer.default_root_dir={tmp_path}"]
    short = ["--trainer.max_steps=2", "--trainer.enable_progress_bar=false"]
    trainer = TxlCLI(["fit", *files, *data, *where, *short]).trainer
    assert trainer.global_step == 2
    assert trainer.strategy.root_device.type == "cpu"
