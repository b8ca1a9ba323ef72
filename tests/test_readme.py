"""The commands, make targets, paths and links of every page exist."""

import re
import shlex
from pathlib import Path

import pytest

from txl_lightning import __main__ as entry

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("configs", "experiments", "tests", "txl_lightning")
PATHS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
PATHS += [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.md"))]
PAGES = {path.relative_to(REPOSITORY).as_posix(): path.read_text() for path in PATHS}
SOURCES = [path.as_posix() for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
# Paths in recipes, and of other codes.
OTHERS = {"txl_lightning/commands/NAME.py", "train_xl_enwik8.py"}
COMMANDS = [
    (page, line.split("  #")[0].strip())
    for page, text in PAGES.items()
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
OURS = [
    (page, words[1])
    for page, line in COMMANDS
    # torchrun starts it as a module.
    if (words := re.search(r"(?:\btxl-lightning|-m txl_lightning) (.+)", line))
]
TARGETS = sorted({line.split()[1] for _, line in COMMANDS if line.startswith("make ")})


def test_the_first_page_shows_how_to_train_measure_and_generate():
    assert {"fit", "test", "generate"} <= {
        line.split()[0] for page, line in OURS if "/" not in page
    }
    assert {"quickstart", "test", "test-all"} <= set(TARGETS)


@pytest.mark.parametrize(("page", "command"), OURS)
def test_a_command_of_a_page_parses(page, command, parse_fit, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    name, *words = shlex.split(command.split(" | ")[0])
    words = [word.replace("RUN/config.yaml", "configs/smoke.yaml") for word in words]
    words = entry.name_checkpoint(name, words)
    if name in entry.LIGHTNING:
        assert parse_fit(*words)
    else:
        assert entry.make_parser(name)[1].parse_args(words)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_of_a_page_exists(target):
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_paths_and_links_of_a_page_exist(page):
    named = set(re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", PAGES[page])) - OTHERS
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", PAGES[page])
    paths = [REPOSITORY / path for path in named]
    paths += [(REPOSITORY / page).parent / link for link in links]
    assert [path for path in paths if not path.exists()] == []
    sources = set(re.findall(r"`([\w/-]+\.py)\b", PAGES[page])) - OTHERS
    assert [name for name in sources if not any(p.endswith(f"/{name}") for p in SOURCES)] == []
