"""Fixtures of several folders of tests.

Tests that need a GPU run where packages of the command line and of dashboards may be missing:
fixtures import what needs these.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from txl_lightning.process import limit_spinning

limit_spinning()  # Before torch is loaded.

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from tests.helpers.processes import Processes  # noqa: E402
from tests.helpers.wandb_files import Run  # noqa: E402
from txl_lightning import CorpusDataModule, TransformerXL, TransformerXLConfig, imports  # noqa: E402
from txl_lightning.errors import IGNORED_WARNINGS  # noqa: E402

SMALL = [
    "--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.mem_len=8", "--data.tgt_len=8", "--data.batch_size=4", "--trainer.max_steps=4",
    "--trainer.val_check_interval=2", "--trainer.limit_val_batches=2",
    "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1",
    "--report.html=false", "--report.sample_len=0",
]  # fmt: skip

# A user's folders and job are not those of tests.
for name in list(os.environ):
    if name in ("TXL_DATA", "TXL_DEBUG") or name.startswith(("WANDB_", "SLURM_")):
        del os.environ[name]
os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
os.environ["WANDB_MODE"] = "offline"
# Also for processes that a server forks: SIGABRT makes them print their stack.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
# The networks are too small for several threads, which would wait for busy cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# Ignored under nohup, which our commands and their processes respect.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

STARTED = time.monotonic()


def pytest_addoption(parser):
    parser.addoption("--time-limit", type=float, help="seconds after which no test is started")
    parser.addoption("--skipped", type=Path, help="file to which skipped tests are appended")


def pytest_runtest_setup(item):
    # For the check of a GPU, which is lent for minutes.
    limit = item.config.getoption("--time-limit")
    if limit is not None and time.monotonic() - STARTED > limit:
        pytest.skip("no time was left")
    has_products = torch.backends.mkldnn.is_available()
    has_products = has_products and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if item.get_closest_marker("bfloat16") and not has_products:
        pytest.skip("the CPU has no bfloat16 products")


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("--skipped")
    # Each worker of xdist also summarizes its own tests.
    if path and not hasattr(config, "workerinput"):
        reports = terminalreporter.stats.get("skipped", [])
        reasons = (report.longrepr[2].removeprefix("Skipped: ") for report in reports)
        files = (report.nodeid.split("::")[0] for report in reports)
        counts = Counter(zip(files, reasons, strict=True))
        lines = [f"{file} ({n} tests): {reason}\n" for (file, reason), n in counts.items()]
        with path.open("a") as file:
            file.writelines(lines)


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", f"ignore:{IGNORED_WARNINGS}")
    if find_spec("hypothesis"):
        from hypothesis import settings

        # By default, an example that takes 0.2 seconds fails: on a busy machine, any.
        settings.register_profile("busy", settings.default, deadline=None)
        settings.load_profile("busy")


def pytest_make_parametrize_id(val, argname):
    """Return the parameter's name for bytes that nobody can read; pytest numbers them."""
    readable = not isinstance(val, bytes) or (val.isascii() and val.decode().isprintable())
    return None if readable else argname


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def write_letters() -> Callable[..., Path]:
    """Write a text of 26 letters, long enough for a few passes, in lines of a length or in one."""

    def write(folder: Path, line_len: int = 6000) -> Path:
        letters = np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8)
        letters[line_len::line_len] = 10
        (folder / "letters.txt").write_bytes(letters.tobytes())
        return folder / "letters.txt"

    return write


@pytest.fixture
def text_file(tmp_path, write_letters) -> Path:
    return write_letters(tmp_path)


@pytest.fixture
def make_data(text_file):
    def make(**changes) -> CorpusDataModule:
        options = {"path": str(text_file), "data_dir": str(text_file.parent / "data")}
        return CorpusDataModule(**options | {"tgt_len": 8, "batch_size": 4} | changes)

    return make


@pytest.fixture
def make_net():
    """A small float64 network in eval mode; every parameter differs from its initial value."""

    def make(**changes) -> TransformerXL:
        sizes = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 6}
        net = TransformerXL(TransformerXLConfig(**sizes | changes)).double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return net

    return make


@pytest.fixture(scope="session")
def sizes() -> list[str]:
    """Options of fit: a small model and few steps."""
    return SMALL


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, sizes, write_letters) -> Path:
    """The folder of a finished run; tests must not modify it."""
    from txl_lightning import __main__ as entry

    folder = tmp_path_factory.mktemp("finished")
    where = [f"--data.path={write_letters(folder)}", f"--data.data_dir={folder / 'data'}"]
    where += [f"--trainer.default_root_dir={folder}"]
    entry.run(["fit", *sizes, "--report.html=true", "--report.sample_len=20", *where])
    return folder / "version_0"


@pytest.fixture
def own_package(monkeypatch, tmp_path, repository):
    """A user's package with the network of docs/own_network.md, imported from its folder."""
    page = (repository / "docs" / "own_network.md").read_text()
    code, *_ = re.findall("```python\n(.*?)```", page, re.S)
    (tmp_path / "my_package.py").write_text(f'__version__ = "1.5"\n{code}')
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("my_package")
    sys.modules.pop("my_package", None)
    imports.ALLOWED.clear()


@pytest.fixture
def txl(monkeypatch, capsys, tmp_path, text_file):
    """Run a command line in an empty folder; return its exit code and its output."""
    from txl_lightning import __main__ as entry

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["txl-lightning", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        before = signal.getsignal(signal.SIGUSR1)
        try:
            entry.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        finally:
            # It ignores this signal until its process ends.
            signal.signal(signal.SIGUSR1, before)
        return code, capsys.readouterr()

    return run


@pytest.fixture
def accepted(txl):
    """Run a valid command line; return its output."""

    def run(*arguments):
        code, output = txl(*arguments)
        assert code == 0, output.err
        return output

    return run


@pytest.fixture
def refused(txl):
    """Run an invalid command line; return its exit code and its one-line error."""

    def run(*arguments) -> tuple[int, str]:
        code, output = txl(*arguments)
        *notices, line = output.err.splitlines()
        # The settings are right so far: another network, or a short text.
        assert all(each.startswith("no recipe for ") for each in notices), notices
        return code, line.removeprefix("error: ").replace(f"{Path.cwd()}/", "")

    return run


@pytest.fixture
def limit_file_size() -> Callable[[int], AbstractContextManager]:
    """Let no file grow beyond some bytes, as on a full disk."""

    @contextmanager
    def limit(n_byte: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def small(sizes, text_file):
    return [*sizes, f"--data.path={text_file}"]


@pytest.fixture(scope="session")
def parse_fit():
    """Parse and check arguments of fit, with a parser of each network, which takes a second."""
    from txl_lightning.training import cli

    cli.set_up_libraries()
    make_parser = cache(lambda net_class: cli.make_parser("fit", net_class=net_class))

    def parse(*words: str) -> Any:
        given = cli.read_given([*map(str, words)])
        parser = make_parser(given.net_class)
        settings = cli.parse(parser, cli.Resolved(given, []))
        cli.check_settings(parser, settings)
        cli.set_folder("fit", settings.trainer, None)
        return settings

    return parse


@pytest.fixture(scope="session")
def processes() -> Processes:
    """Starts processes, or runs them to their end; what a test has left is killed after it."""
    return Processes()


@pytest.fixture(autouse=True)
def _no_process_is_left(processes):
    yield
    processes.end()


@pytest.fixture(autouse=True)
def _no_process_group_is_left():
    yield
    assert not torch.distributed.is_initialized()


@pytest.fixture(scope="session")
def fit_with_wandb(sizes, repository, processes):
    """Train in a separate process; return it, and W&B's runs in its folder, oldest first."""

    def fit(folder: Path, *options: str, code=0, **environment: str):
        (folder / "letters.txt").write_bytes(bytes(range(97, 123)) * 200)
        command = [sys.executable, "-m", "txl_lightning", "fit", *sizes]
        command += ["--data.path=letters.txt", "--trainer.logger=WandbLogger"]
        command += ["--report.html=true", "--report.sample_len=200", *options]
        # Variables that W&B set in this process would send the run to another folder.
        env = {name: value for name, value in os.environ.items() if "WANDB" not in name}
        env |= {"PYTHONPATH": str(repository), "WANDB_SILENT": "true"} | environment
        done = processes.run(command, env=env, cwd=folder)
        assert done.returncode == code, done.stderr
        paths = folder.glob("runs/wandb/offline-run-*/run-*.wandb")
        return done, [Run(path) for path in sorted(paths, key=os.path.getmtime)]

    return fit


@pytest.fixture(scope="session")
def offline_run(tmp_path_factory, fit_with_wandb) -> tuple[Path, Run]:
    """The folder of a finished run with W&B offline, and the data of W&B; not to be modified."""
    folder = tmp_path_factory.mktemp("offline")
    _, [run] = fit_with_wandb(folder, "--wandb.checkpoints=all", WANDB_MODE="offline")
    return folder, run


@pytest.fixture(scope="session")
def run_experiment(repository, tmp_path_factory):
    """Run a module of the experiments in a process; return what it printed."""
    folder = tmp_path_factory.mktemp("experiments")

    def run(module: str, *options, kill_at: Path | None = None, **environment: str) -> str:
        command = [sys.executable, "-m", f"experiments.{module}", *map(str, options)]
        env = {"TXL_DATA": str(folder), "PYTHONPATH": str(repository)} | environment
        how = {"cwd": folder, "env": os.environ | env, "text": True}
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **how) as process:
            while kill_at and not kill_at.is_file() and process.poll() is None:
                time.sleep(0.01)
            if kill_at:
                process.kill()
            shown, errors = process.communicate()
        assert kill_at or process.returncode == 0, shown + errors
        return shown

    return run
