"""A network of a user's package resumes exactly, with the command line alone."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers.state_networks import SMALL_NETWORKS

ALLOW = "--allow_imports=my_package"
OWN = (
    "fit", ALLOW, "--model.net=my_package.MyConfig", "--model.net.width=8",
    "--data.path=letters.txt", "--data.data_dir=data", "--data.tgt_len=8", "--data.batch_size=4",
    "--trainer.max_steps=40", "--trainer.val_check_interval=10", "--trainer.limit_val_batches=3",
    "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=4",
    "--trainer.enable_progress_bar=false", "--checkpoint.every_n_steps=7",
    "--report.html=false", "--report.sample_len=0",
)  # fmt: skip


@pytest.fixture
def make_place(place, own_package, tmp_path):
    """Return folders with the text and the package."""

    def make(name: str):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "my_package.py").write_text(Path(own_package.__file__).read_text())
        return type(place)(folder, place.server, place.processes)

    return make


@pytest.mark.faults
@pytest.mark.parametrize(
    ("ranks", "options"), [(1, []), (2, ["--data.document_unit=lines", "--data.order=shuffled"])]
)
def test_killed_runs_of_an_own_network_match_an_uninterrupted_one(make_place, ranks, options):
    whole = make_place("whole")
    killed = make_place("killed")
    how = {"command": OWN, "ranks": ranks}
    assert set(whole.end(whole.fork(*options, **how)).codes) == {0}
    for fault in ("5", "val", "mid16", "29"):
        ended = killed.end(killed.fork(*options, "--resume=auto", fault=f"KILL:{fault}", **how))
        assert set(ended.codes) == {-9}, ended.output
    ended = killed.end(killed.fork(*options, "--resume=auto", **how))
    assert set(ended.codes) == {0}, ended.output
    killed.assert_same(whole)
    assert killed.state()["txl_lightning"]["memory"]["h_BD"].any()


@pytest.mark.faults
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_killed_runs_of_each_other_network_match_an_uninterrupted_one(make_place, name):
    whole = make_place("whole")
    killed = make_place("killed")
    net = {"class_path": name, "n_layer": 2, "d_model": 16, "dropout": 0.2} | SMALL_NETWORKS[name]
    words = [f"--model.net={json.dumps(net)}", "--model.gradient_segments=2"]
    how = {"command": (*OWN[:1], *OWN[4:]), "ranks": 1}
    assert set(whole.end(whole.fork(*words, **how)).codes) == {0}
    for fault in ("5", "val", "29"):
        ended = killed.end(killed.fork(*words, "--resume=auto", fault=f"KILL:{fault}", **how))
        assert set(ended.codes) == {-9}, ended.output
    ended = killed.end(killed.fork(*words, "--resume=auto", **how))
    assert set(ended.codes) == {0}, ended.output
    killed.assert_same(whole)


FOLDER = Path(__file__).parents[2] / "configs" / "networks"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.faults
@pytest.mark.parametrize("name", RECIPES)
def test_killed_runs_of_each_recipe_match_an_uninterrupted_one_and_generate(
    make_place, processes, name
):
    """With the network, optimizer, segments and gradients of the recipe, on a small text."""
    whole = make_place("whole")
    killed = make_place("killed")
    for run in (whole, killed):
        text = run.folder / "letters.txt"
        text.write_text(100 * text.read_text())
    words = [f"--config=networks/{name}", "--trainer.default_root_dir=runs", "--data.vocab=bytes"]
    words += [word for word in OWN[4:] if "tgt_len" not in word and "batch" not in word]
    words += ["--trainer.max_steps=12", "--trainer.val_check_interval=6", "--data.batch_size=2"]
    words += ["--data.eval_batch_size=1"]
    how = {"command": ("fit", *words), "ranks": 1}
    assert set(whole.end(whole.fork(**how)).codes) == {0}
    for fault in ("3", "val", "mid10"):
        ended = killed.end(killed.fork("--resume=auto", fault=f"KILL:{fault}", **how))
        assert set(ended.codes) == {-9}, ended.output
    ended = killed.end(killed.fork("--resume=auto", **how))
    assert set(ended.codes) == {0}, ended.output
    killed.assert_same(whole)
    command = [sys.executable, "-m", "txl_lightning", "generate", "--prompt=abc", "--temperature=0"]
    texts = [
        processes.run([*command, str(run.path())], cwd=run.folder, env=os.environ)
        for run in (whole, killed)
    ]
    assert texts[0].stdout == texts[1].stdout
    assert texts[0].stdout.startswith("abc")


@pytest.mark.slow
def test_package_outside_of_the_checkout_trains_is_killed_resumes_and_is_used(
    make_place, processes
):
    whole = make_place("whole")
    killed = make_place("killed")
    program = (sys.executable, "-m", "txl_lightning")

    def run(folder: Path, *words: str):
        done = processes.run([*program, *words], cwd=folder, env=os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(whole.folder, *OWN)
    process = killed.launch(command=OWN, PAUSE="0.05")
    killed.wait_for_step(22)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -9
    run(killed.folder, *OWN, "--resume=auto")
    assert killed.state().keys() == whole.state().keys()
    for name in whole.state():
        assert json.dumps(killed.state()[name], default=str) == json.dumps(
            whole.state()[name], default=str
        )
    record = json.loads(run(killed.folder, "evaluate", "runs/version_0", ALLOW))
    low, high = record["interval"]["nats"]
    assert low < record["nats"] < high
    text = run(killed.folder, "generate", "runs/version_0", ALLOW, "--prompt=abc")
    assert text.startswith("abc")


@pytest.mark.slow
def test_trials_of_a_sweep_train_an_own_network(make_place, processes):
    folder = make_place("sweep").folder
    grid = {"data.batch_size": {"values": [2, 4]}}
    command = ["${env}", "${interpreter}", "-m", "txl_lightning", *OWN, "${args}"]
    command = [word for word in command if word not in (ALLOW, "--data.batch_size=4")]
    config = {"method": "grid", "metric": {"name": "val/loss"}, "parameters": grid}
    (folder / "own.yaml").write_text(json.dumps(config | {"command": command}))
    words = [sys.executable, "-m", "txl_lightning", "sweep", "own.yaml", "--out=out", ALLOW]
    done = processes.run(words, cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "out" / "results.json").read_text())
    assert [row["state"] for row in results["rows"]] == ["complete"] * 2, results


@pytest.mark.slow
def test_wandb_records_a_run_of_an_own_network(make_place, processes):
    folder = make_place("wandb").folder
    words = [sys.executable, "-m", "txl_lightning", *OWN, "--trainer.logger=WandbLogger"]
    done = processes.run(words, cwd=folder, env=os.environ | {"WANDB_MODE": "offline"})
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("runs/wandb/offline-run-*/run-*.wandb")
    for name in (b"my_package.MyConfig", b"train/memory_bytes", b"val/memory_gain"):
        assert name in path.read_bytes()
