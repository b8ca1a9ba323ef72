"""The installed package: contents of the wheel, and supported systems."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import txl_lightning

REPOSITORY = Path(__file__).parents[1]
[TORCH] = re.findall(r"^torch==.*", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
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
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("txl_lightning", "configs"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    options = ["--no-deps", "--quiet", "--no-build-isolation", "-w", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def list_oldest() -> list[str]:
    """Return the lower bounds of the dependencies as pins, but that of torch.

    The oldest torch has no build for CPUs where pip looks: docs/versions.md says what was tried.
    """
    bounds = [
        re.match(r"([\w-]+)[^>]*>=([\w.]+)", line).groups()
        for line in PROJECT["project"]["dependencies"]
    ]
    return [f"{name}=={bound}" for name, bound in bounds if name != "torch"]


def skip_without_cpu_build(python: str) -> None:
    """Skip the test if there is no such Python, or if its torch would bring gigabytes of CUDA."""
    starts = shutil.which(python) and subprocess.run([python, "-V"], capture_output=True)
    if not starts or starts.returncode:
        pytest.skip(f"{python} cannot be started")
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-"]
    command = [python, "-m", "pip", "install", *options, TORCH]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip finds no {TORCH} for {python}")
    [torch] = json.loads(done.stdout)["install"]
    if any(re.match("nvidia-|cuda-", needed) for needed in torch["metadata"]["requires_dist"]):
        pytest.skip(f"pip finds no {TORCH} for CPUs for {python}")


@pytest.fixture(params=["python3.11", "python3.11 oldest", "python3.12", "python3.13"])
def installed(request, wheel, tmp_path) -> Iterator[Path]:
    """An environment with nothing but the wheel and its dependencies, pinned or the oldest."""
    python, _, pins = request.param.partition(" ")
    skip_without_cpu_build(python)
    constraints = tmp_path / "pins.txt"
    constraints.write_text((REPOSITORY / "constraints.txt").read_text())
    if pins:
        constraints.write_text("\n".join([TORCH, *list_oldest()]))
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", environment], check=True)
    # Compiling all files takes longer than what imports compile.
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "-c", constraints, wheel], check=True)
    yield environment
    # It has a gigabyte.
    shutil.rmtree(environment)


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
    assert "--top_p" in txl("generate", "--help")
    assert "bits_per_byte" in txl("evaluate", f"{run}/checkpoints/best.ckpt", f"--path={text_file}")
