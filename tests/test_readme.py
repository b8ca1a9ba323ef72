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
PLAIN = re.compile(r"txl_lightning (prepare|generate|evaluate|convert|inspect|recl|speed|sweep) ")
MAKE = [command for command in COMMANDS if command.startswith("make ")]


def test_the_readme_has_commands():
    assert {"make quickstart", "make test"} <= set(MAKE)
    verbs = {command.split("txl_lightning ")[1].split()[0] for command in OURS}
    assert {"fit", "validate", "test", "prepare", "generate", "evaluate", "convert"} <= verbs


@pytest.mark.parametrize("command", [c for c in OURS if not PLAIN.search(c)])
def test_a_command_of_lightnings_verbs_parses(command, monkeypatch, capsys):
    words = shlex.split(command.split("-m txl_lightning ")[1])
    words = [word.replace("RUN/config.yaml", "configs/smoke.yaml") for word in words]
    if "--ckpt_path" in words:
        del words[words.index("--ckpt_path") : words.index("--ckpt_path") + 2]
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(SystemExit) as stop:
        TxlCLI([*words, "--print_config"])
    assert stop.value.code == 0
    assert "n_layer" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in OURS if PLAIN.search(c)])
def test_a_command_of_a_plain_verb_parses(command):
    verb, *words = shlex.split(command.split("-m txl_lightning ")[1])
    _, parser = door.make_parser(verb)
    assert parser.parse_args(words)


@pytest.mark.parametrize("command", MAKE)
def test_a_make_target_exists(command):
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in command.split()[1:]:
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


def test_paths_that_the_readme_names_exist():
    named = re.findall(r"`((?:configs|experiments|tests|txl_lightning)/[\w./-]*)`", README)
    assert len(named) > 3
    for path in named:
        assert (REPOSITORY / path).exists(), path
