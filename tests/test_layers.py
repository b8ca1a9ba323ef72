"""Packages import only from lower layers; files and functions are short."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "txl_lightning"
TESTS = Path(__file__).parent
LAYERS = {
    "errors": 0, "files": 0, "imports": 0, "machine": 0, "process": 0, "tables": 0, "terminal": 0,
    "model": 1, "data": 1, "command_line": 1,
    "networks": 2, "evaluation": 2, "generation": 2, "runs": 2,
    "checkpoints": 3, "analysis": 3,
    "convert": 4,
    "training": 5, "sweeps": 5, "hub": 5,
    "commands": 6,
    "__init__": 7, "__main__": 7,
}  # fmt: skip
FILE_LINES = 350
FUNCTION_LINES = 50
# Packages that are slow to import, large or unsafe, and the files that may import them.
PLACES = {
    ("lightning",): {"training", "runs/logger.py", "data/datamodule.py", "__main__.py"},
    ("tokenizers",): {"data/vocab/subwords.py", "hub"},
    ("urllib", "urllib3", "requests", "http", "socket"): {"data/download.py"},
    ("fsspec",): {"checkpoints/mirror.py", "data/remote.py"},
    # Commands without Lightning fetch checkpoints, and add to runs that are over.
    ("wandb",): {"training", "runs/wandb_api.py"},
    ("onnx", "onnxruntime", "onnxscript"): {"commands/export.py"},
    ("optuna",): {"sweeps"},
    ("transformers", "huggingface_hub", "lm_eval"): {
        *("hub", "checkpoints/families.py"),
        *("networks/transformers_network.py", "networks/value_cache.py"),
    },
}
FILES = sorted(PACKAGE.rglob("*.py"))


def find_package(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def list_imported_modules(path: Path) -> set[tuple[str, ...]]:
    """Return the dotted names, as tuples, of everything that a file imports."""
    package = ("txl_lightning", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split("."))
            names |= {(*(part for part in module if part), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {tuple(alias.name.split(".")) for alias in node.names}
    return names


def list_imported_packages(path: Path) -> set[str]:
    names = list_imported_modules(path)
    return {name[1] for name in names if name[0] == "txl_lightning"} & LAYERS.keys()


def list_imported_files(path: Path) -> set[Path]:
    """Return the files of the package that a file imports, deferred imports included."""
    files = set()
    for _, *parts in (name for name in list_imported_modules(path) if name[0] == "txl_lightning"):
        # The last part of a name may be a module, or something in a module.
        modules = (PACKAGE.joinpath(*parts), PACKAGE.joinpath(*parts[:-1]))
        paths = (each for m in modules for each in (m.with_suffix(".py"), m / "__init__.py"))
        files |= {next(each for each in paths if each.is_file())}
    return files


def count_lines(paths) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_a_package_imports_only_from_lower_layers():
    for path in FILES:
        here = find_package(path)
        for other in list_imported_packages(path) - {here}:
            # Files of the lowest layer are one package.
            is_lower = LAYERS[other] < LAYERS[here] or LAYERS[other] == 0
            assert is_lower, f"{path}: {here} imports {other}"


def test_no_file_imports_itself_through_others():
    imported = {path: list_imported_files(path) for path in FILES}
    try:
        order = [*TopologicalSorter(imported).static_order()]
    except CycleError as error:
        pytest.fail(f"a circle of imports: {error.args[1]}")
    assert {*order} >= {*FILES}


def test_the_network_imports_torch_and_no_other_package_but_errors_and_imports():
    for path in (PACKAGE / "model").rglob("*.py"):
        assert list_imported_packages(path) <= {"model", "errors", "imports"}, path


def test_files_and_functions_are_short():
    for path in FILES:
        assert count_lines([path]) <= FILE_LINES, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < FUNCTION_LINES, f"{path}: {node.name}"


def test_no_two_files_have_one_name():
    names = Counter(path.name for path in FILES)
    assert [name for name, n in names.items() if n > 1 and name != "__init__.py"] == []


def test_a_package_is_imported_only_in_its_places():
    imported = {path: {name[0] for name in list_imported_modules(path)} for path in FILES}
    for packages, places in PLACES.items():
        users = [path for path, modules in imported.items() if modules & set(packages)]
        names = {path.relative_to(PACKAGE) for path in users}
        assert {str(n) if str(n) in places else n.parts[0] for n in names} <= places, packages


def test_importing_the_package_writes_and_prints_nothing(tmp_path):
    command = [sys.executable, "-W", "error", "-c", "import txl_lightning"]
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []
