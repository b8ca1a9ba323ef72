"""The commands, make targets and paths of the README exist."""

import re
import shlex
from pathlib import Path

import pytest

from txl_lightning import __main__ as door

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("  #")[0].strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
OURS = [command for command in COMMANDS if "-m txl_lightning" in command]
NAMES = [command.split("-m txl_lightning ")[1].split()[0] for command in OURS]
TARGETS = [command.split("&&")[0].split()[1] for command in COMMANDS if command.startswith("make ")]


def test_the_readme_shows_how_to_train_measure_and_generate():
    assert {"quickstart", "test", "test-all"} <= set(TARGETS)
    assert {"fit", "test", "generate"} <= set(NAMES)


@pytest.mark.parametrize("command", OURS)
def test_a_command_of_the_readme_parses(command, parse_fit, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    name, *words = shlex.split(command.split("-m txl_lightning ")[1])
    words = [word.replace("RUN/config.yaml", "configs/smoke.yaml") for word in words]
    if name in door.LIGHTNING:
        assert parse_fit(*words)
    else:
        assert door.make_parser(name)[1].parse_args(words)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_of_the_readme_exists(target):
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


def test_paths_that_the_readme_names_exist():
    named = re.findall(r"`((?:configs|experiments|tests|txl_lightning)/[\w./-]*)`", README)
    assert named
    missing = [path for path in named if not (REPOSITORY / path).exists()]
    assert missing == []
