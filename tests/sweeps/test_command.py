"""A trial's command is what W&B's agent would run."""

import json
import sys
from pathlib import Path

import pytest
from wandb import wandb_agent

from txl_lightning.sweeps.command import command_of, expanded

PARAMETERS = {"model.net.mem_len": 7, "model.compile": False, "data.path": "a text", "x": None}
COMMANDS = [
    ["${env}", "${interpreter}", "-m", "txl_lightning", "fit", "${args}"],
    ["${env}", "A=${envvar:SWEPT}", "${interpreter}", "${program}", "--n", 3, "${args_no_hyphens}"],
    ["${interpreter}", "${args_no_boolean_flags}", "${args_json}", "${args_no_equals}"],
    ["${interpreter}", "${args_append_hydra}", "${args_override_hydra}", "${args_json_file}"],
    None,
]


@pytest.fixture
def of_agent(monkeypatch, tmp_path):
    """The command that W&B's agent starts for a file."""
    started = []

    class Process:
        def __init__(self, command, **_):
            started.append(command)

    monkeypatch.setattr(wandb_agent, "AgentProcess", Process)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "one")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def run(command, program):
        agent = wandb_agent.Agent.__new__(wandb_agent.Agent)
        agent._in_jupyter, agent._function, agent._forward_signals = False, None, False
        agent._run_processes, agent._sweep_command = {}, list(command or [])
        given = {name: {"value": value} for name, value in PARAMETERS.items()}
        agent._command_run({"run_id": "one", "program": program, "args": given})
        return started.pop()

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_macros_stand_for_what_they_do_for_the_agent(command, of_agent, monkeypatch, tmp_path):
    monkeypatch.setenv("SWEPT", "yes")
    config = {"command": command, "program": "train.py"}
    theirs = of_agent(command, "train.py")
    ours = expanded(config, PARAMETERS, tmp_path / "args.json")
    args_file = str(tmp_path / "wandb" / "sweep-one" / "config-one.json")
    same = {"python": sys.executable, args_file: str(tmp_path / "args.json")}
    assert ours == [same.get(word, word) for word in theirs]
    if "${args_json_file}" in (command or []):
        assert json.loads(Path(ours[-1]).read_text()) == json.loads(Path(args_file).read_text())


def test_a_trial_has_its_folder_and_goes_on_where_it_was(tmp_path):
    command = ["${interpreter}", "-m", "txl_lightning", "fit", "${args}"]
    words = command_of({"command": command}, {"model.optim.lr": 0.1}, tmp_path)
    assert words[:5] == [sys.executable, "-m", "txl_lightning", "fit", "--model.optim.lr=0.1"]
    assert words[5:] == [f"--trainer.default_root_dir={tmp_path}", "--resume=auto"]
    # Read twice, it is the same: W&B's functions change what they are given.
    assert words == command_of({"command": command}, {"model.optim.lr": 0.1}, tmp_path)


@pytest.mark.parametrize("word", ["${arguments}", "${program}"])
def test_a_macro_that_stands_for_nothing_is_refused(word, tmp_path):
    with pytest.raises(ValueError, match=r"command: invalid \$\{\w+\}; .*\$\{args\}"):
        expanded({"command": ["${interpreter}", word]}, {}, tmp_path)
