"""The installed package: contents of the wheel, and supported systems."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import txl_lightning

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_every_folder_with_code_is_a_package_of_the_wheel():
    code = {
        path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("txl_lightning/**/*.py")
    }
    packages = {*PROJECT["tool"]["setuptools"]["packages"]} - {"txl_lightning.configs"}
    assert packages == {".".join(folder.parts) for folder in code}


def test_without_extras_no_other_framework_is_installed():
    needed = {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert needed.isdisjoint({"transformers", "accelerate", "huggingface_hub", "lm-eval"})


def test_the_citation_names_this_version():
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert f"\nversion: {txl_lightning.__version__}\n" in citation


def test_windows_is_refused_with_a_message(monkeypatch):
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ImportError, match="on Windows, inside WSL"):
        importlib.reload(txl_lightning)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A virtual environment with the wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source, environment = folder / "source", folder / "environment"
    for name in ("txl_lightning", "configs"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    venv.create(environment)
    pip, quiet = [sys.executable, "-m", "pip"], ["--no-deps", "--quiet"]
    build = [*pip, "wheel", *quiet, "--no-build-isolation", "-w", folder, source]
    subprocess.run(build, check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "--python", environment, "install", *quiet, wheel], check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    # .pth files in this folder are not read, so the package of the tests is not imported.
    (packages / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    return environment


@pytest.mark.slow
def test_an_installed_wheel_has_the_commands_and_the_configs(installed, tmp_path, text_file):
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}

    def txl(*words: str) -> str:
        command = [installed / "bin" / "txl-lightning", *words]
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert txl("--version") == f"txl-lightning {txl_lightning.__version__}\n"
    assert "paper/enwik8_base" in txl("configs")
    assert f"| package | {installed}/" in txl("environment")
    few = ("--trainer.max_steps=4", "--trainer.val_check_interval=2", "--data.tgt_len=8")
    txl("fit", "--config=smoke", f"--data.path={text_file}", *few)
    run = tmp_path / "runs" / "smoke" / "version_0"
    assert (run / "report.html").stat().st_size > 5000
    assert "bits_per_byte" in txl("evaluate", f"{run}/checkpoints/best.ckpt", f"--path={text_file}")
