"""The recipes of docs/cluster.md, run as their schedulers run them."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from torch.testing import assert_close

from txl_lightning.files import find_config

pytestmark = pytest.mark.faults

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "cluster.md").read_text()
KUBERNETES, SKYPILOT = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
[RAY_TRAIN] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROGRAM = """#!PYTHON
# The program of a recipe: fit with its options, but small, and without its configs.
import os, sys
words = sys.argv[1:]
while "--config" in words:
    at = words.index("--config")
    del words[at : at + 2]
os.execv(sys.executable, [sys.executable, DRIVER, "fit", *OPTIONS, *words[1:]])
"""


class Recipe(NamedTuple):
    """The command of a recipe, its environment, and the seconds that it has after SIGTERM."""

    command: list[str]
    environment: dict[str, str]
    grace: float
    loses: signal.Signals  # that a machine that is taken away sends


def load_kubernetes() -> Recipe:
    pod = KUBERNETES["spec"]["template"]["spec"]
    [container] = pod["containers"]
    # Required by podFailurePolicy.
    assert pod["restartPolicy"] == "Never"
    environment = {each["name"]: each["value"] for each in container["env"]}
    command = [*container["command"], *container["args"]]
    return Recipe(command, environment, pod["terminationGracePeriodSeconds"], signal.SIGTERM)


def load_skypilot() -> Recipe:
    assert SKYPILOT["resources"]["use_spot"]
    return Recipe(["bash", "-c", SKYPILOT["run"]], SKYPILOT["envs"], 0, signal.SIGKILL)


@pytest.fixture
def start(place):
    """Start the command of a recipe, as its scheduler does, with a mirror on this disk."""
    (place.folder / "bin").mkdir()
    text = PROGRAM.replace("PYTHON", sys.executable)
    text = text.replace("DRIVER", repr(str(HERE / "driver.py")))
    program = place.folder / "bin" / "txl-lightning"
    program.write_text(text.replace("OPTIONS", repr(place.options)))
    program.chmod(0o755)

    def run(recipe: Recipe, **environment: str) -> subprocess.Popen:
        given = recipe.environment | {"MIRROR": f"file://{place.folder}/mirror"}
        assert given.keys() == {"MIRROR"}
        # Kubernetes itself replaces $(NAME).
        command = [word.replace("$(MIRROR)", given["MIRROR"]) for word in recipe.command]
        path = f"{place.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        settings = place.settings("") | given | {"PATH": path} | environment
        with place.log.open("ab") as log:
            how = {"cwd": place.folder, "stdout": log, "stderr": log}
            return place.processes.start(command, env=os.environ | settings, **how)

    return run


@pytest.mark.parametrize("load", [load_kubernetes, load_skypilot])
def test_run_on_machines_that_are_taken_away_is_bit_identical_to_an_uninterrupted_one(
    place, whole, start, load
):
    recipe = load()
    words = " ".join(recipe.command).split()
    assert all(Path(find_config(words[n + 1])).is_file() for n in find_all(words, "--config"))
    for step in (13, 24):
        process = start(recipe, PAUSE="0.05")
        place.wait_for_step(step)
        place.processes.alive()
        os.killpg(process.pid, recipe.loses)
        ended = place.end(process)
        # A saved run is no failure of the job.
        assert ended.code == (143 if recipe.loses == signal.SIGTERM else -9), ended.output
        assert recipe.loses == signal.SIGKILL or ended.seconds < recipe.grace
        for name in ("runs", "data"):
            shutil.rmtree(place.folder / name)
    ended = place.end(start(recipe))
    assert ended.code == 0, ended.output
    assert "of version_0 is fetched from file://" in ended.output
    place.assert_same(whole())


def find_all(words: list[str], word: str) -> list[int]:
    return [n for n, each in enumerate(words) if each == word]


def test_kubernetes_knows_our_exit_codes():
    rules = KUBERNETES["spec"]["podFailurePolicy"]["rules"]
    rules = [rule for rule in rules if "onExitCodes" in rule]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules}
    # 1, 6 and 7 may be the machine's.
    assert codes == {"Ignore": [143], "FailJob": [2, 3, 4, 5]}


DYING = """
import os, signal
from pathlib import Path
from lightning.pytorch import Callback

class Dying(Callback):
    def on_train_batch_end(self, trainer, *_):
        died = Path(os.environ["DIED"])
        if trainer.global_rank == 1 and trainer.global_step == 12 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_run_on_two_workers_of_ray_goes_on_from_its_last_report_when_one_is_killed(
    place, whole, processes, repository
):
    """The second one is killed after step 12; each worker's folder is lost with it."""
    pytest.importorskip("ray", reason="no ray: pip install 'ray[train]'")
    reports = place.folder / "reports"
    (place.folder / "dying.py").write_text(DYING)
    (place.folder / "ray_train.py").write_text(RAY_TRAIN)
    command = [sys.executable, place.folder / "ray_train.py", "2", reports, *place.options]
    command += ["--allow_imports=dying", "--trainer.callbacks+=dying.Dying"]
    command += [f"--data.path={place.folder}/letters.txt", f"--data.data_dir={place.folder}/data"]
    paths = os.pathsep.join([str(repository), str(place.folder)])
    environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "DIED": str(place.folder / "died")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(place.folder)}
    done = processes.run(command, env=os.environ | environment, cwd=repository, limit=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place.folder / "died").exists()
    [last] = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    step, _, path = last.removeprefix("step ").partition(": ")
    assert step == "40"
    assert "version_0/checkpoints/last.ckpt" in done.stdout + done.stderr
    ours, theirs = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        for folder in (Path(path), whole(ranks=2).path().parents[1])
    )
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
        assert_close(ours[name], theirs[name], rtol=0, atol=0)
    memory = [state["txl_lightning"]["memory"] for state in (ours, theirs)]
    assert_close(*memory, rtol=0, atol=0)
