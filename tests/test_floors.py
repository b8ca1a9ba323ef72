"""A room imports only from lower floors, and importing only defines things."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "txl_lightning"
FLOORS = {
    "errors": 0,
    "files": 0,
    "signals": 0,
    "model": 1,
    "data": 1,
    "evaluation": 2,
    "generation": 2,
    "checkpoints": 2,
    "convert": 3,
    "analysis": 3,
    "training": 4,
    "sweeps": 4,
    "help": 1,
    "commands": 5,
}
"""A room imports only from lower floors; a file of floor 0, also from files of floor 0."""
LIMIT = 300


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms of ours that a file imports."""
    package = ("txl_lightning", *path.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            full = (*base, *(node.module or "").split("."))
            names = [(*full, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        ours = (tuple(part for part in name if part) for name in names)
        found |= {name[1] for name in ours if name[0] == "txl_lightning" and len(name) > 1}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
INSIDE = [path for path in FILES if room(path) in FLOORS]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_lower_floors(path):
    here = room(path)
    for other in imported_rooms(path) & FLOORS.keys() - {here}:
        below = FLOORS[other] < FLOORS[here] or FLOORS[other] == 0
        assert below, f"{here} imports {other}"


def test_every_file_is_in_a_room():
    assert {room(path) for path in FILES} == {*FLOORS, "__init__", "__main__"}


def test_the_network_imports_torch_and_nothing_of_ours():
    for path in (PACKAGE / "model").rglob("*.py"):
        assert imported_rooms(path) <= {"model", "errors"}
        assert "lightning" not in path.read_text().replace("txl_lightning", "")


def imported_packages(path: Path) -> set[str]:
    """The packages of others that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("packages", "where"),
    [
        ({"lightning"}, {"data/datamodule.py", "__main__.py", "training"}),
        ({"tokenizers"}, {"data/vocab/subwords.py"}),
        ({"urllib", "urllib3", "requests", "http", "socket", "fsspec"}, {"data/download.py"}),
        ({"wandb"}, {"training"}),
        ({"optuna"}, {"sweeps/engine.py", "sweeps/results.py", "sweeps/runner.py"}),
    ],
)
def test_a_package_is_imported_only_where_it_belongs(packages, where):
    users = {path for path in FILES if imported_packages(path) & packages}
    names = {path.relative_to(PACKAGE) for path in users}
    assert {str(n) for n in names if n.parts[0] != "training"} == where - {"training"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LIMIT
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, node.name


def test_importing_writes_and_prints_nothing(tmp_path):
    command = [sys.executable, "-W", "error", "-c", "import txl_lightning"]
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []
