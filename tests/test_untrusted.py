"""What a stranger has written runs nothing: a canary is imported by nobody."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from txl_lightning import LanguageModel


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Path:
    """A module that could be imported; the file that it leaves then."""
    (tmp_path / "canary.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sung').touch()\nclass Bird: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "sung"
    sys.modules.pop("canary", None)


def test_the_canary_would_sing(canary, tmp_path):
    subprocess.run([sys.executable, "-c", "import canary"], cwd=tmp_path, check=True)
    assert canary.exists()


@pytest.mark.parametrize(
    "key", ["trainer.callbacks", "trainer.logger", "trainer.plugins", "trainer.strategy"]
)
def test_a_class_path_in_a_config_is_not_imported(txl, small, canary, key):
    part, name = key.split(".")
    value = {"class_path": "canary.Bird"}
    value = [value] if name in ("callbacks", "plugins") else value
    Path("a.yaml").write_text(yaml.safe_dump({part: {name: value}}))
    code, output = txl("fit", *small, "--config=a.yaml")
    assert code == 2
    assert "canary.Bird" in output.err
    assert not canary.exists()


@pytest.fixture
def tampered(run_folder, tmp_path):
    """A checkpoint of ours that says by what it is to be made."""
    held = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    held["hyper_parameters"]["_instantiator"] = "canary.Bird"
    held["hyper_parameters"]["_class_path"] = "canary.Bird"
    torch.save(held, tmp_path / "tampered.ckpt")
    return tmp_path / "tampered.ckpt"


@pytest.mark.parametrize("verb", ["fit", "validate", "generate"])
def test_a_maker_named_in_a_checkpoint_is_not_imported(txl, small, canary, tampered, verb):
    options = small if verb != "generate" else []
    if verb == "fit":
        options = [*options, "--trainer.max_steps=6"]
    code, output = txl(verb, *options, f"--ckpt_path={tampered}")
    assert not canary.exists()
    if verb != "generate":
        assert code == 4
        assert "has a setting that this release does not know" in output.err


def test_nor_by_lightnings_own_way_to_load_one(canary, tampered):
    with pytest.raises(Exception, match="canary"):
        LanguageModel.load_from_checkpoint(tampered)
    assert not canary.exists()
