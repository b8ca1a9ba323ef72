"""Runs and exports of each version that was released load, resume, and give the same numbers.

tests/golden/releases/make.py wrote them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import txl_lightning
from tests.golden.releases import make
from txl_lightning.runs.folder import FORMAT, KEY

pytestmark = pytest.mark.filterwarnings(
    # Another machine wrote the golden checkpoints.
    "ignore:the order of the text is exact",
)
KINDS = sorted(path.parent for path in make.FOLDER.glob("*/*/numbers.json"))


@pytest.fixture(params=KINDS, ids=lambda kind: "/".join(kind.parts[-2:]))
def golden(request, tmp_path, monkeypatch) -> Path:
    """The folder of a version and a network, beside the text that its run has read."""
    monkeypatch.chdir(tmp_path)
    make.write_text()
    return request.param


def read_numbers(golden: Path) -> dict:
    return json.loads((golden / "numbers.json").read_text())


@pytest.mark.parametrize("part", ["run", "export"])
def test_weights_of_a_release_give_the_nats_that_they_gave(golden, part):
    assert make.measure(golden / part) == pytest.approx(read_numbers(golden)["nats"], abs=1e-5)


def test_a_run_of_a_release_resumes_and_gives_the_losses_that_it_gave(golden, capsys):
    shutil.copytree(golden / "run", make.RUN)
    expected = read_numbers(golden)["resumed"]
    resumed = make.resume()
    assert "resume: " in capsys.readouterr().err
    assert [row.keys() for row in resumed] == [row.keys() for row in expected]
    for now, then in zip(resumed, expected, strict=True):
        assert now == pytest.approx(then, abs=1e-4)


def test_a_session_of_a_release_continues_with_the_nats_that_it_had(golden):
    found = make.continue_session(golden / "run", golden / "session.safetensors")
    assert found == pytest.approx(read_numbers(golden)["session"], abs=1e-5)


def test_the_newest_release_has_the_format_that_is_written_now():
    # Otherwise a released version would have a format that no golden checkpoint has.
    saved = [
        torch.load(kind / "run" / "checkpoints" / "last.ckpt", weights_only=True) for kind in KINDS
    ]
    assert max(each[KEY]["format"] for each in saved) == FORMAT


def test_this_version_has_golden_checkpoints_of_each_network():
    versions = {kind.parent.name: set() for kind in KINDS}
    for kind in KINDS:
        versions[kind.parent.name].add(kind.name)
    assert {*make.NETWORKS} <= versions[txl_lightning.__version__]
