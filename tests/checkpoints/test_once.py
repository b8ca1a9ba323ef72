"""Every command reads a checkpoint once."""

from collections import Counter

import pytest
import torch

from txl_lightning import files
from txl_lightning.checkpoints import contents, loading
from txl_lightning.convert import detect

COMMANDS = {
    "evaluate": ["evaluate", "{}", "--max_tokens=99"],
    "generate": ["generate", "{}", "--max_new_tokens=1"],
    "inspect": ["inspect", "{}", "--batch_size=2", "--out=inspected"],
    "recl": ["recl", "{}", "--step=5", "--max_context=10", "--positions=20", "--out=recl"],
    "convert": ["convert", "{}", "--out=converted"],
    "test": ["test", "{}"],
    "resume": ["fit", "--resume=must", "--trainer.max_steps=6"],
    "ckpt_path": ["fit", "--ckpt_path={}", "--trainer.max_steps=6"],
}


@pytest.fixture
def calls(monkeypatch):
    """Count hashed, loaded and matched checkpoints, wherever their functions are called from."""
    counts = Counter()

    def count(name, module, function, is_counted=lambda *_: True):
        original = getattr(module, function)

        def call(*args, **options):
            counts[name] += is_counted(*args)
            return original(*args, **options)

        for user in (contents, files, loading, detect, torch):
            if getattr(user, function, None) is original:
                monkeypatch.setattr(user, function, call)

    # Not the file that is being written, which ends with .part.
    count("hashed", files, "hash_file", lambda path: path.suffix == ".ckpt")
    count("loaded", torch, "load", lambda file, *_: str(file).endswith(".ckpt"))
    count("matched", contents, "match_weights")
    return counts


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_hashes_loads_and_matches_a_checkpoint_once(
    accepted, small, run_folder, calls, name
):
    command, *options = COMMANDS[name]
    path = run_folder / "checkpoints" / "last.ckpt"
    if name == "resume":
        accepted("fit", *small)
    calls.clear()
    settings = small if command == "fit" else []
    accepted(command, *settings, *(option.format(path) for option in options))
    assert (calls["hashed"], calls["loaded"], calls["matched"]) == (1, 1, 1)
