"""Sweeps whose trials are in a database, which several machines share."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.waiting import wait_until
from txl_lightning.sweeps import engine, proposals

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SCRIPT = Path(__file__).with_name("script.py")
WORKER = """
import sys
from txl_lightning import __main__ as entry
from txl_lightning.sweeps import engine, runner
engine.HEARTBEAT, engine.GRACE, runner.POLL = 1, 15, 0.05
entry.main()
"""
LRS = [0.1, 0.3, 0.5, 0.7, 0.9]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """Start a PostgreSQL server on a socket in a folder; return the URL of a database."""
    pytest.importorskip("psycopg", reason="no psycopg: pip install 'txl-lightning[postgres]'")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    folder, bins = tmp_path_factory.mktemp("postgres"), programs[-1].parent
    # The server refuses to run as root, and a user of its own must reach its folder.
    is_root = os.geteuid() == 0
    how = {"user": "postgres", "group": "postgres"} if is_root else {}
    for parent in [folder, *folder.parents] if is_root else []:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    data = folder / "data"
    data.mkdir()
    if is_root:
        import shutil

        for path in (folder, data):
            shutil.chown(path, "postgres", "postgres")
    how |= {"cwd": folder, "stdout": subprocess.DEVNULL}
    init = [bins / "initdb", "-D", data, "-U", "us", "-A", "trust", "--no-sync"]
    subprocess.run(init, check=True, timeout=300, **how)
    options = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
    server = subprocess.Popen([bins / "postgres", "-D", data, *options], stderr=-1, **how)
    ready = [bins / "pg_isready", "-h", folder, "-U", "us"]
    quiet = {"stdout": subprocess.DEVNULL}
    wait_until(lambda: subprocess.run(ready, **quiet).returncode == 0, server)
    yield f"postgresql+psycopg://us@/postgres?host={folder}"
    server.send_signal(signal.SIGQUIT)
    server.communicate(timeout=100)


@pytest.fixture
def start_machine(tmp_path, processes):
    """Start the sweep in a folder of its own, as on another machine."""

    def start(name: str, url: str, *options: str) -> subprocess.Popen:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", WORKER, "sweep", tmp_path / "search.yaml"]
        command += [f"--storage={url}", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return processes.start(command, cwd=folder, **pipes)

    return start


def load_trials(url: str, name: str) -> list:
    with_url = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=with_url).trials
    finally:
        with_url.remove_session()
        with_url.engine.dispose()


@pytest.mark.slow
def test_two_machines_share_a_grid_and_the_trial_of_a_killed_one_runs_again(
    place, postgres, start_machine
):
    """Both start at once, with an empty database. One, killed with its trial, is not restarted."""
    options, name = ("--steps=200", "--wait=0.1"), "a grid"
    place.write(*options, name=name, parameters={"lr": {"values": LRS}})
    machines = {name: start_machine(name, postgres) for name in ("a", "b")}
    logs = {each: place.folder / each / "runs" / "sweeps" / "search" for each in machines}
    stop, begun = time.monotonic() + 450, "*/version_0/metrics.csv"
    wait_until(lambda: all(any(log.glob(begun)) for log in logs.values()), *machines.values())
    machines["a"].kill()
    machines["a"].communicate()
    [killed] = [path for path in logs["a"].glob("[0-9]*") if (path / "version_0").is_dir()]
    os.kill(int((killed / "process.lock").read_text()), signal.SIGKILL)
    printed, _ = machines["b"].communicate(timeout=250)
    assert machines["b"].returncode == 0, printed
    # It may have ended before the silence of the killed one was long enough.
    while TrialState.RUNNING in {trial.state for trial in load_trials(postgres, name)}:
        assert time.monotonic() < stop
        time.sleep(1)
        again, _ = (last := start_machine("b", postgres)).communicate(timeout=250)
        assert last.returncode == 0, again
    trials = load_trials(postgres, name)
    dead = trials[int(killed.name)]
    assert dead.state == TrialState.FAIL
    assert {trial.state for trial in trials if trial.number != dead.number} == {TrialState.COMPLETE}
    first = [trial for trial in trials if proposals.first_number(trial) == trial.number]
    assert [trial.params["lr"] for trial in first] == LRS
    [retry] = [trial for trial in trials if trial not in first]
    assert (proposals.first_number(retry), retry.params) == (dead.number, dead.params)
    # From its beginning.
    reports = [len(trial.intermediate_values) for trial in (retry, *first) if trial != dead]
    assert reports == [200] * 5


@pytest.mark.slow
def test_same_machine_continues_its_own_trial_after_a_kill(place, postgres, start_machine):
    place.write("--steps=80", "--wait=0.05", name="one", parameters={"lr": {"values": [0.3]}})
    first = start_machine("a", postgres)
    metrics = place.folder / "a" / "runs/sweeps/search/000/version_0/metrics.csv"
    wait_until(metrics.is_file, first)
    first.kill()
    first.communicate()
    printed, _ = (second := start_machine("a", postgres)).communicate(timeout=200)
    assert second.returncode == 0, printed
    assert "trial 0 continues: lr 0.3" in printed
    assert [trial.state for trial in load_trials(postgres, "one")] == [TrialState.COMPLETE]
    steps = [int(line.split(",")[0]) for line in metrics.read_text().splitlines()[1:]]
    assert steps == list(range(80))


def open_on(machine: str, tmp_path, config: dict) -> engine.Sweep:
    folder = tmp_path / machine
    folder.mkdir(exist_ok=True)
    return engine.open_sweep(config, folder, 1, f"sqlite:///{tmp_path}/trials.db")


CONFIG = {"name": "shared", "method": "grid", "metric": {"name": "val/loss"}}
CONFIG["parameters"] = {"lr": {"values": [1, 2]}}


@pytest.fixture
def close(monkeypatch):
    """Close the databases that a test has opened."""
    opened = []
    original = engine.open_database
    monkeypatch.setattr(
        engine, "open_database", lambda url: opened.append(original(url)) or opened[-1]
    )
    yield
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()


@pytest.mark.usefixtures("close")
@pytest.mark.parametrize("method", ["grid", "random"])
def test_machines_that_ask_at_once_get_different_points_and_not_too_many(
    tmp_path, monkeypatch, method
):
    """Each sees the trials as they were before the other one has asked."""
    parameters = CONFIG["parameters"] if method == "grid" else {"lr": {"min": 0.0, "max": 1.0}}
    config = CONFIG | {"method": method, "parameters": parameters}
    sweeps = [open_on(machine, tmp_path, config) for machine in ("a", "b", "c")]
    barrier = threading.Barrier(3)
    for sweep in sweeps:
        ask = sweep.study.ask
        monkeypatch.setattr(sweep.study, "ask", lambda ask=ask: (barrier.wait(60), ask())[1])
    with ThreadPoolExecutor() as pool:
        trials = [*pool.map(lambda sweep: sweep.ask_trial(limit=2), sweeps)]
    assert sum(trial is None for trial in trials) == 1
    values = [
        sweep.suggest_parameters(trial)["lr"]
        for sweep, trial in zip(sweeps, trials, strict=False)
        if trial
    ]
    assert len({*values}) == 2
    if method == "grid":
        assert sorted(values) == [1, 2]
    surplus = sweeps[0].study.trials[2]
    assert (surplus.state, surplus.user_attrs["reason"][:7]) == (TrialState.FAIL, "not run")


@pytest.mark.usefixtures("close")
def test_dead_trial_is_retried_with_its_values_and_only_so_often(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "HEARTBEAT", 1)
    monkeypatch.setattr(engine, "GRACE", 1)
    sweep = open_on("a", tmp_path, CONFIG)
    for retry in range(engine.MAX_RETRIES + 1):
        trial = sweep.ask_trial()
        assert sweep.suggest_parameters(trial) == {"lr": 1}
        assert proposals.find_index(sweep.study, sweep.study.trials[trial.number]) == 0
        stop = time.monotonic() + 60
        while sweep.study.trials[trial.number].state == TrialState.RUNNING:
            assert time.monotonic() < stop
            time.sleep(0.1)
            optuna.storages.fail_stale_trials(sweep.study)
        with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
            sweep.keep_alive(trial)
        assert len(sweep.study.trials) == retry + 1 + (retry < engine.MAX_RETRIES)
    # The grid goes on with its second point.
    assert sweep.suggest_parameters(sweep.ask_trial()) == {"lr": 2}
    assert sweep.ask_trial() is None


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("trials.db", 2, "storage: not a URL; expected postgresql://USER@HOST/NAME"),
        ("sqlite:////none/trials.db", 6, "storage: sqlite:////none/trials.db: cannot be opened ("),
        ("oracle://us:secret@host/x", 2, "storage: oracle://us:***@host/x: its driver is missing;"),
    ],
)
def test_database_that_cannot_be_opened_is_refused_without_its_password(
    place, refused, monkeypatch, url, code, message
):
    monkeypatch.setattr(engine.time, "sleep", lambda _: None)
    place.write()
    exit_code, line = refused("sweep", "search.yaml", f"--storage={url}")
    assert (exit_code, line[: len(message)]) == (code, message)
    assert "secret" not in line
