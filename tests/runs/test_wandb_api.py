"""Checkpoints of W&B, by its client and the protocol of a server on this machine."""

import json
import sys
from threading import Thread

import pytest

from tests.runs.wandb_server import WandbServer

pytestmark = pytest.mark.slow
NAME = "wandb:me/mine/checkpoint-abc:best"


@pytest.fixture
def server(run_folder):
    folder = run_folder / "checkpoints"
    paths = (folder / "best.ckpt", folder / "best.ckpt.json", run_folder / "config.yaml")
    server = WandbServer({path.name: path for path in paths})
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def command(server, processes, tmp_path):
    """Run a command in a process whose W&B server is that on this machine."""

    def run(*words: str, code=0, **environment: str):
        known = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "c0ffee" * 6 + "beef"}
        known |= {"WANDB_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        known |= {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "txl_lightning", *map(str, words)]
        done = processes.run(words, env=known | environment, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done

    return run


def test_a_checkpoint_of_wandb_is_fetched_once_and_gives_the_same_result(
    command, server, run_folder
):
    records = []
    for source in (NAME, NAME.replace("best", "v3"), run_folder):
        done = command("evaluate", source, "--max_tokens=50")
        records.append(json.loads(done.stdout))
    assert sorted(server.fetched) == sorted(server.files)
    assert len({record["nats"] for record in records}) == 1
    assert len({record["checkpoint_sha256"] for record in records}) == 1


def test_a_command_of_the_trainer_takes_a_checkpoint_of_wandb(command, server):
    command("validate", NAME)
    assert sorted(server.fetched) == sorted(server.files)


def test_a_file_that_changed_on_the_way_is_refused(command, server):
    server.corrupt = True
    done = command("generate", NAME, "--max_new_tokens=1", code=4)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: ckpt_path: {NAME}: cannot be fetched (")
    server.corrupt = False
    command("generate", NAME, "--max_new_tokens=1")


@pytest.mark.parametrize(
    ("name", "environment"),
    [("wandb:me/mine/other:best", {}), (NAME, {"WANDB_BASE_URL": "http://127.0.0.1:9"})],
)
def test_an_artifact_that_cannot_be_had_is_one_line(command, name, environment):
    done = command("generate", name, "--max_new_tokens=1", code=4, **environment)
    [line] = [line for line in done.stderr.splitlines() if "error: " in line]
    assert line.startswith(f"error: ckpt_path: {name}:")


def test_own_network_of_wandb_is_measured_once_its_package_is_allowed(
    command, server, own_package, sizes, text_file, tmp_path
):
    allow = "--allow_imports=my_package"
    words = [word for word in sizes if ".net." not in word]
    words += [allow, "--model.net=my_package.MyConfig", f"--data.path={text_file}"]
    command("fit", *words)
    folder = tmp_path / "runs" / "version_0"
    paths = (*(folder / "checkpoints").glob("best.ckpt*"), folder / "config.yaml")
    server.files = {path.name: path.read_bytes() for path in paths}
    words = ("evaluate", NAME, "--max_tokens=50")
    assert "add --allow_imports my_package" in command(*words, code=4).stderr
    done = command(*words, allow)
    assert sorted(server.fetched) == sorted(server.files)
    record = json.loads(done.stdout)
    assert record["checkpoint_sha256"] in (folder / "checkpoints" / "best.ckpt.json").read_text()
