"""The commands, make targets, modules, paths and links that pages and sources name exist."""

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from txl_lightning import __main__ as entry
from txl_lightning import command_line, imports
from txl_lightning.training import cli, options, settings

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("configs", "docs", "experiments", "tests", "txl_lightning")
PATHS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
PATHS += [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.md"))]
PAGES = {path.relative_to(REPOSITORY).as_posix(): path.read_text() for path in PATHS}
SOURCES = [path.as_posix() for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
# Paths in recipes, and of other codes.
OTHERS = {"txl_lightning/commands/NAME.py", "train_xl_enwik8.py", "ray_train.py"}
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
MAKEFILE = (REPOSITORY / "Makefile").read_text()
PROSE = {path: path.read_text() for path in PATHS}
PROSE |= {
    REPOSITORY / name: (REPOSITORY / name).read_text() for name in ("pyproject.toml", ".ci/run")
}
PROSE |= {
    path: path.read_text()
    for folder in FOLDERS
    for ending in ("py", "yaml")
    for path in sorted((REPOSITORY / folder).rglob(f"*.{ending}"))
}
# In backticks, with a hyphen, or a line of its own: "make it" is English.
MAKE = re.compile(
    r"`make ([a-z][\w-]*)|\bmake ([a-z]+-[\w-]+)|^[# ]*(?:or )?make ([a-z]\w*)(?=$| {2,}|`)",
    re.MULTILINE,
)
MODULE = re.compile(r"\bpython3? (?:-\w+ )*-m ([\w.]*\w)")
# A record of a measurement: what was typed at an earlier commit.
RECORD = re.compile(r"`[^`]*`\s+at\s+[0-9a-f]{7}\b")


def find_names(pattern: re.Pattern) -> set[tuple[str, str]]:
    """Return what prose names, each with its file, except records of earlier commits."""
    return {
        (name, path.relative_to(REPOSITORY).as_posix())
        for path, text in PROSE.items()
        for groups in pattern.finditer(RECORD.sub("", text))
        for name in groups.groups()
        if name
    }


def test_the_first_page_shows_how_to_train_measure_and_generate():
    assert {"fit", "test", "generate"} <= {
        line.split()[0] for page, line in OURS if "/" not in page
    }
    named = {target for target, page in find_names(MAKE) if page == "README.md"}
    assert {"quickstart", "setup", "gpu"} <= {*TARGETS, *named}


def test_the_first_page_has_at_most_120_lines():
    assert len(PAGES["README.md"].splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_marks_of_an_unfinished_merge(page):
    assert not re.search(r"^(<{7}|={7}$|>{7})", PAGES[page], re.MULTILINE)


@pytest.mark.parametrize(("page", "command"), OURS)
def test_a_command_of_a_page_parses(page, command, parse_fit, monkeypatch, own_package):
    monkeypatch.chdir(REPOSITORY)
    name, *words = shlex.split(command.split(" | ")[0])
    packages, words = command_line.take_option(words, "--allow_imports")
    imports.allow_imports(packages)
    for variable in ("NTASKS_PER_NODE", "NNODES", "ARRAY_TASK_ID"):
        monkeypatch.setenv(f"SLURM_{variable}", "2")
    words = [word.replace("RUN/config.yaml", "configs/smoke.yaml") for word in words]
    words = [os.path.expandvars(word) for word in words]
    words = entry.name_first_words(name, words)
    if not isinstance(command_line.COMMANDS[name], command_line.TrainerCommand):
        assert entry.make_parser(name)[1].parse_args(words)
        return
    cli.set_up_libraries()
    given = settings.read_given(words)
    # Options that fit does not have.
    if given.net_class or "--adapt." in command:
        parser = options.make_parser(name, words, given.net_class)
        assert settings.parse(parser, settings.Resolved(given, []))
    else:
        assert parse_fit(*words)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_of_a_page_exists(target):
    assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_paths_and_links_of_a_page_exist(page):
    named = set(re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", PAGES[page])) - OTHERS
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
    paths = [REPOSITORY / path for path in named]
    paths += [(REPOSITORY / page).parent / link for link in links]
    assert [path for path in paths if not path.exists()] == []
    sources = set(re.findall(r"`([\w/-]+\.py)\b", PAGES[page])) - OTHERS
    assert [name for name in sources if not any(p.endswith(f"/{name}") for p in SOURCES)] == []


def test_a_make_target_that_prose_names_exists():
    targets = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
    named = find_names(MAKE)
    assert {"test", "test-slow", "reproduce", "gpu"} <= {name for name, _ in named}
    assert [(name, file) for name, file in sorted(named) if name not in targets] == []


def test_a_module_that_prose_runs_exists():
    named = find_names(MODULE)
    assert {"txl_lightning", "experiments.pages", "pytest"} <= {name for name, _ in named}
    # NAME stands for any experiment.
    modules = {name.replace("NAME", "quickstart"): file for name, file in sorted(named)}
    assert [(name, file) for name, file in modules.items() if not is_module(name)] == []


def is_module(name: str) -> bool:
    path = REPOSITORY.joinpath(*name.split("."))
    is_ours = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    return is_ours or ("." not in name and find_spec(name) is not None)


@pytest.mark.slow
def test_a_target_uses_an_environment_that_has_the_package_and_installs_it_once(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
        os.utime(tmp_path / name, (1, 1))

    def plan(folder: str) -> str:
        command = ["make", "-n", "reproduce", "ONLY=recurrence", f"VENV={folder}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    assert plan("own").count(" -m venv own\n") == plan("own").count("pip install") == 1
    script = tmp_path / "own" / "bin" / "txl-lightning"
    script.parent.mkdir(parents=True)
    script.touch()
    assert "-m venv" not in plan("own")
    assert "own/bin/python -m experiments" in plan("own")
    # Of another version of the package.
    os.utime(script, (0, 0))
    assert "pip install" in plan("own")
