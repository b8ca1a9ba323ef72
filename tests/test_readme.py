"""The commands of the front door exist and parse."""

import re
import shlex
from pathlib import Path

import pytest

from txl_lightning import __main__ as door
from txl_lightning.training.cli import TxlCLI

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
MAKE = [command for command in COMMANDS if command.startswith("make ")]


def test_the_readme_has_commands():
    assert {"make quickstart", "make test"} <= set(MAKE)
    verbs = {command.split("txl_lightning ")[1].split()[0] for command in OURS}
    assert {"fit", "validate", "test", "generate"} <= verbs


@pytest.mark.parametrize("command", OURS)
def test_a_command_parses(command, monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    words = shlex.split(command.split("-m txl_lightning ")[1])
    assert words[0] in door.VERBS
    words = [word for word in words if "RUN" not in word and word != "--ckpt_path"]
    if words[0] == "generate":
        words = [word for word in words if word != "generate"]
        assert all(word.split("=")[0] in GENERATE_OPTIONS for word in words if word[:2] == "--")
        return
    with pytest.raises(SystemExit) as stop:
        TxlCLI([word for word in words if word != "--config"] + config_options(words))
    assert stop.value.code == 0
    assert "n_layer" in capsys.readouterr().out


GENERATE_OPTIONS = {"--ckpt_path", "--prompt", "--length", "--temperature", "--top_k", "--seed"}


def config_options(words: list[str]) -> list[str]:
    """What makes a command only print its configuration."""
    return ["--print_config"]


@pytest.mark.parametrize("command", MAKE)
def test_a_make_target_exists(command):
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in command.split()[1:]:
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


def test_paths_that_the_readme_names_exist():
    for path in re.findall(r"`((?:configs|experiments|tests|txl_lightning)/[\w./-]*)`", README):
        assert (REPOSITORY / path).exists(), path
