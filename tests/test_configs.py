"""Every configuration that is shipped parses and builds."""

from pathlib import Path

import pytest
import yaml

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.training.cli import TxlCLI

CONFIGS = sorted((Path(__file__).parents[1] / "configs").rglob("*.yaml"))


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
