"""Checkpoints and results of W&B, by its client and the protocol of a server on this machine."""

import base64
import json
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.runs.wandb_server import WandbServer
from tests.waiting import wait_until
from txl_lightning.errors import CheckpointError
from txl_lightning.runs.wandb_api import add_evaluation, fetch_artifact
from txl_lightning.signals import EXIT

pytestmark = pytest.mark.slow
NAME = "wandb:me/mine/checkpoint-abc:best"
RECORD = {"text": "/home/me/book.txt", "split": "test", "protocol": "segments", "nats": 1.5}
RECORD |= {"interval": {"nats": [1, 2], "bits_per_byte": None}, "tokens_scored": 9}
RECORD |= {"weights": "float32", "lengths": {"mem_len": 8}}


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

    def run(*words: str, code=0, is_awaited=True, **environment: str):
        known = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "c0ffee" * 6 + "beef"}
        known |= {"WANDB_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        known |= {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "txl_lightning", *map(str, words)]
        how = {"env": known | environment, "cwd": tmp_path}
        if not is_awaited:
            return processes.start(words, **how)
        done = processes.run(words, **how)
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


@pytest.mark.parametrize(
    "words",
    [
        ("generate", NAME, "--max_new_tokens=1"),
        ("validate", NAME),
        ("convert", NAME, "--out=converted"),
        ("recl", NAME, "--step=2", "--max_context=4", "--positions=5", "--out=recl"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_takes_a_checkpoint_of_wandb(command, server, words):
    command(*words)
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


def run_in_wandb(path: Path, folder: Path) -> Path:
    """Copy a run's folder, with a checkpoint that a run of W&B has written."""
    import torch

    from txl_lightning.checkpoints.saving import save_checkpoint

    shutil.copytree(path, folder)
    file = folder / "checkpoints" / "best.ckpt"
    content = torch.load(file, weights_only=True)
    content["callbacks"]["WandbRun"] = {"run_id": "abc", "project": "mine", "entity": "me"}
    save_checkpoint(content, file, {"step": 4, "exact": True})
    return folder


def test_evaluate_adds_its_result_to_the_run_that_trained_the_checkpoint(
    command, server, run_folder, tmp_path
):
    folder = run_in_wandb(run_folder, tmp_path / "run")
    done = command("evaluate", folder, "--max_tokens=50", "--wandb=true")
    record = json.loads(done.stdout)
    key = "evaluate/letters.txt/test/segments"
    assert server.summary[f"{key}/nats"] == record["nats"]
    assert server.summary[f"{key}/lengths"]["mem_len"] == 8
    # What training has logged remains.
    assert server.summary["val/nats"] == 2.5
    assert {each["name"] for each in server.find("UpsertBucket")} == {"abc"}


def test_own_network_of_wandb_is_measured_once_its_package_is_allowed(
    command, server, own_package, sizes, text_file, tmp_path
):
    allow = "--allow_imports=my_package"
    words = [word for word in sizes if ".net." not in word]
    words += [allow, "--model.net=my_package.MyConfig", f"--data.path={text_file}"]
    command("fit", *words)
    folder = run_in_wandb(tmp_path / "runs" / "version_0", tmp_path / "run")
    paths = (*(folder / "checkpoints").glob("best.ckpt*"), folder / "config.yaml")
    server.files = {path.name: path.read_bytes() for path in paths}
    words = ("evaluate", NAME, "--max_tokens=50", "--wandb=true")
    assert "add --allow_imports my_package" in command(*words, code=4).stderr
    done = command(*words, allow)
    assert sorted(server.fetched) == sorted(server.files)
    record = json.loads(done.stdout)
    assert record["checkpoint_sha256"] in (folder / "checkpoints" / "best.ckpt.json").read_text()
    assert server.summary["evaluate/letters.txt/test/segments/nats"] == record["nats"]
    assert server.summary["val/nats"] == 2.5


def test_offline_the_result_is_a_run_of_its_own_until_it_is_synced(
    command, server, run_folder, tmp_path
):
    folder = run_in_wandb(run_folder, tmp_path / "run")
    done = command("evaluate", folder, "--max_tokens=50", "--wandb=true", WANDB_MODE="offline")
    assert server.asked == []
    [line] = [line for line in done.stderr.splitlines() if line.startswith("offline: ")]
    [path] = (folder / "wandb").glob("offline-run-*")
    assert str(path) in line
    assert "-abc" not in path.name


@pytest.fixture
def fit(command, sizes, text_file):
    data = (f"--data.path={text_file}", "--trainer.logger=WandbLogger", "--wandb.required=true")
    return partial(command, "fit", *sizes, *data)


def test_text_and_checkpoint_are_inputs_of_a_run_whose_best_checkpoint_is_linked(fit, server):
    done = fit(f"--ckpt_path={NAME}", "--trainer.max_steps=6", "--wandb.registry=model/letters")
    assert "W&B: " not in done.stderr
    inputs = [each["input"] for each in server.find("CreateArtifact")]
    [text] = [each for each in inputs if each["artifactTypeName"] == "dataset"]
    about = json.loads(text["metadata"])
    assert about["name"] == "letters.txt"
    assert server.used == [f"text-{about['fingerprint']}", "checkpoint-abc"]
    [link] = [each["input"] for each in server.find("LinkArtifact")]
    assert base64.b64decode(link["artifactID"]).decode().startswith("checkpoint-")
    names = ("projectName", "artifactPortfolioName")
    assert [link[name] for name in names] == ["wandb-registry-model", "letters"]


def test_what_the_server_refuses_is_a_warning_and_training_goes_on(fit, server, monkeypatch):
    monkeypatch.setattr(WandbServer, "answer_LinkArtifact", lambda *_: {"result": 3}, raising=True)
    done = fit("--wandb.registry=model/letters")
    assert "warning: W&B: wandb.registry: best.ckpt is not linked to model/letters: " in done.stderr


def test_numbers_that_are_not_finite_are_an_alert(fit, server):
    fit("--model.optim.lr=1e38", code=5)
    [alert] = server.find("NotifyScriptableRunAlert")
    assert (alert["title"], alert["severity"]) == ("numbers are not finite", "ERROR")
    assert "loss nan" in alert["text"]


@pytest.mark.parametrize(("number", "n_alert"), [(signal.SIGTERM, 1), (signal.SIGINT, 0)])
def test_a_run_that_is_preempted_is_an_alert(fit, server, tmp_path, number, n_alert):
    process = fit("--trainer.max_steps=1000000", is_awaited=False)
    wait_until((tmp_path / "runs/version_0/checkpoints/last.ckpt").is_file, process)
    process.send_signal(number)
    assert process.wait(120) == EXIT[number]
    titles = [each["title"] for each in server.find("NotifyScriptableRunAlert")]
    assert titles == ["stopped by a signal"] * n_alert


def test_a_checkpoint_of_no_run_of_wandb_is_refused(run_folder, tmp_path):
    with pytest.raises(ValueError, match=r"wandb: invalid true; expected .*--trainer\.logger W"):
        add_evaluation({"callbacks": {}}, RECORD, tmp_path)


def test_other_paths_are_not_changed():
    assert fetch_artifact("runs/version_0") == Path("runs/version_0")
    assert issubclass(CheckpointError, ValueError)
