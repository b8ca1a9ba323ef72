"""A signal is deferred to the end of the step; training continues exactly from its checkpoint."""

import csv
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
import yaml

from txl_lightning.checkpoints import load

pytestmark = pytest.mark.faults

CODES = {"TERM": 143, "INT": 130, "HUP": 143}


@pytest.mark.parametrize(
    ("fault", "step"),
    [("INT:13", 13), ("HUP:mid16", 17), ("TERM:val", 10)],
)
def test_signal_stops_training_after_the_step_and_it_continues_exactly(place, finish, fault, step):
    ended = place.fit(fault=fault)
    assert ended.code == CODES[fault.split(":")[0]], ended.output
    assert place.state()["global_step"] == step
    assert f"saved after step {step}" in ended.output
    finish()


def test_signal_during_gradient_accumulation_waits_for_the_end_of_the_step(place, finish):
    options = ["--trainer.accumulate_grad_batches=3", "--trainer.val_check_interval=30"]
    # The callback runs after each batch: after the first one with global_step 5, the sixth step is
    # incomplete.
    assert place.fit(*options, fault="TERM:mid5").code == 143
    assert place.state()["global_step"] == 6
    assert max(line["batch"] for line in place.lines()) == 3 * 6 - 1
    finish(*options)


@pytest.mark.parametrize(("ranks", "whom"), [(1, ""), (2, ":1")])
def test_usr1_to_a_rank_saves_on_all_and_training_continues(place, finish, ranks, whom):
    # Nothing else saves before step 10.
    rare = "--checkpoint.every_n_steps=30"
    ended = place.fit(rare, fault=f"USR1:5{whom},KILL:8", ranks=ranks)
    assert set(ended.codes) == {-9}
    assert "saved after step" in ended.output
    assert place.state()["global_step"] in (5, 6)
    finish(rare, ranks=ranks)


@pytest.mark.parametrize(("name", "rank"), [("TERM", ""), ("TERM", "0"), ("INT", "1")])
def test_ranks_agree_when_to_stop_whichever_got_the_signal(place, finish, name, rank):
    ended = place.fit(fault=f"{name}:13:{rank}", ranks=2)
    assert ended.codes == [CODES[name]] * 2, ended.output
    assert place.state()["global_step"] in (13, 14)
    finish(ranks=2)


@pytest.mark.parametrize(
    ("launcher", "to"),
    [("lightning", "first"), ("lightning", "all"), ("torchrun", "second"), ("torchrun", "all")],
)
def test_processes_of_a_launcher_end_in_time_and_exactly(place, finish, launcher, to):
    process = place.launch(launcher=launcher, PAUSE="0.2")
    since = place.wait_for_step(3)
    alive = place.alive()
    others = [pid for pid in alive if pid != process.pid]
    for pid in {"first": [process.pid], "second": others, "all": alive}[to]:
        os.kill(pid, signal.SIGTERM)
    ended = place.end(process, since)
    assert ended.seconds < 30
    assert place.alive() == []
    # torchrun's own code says nothing of the processes: these saved, not crashed.
    assert ended.code in ({143} if launcher == "lightning" else {1, 143, -15}), ended.output
    assert ended.output.count("saved after step") == 1, ended.output
    if (launcher, to) == ("torchrun", "second"):
        # It ends a process whose handlers are gone, while Python ends, by its own SIGTERM (-15).
        codes = set(re.findall(r"exitcode +: (-?\d+) ", ended.output))
        assert {"143"} <= codes <= {"143", "-15"}, ended.output
    finish(ranks=2)


def test_third_signal_after_two_seconds_stops_at_once(place):
    process = place.fork(PAUSE="20")
    place.wait_for_step(0)
    time.sleep(1)
    # The terminal or the scheduler may repeat a signal: the first two wait for the step.
    for pause in (0.5, 2.5):
        os.kill(process[0].pid, signal.SIGTERM)
        time.sleep(pause)
    assert process[0].exitcode is None
    since = time.monotonic()
    os.kill(process[0].pid, signal.SIGTERM)
    ended = place.end(process, since)
    assert ended.code == 143
    assert ended.seconds < 5
    assert "TERM again: stopped at once" in ended.output


CHECKPOINT = "runs/version_0/checkpoints/last.ckpt"
TEXT = ["--data.path=letters.txt", "--data.tgt_len=8", "--data.batch_size=4"]
COMMANDS = {
    "test": [*TEXT, f"--ckpt_path={CHECKPOINT}"],
    "predict": [*TEXT, f"--ckpt_path={CHECKPOINT}"],
    "prepare": ["letters.txt", "--vocab=bpe"],
    "evaluate": [CHECKPOINT, "--path=letters.txt", "--batch_size=1", "--tgt_len=8"],
    "generate": [f"--ckpt_path={CHECKPOINT}", "--prompt=a", "--out_ids=ids.npy"],
    "convert": [CHECKPOINT],
}
AT_ONCE = {
    "INT:{0}": {130}, "TERM:{0}": {143}, "HUP:{0}": {143}, "USR1:{0}": {0},
    "INT:{0},INT:{1}": {130}, "INT:{0},TERM:{1}": {130, 143},
}  # fmt: skip  # signals at one or two moments, and the exit codes


@pytest.mark.parametrize("command", COMMANDS)
def test_signal_at_any_moment_ends_a_command_that_trains_nothing(place, command, count):
    """Also Ctrl-C twice; USR1 asks for a checkpoint, and there is none."""
    assert place.fit("--trainer.max_steps=3").code == 0
    chance = random.Random(command)
    words = [command, *COMMANDS[command]]
    # A result of their own: what an earlier run has prepared would end a later one at once.
    fresh = {"convert": "--out=converted{}", "prepare": "--data_dir=data{}"}.get(command, "")

    def run(nth: object, fault: str = ""):
        own = [fresh.format(nth)] if fresh else []
        return place.end(place.fork(*own, command=words, fault=fault, CALLS="calls"))

    assert run("whole").code == run("again").code == 0
    n_call = int((place.folder / "calls").read_text())
    n_run = count(6, 30)
    for nth in range(n_run):
        fault, codes = list(AT_ONCE.items())[nth % len(AT_ONCE)]
        first = 1 + int(n_call * chance.uniform(nth, nth + 1) / n_run)
        fault = fault.format(f"{first}c", f"{first + chance.randrange(1, 50)}c")
        ended = run(nth, fault)
        # The last signal of all may come after a command's result.
        assert ended.code in codes | ({0} if nth == n_run - 1 else set()), (fault, ended.output)
        assert "Traceback" not in ended.output
        if (place.folder / f"converted{nth}" / "config.json").exists():
            load(place.folder / f"converted{nth}")
    assert run("last").code == 0


def test_sweep_that_is_interrupted_at_any_moment_has_the_results_of_a_whole_one(place, count):
    script = Path(__file__).parents[1] / "sweeps" / "script.py"
    command = ["${interpreter}", str(script), "--wait=0.05", "${args}"]
    parameters = {"lr": {"values": [n / 10 for n in range(count(6, 12))]}}
    search = {"method": "grid", "metric": {"name": "val/bits_per_byte"}, "command": command}
    (place.folder / "s.yaml").write_text(yaml.safe_dump(search | {"parameters": parameters}))

    def sweep(out: str, fault: str = ""):
        while True:
            ended = place.end(place.fork("--out", out, command=["sweep", "s.yaml"], fault=fault))
            # The trial of a killed sweep has its folder until it ends.
            if ended.code != 6:
                return ended

    def rows(out: str) -> list[dict[str, str]]:
        table = list(csv.DictReader((place.folder / out / "results.csv").read_text().splitlines()))
        return [{key: row[key] for key in ("trial", "state", "value", "lr")} for row in table]

    whole = sweep("whole")
    assert whole.code == 0
    chance = random.Random(0)
    faults = {**AT_ONCE, "KILL:{0}": {-9}}
    interrupted = 0
    for nth in range(count(7, 21)):
        fault, codes = list(faults.items())[nth % len(faults)]
        moment = chance.uniform(0.1, max(whole.seconds / 4, 0.2))
        fault = fault.format(f"{moment:.3f}s", f"{moment + 1e-4:.4f}s")
        ended = sweep("parts", fault)
        assert ended.code in codes | {0}, (fault, ended.output)
        assert "Traceback" not in ended.output
        interrupted += ended.code != 0
    assert interrupted >= 2
    assert sweep("parts").code == 0
    assert rows("parts") == rows("whole")
    assert {row["state"] for row in rows("whole")} == {"complete"}
