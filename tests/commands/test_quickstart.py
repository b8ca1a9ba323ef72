"""quickstart, from training to the suggested commands."""

from pathlib import Path

import pytest
import yaml


@pytest.mark.slow
def test_quickstart_trains_measures_and_samples(txl, text_file, repository):
    settings = yaml.safe_load((repository / "configs" / "smoke.yaml").read_text())
    settings["data"] = {"path": str(text_file), "tgt_len": 32, "batch_size": 4}
    Path("small.yaml").write_text(yaml.safe_dump(settings))
    code, output = txl("quickstart", "--config=small.yaml")
    assert code == 0, output.err
    for expected in (
        "mem_len    0",
        "mem_len   32",
        "bits per byte",
        "how the model goes on:",
        "txl-lightning fit --config runs/smoke/version_0/config.yaml",
    ):
        assert expected in output.out
    assert Path("runs", "smoke", "version_0", "curve.png").stat().st_size > 5000


def test_quickstart_refuses_a_config_that_is_not_one(refused):
    Path("list.yaml").write_text("[1]")
    for name, message in (("none", "config: invalid none"), ("list.yaml", "Unexpected config")):
        code, text = refused("quickstart", f"--config={name}")
        assert (code, message in text) == (2, True), text
