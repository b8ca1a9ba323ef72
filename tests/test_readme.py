"""The commands, make targets, paths and links of every README exist."""

import re
import shlex
from pathlib import Path

import pytest

from txl_lightning import __main__ as door

REPOSITORY = Path(__file__).parents[1]
PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text()
    for pattern in ("README.md", "configs/*.md", "experiments/*.md", "txl_lightning/*/*.md")
    for path in sorted(REPOSITORY.glob(pattern))
}
COMMANDS = [
    (page, line.split("  #")[0].strip())
    for page, text in PAGES.items()
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
OURS = [(page, line.split("-m txl_lightning ")[1]) for page, line in COMMANDS if "-m txl_l" in line]
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
    if name in door.LIGHTNING:
        assert parse_fit(*words)
    else:
        assert door.make_parser(name)[1].parse_args(words)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_of_a_page_exists(target):
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_paths_and_links_of_a_page_exist(page):
    folders = "configs|experiments|tests|txl_lightning"
    named = [REPOSITORY / path for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", PAGES[page])]
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", PAGES[page])
    named += [(REPOSITORY / page).parent / link for link in links]
    assert [path for path in named if not path.exists()] == []
