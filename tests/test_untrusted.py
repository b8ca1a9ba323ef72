"""Nothing in an untrusted file is executed; the canary's file shows if it was."""

import json
import os
import pickle
import random
import sys
import tarfile
from functools import partial
from importlib import import_module
from pathlib import Path

import jsonargparse
import pytest
import torch
import yaml

import txl_lightning
from txl_lightning import LanguageModel
from txl_lightning.checkpoints import load
from txl_lightning.checkpoints.saving import save_checkpoint
from txl_lightning.convert import load_any_checkpoint
from txl_lightning.errors import CheckpointError

NVIDIA = Path(__file__).parent / "golden" / "nvidia" / "checkpoint_best.pt"


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Path:
    """A module that could be imported, and the file that its import would write."""
    (tmp_path / "canary.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sung').touch()\nclass Bird: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "sung"
    sys.modules.pop("canary", None)


@pytest.mark.parametrize("name", ["callbacks", "logger", "plugins", "strategy"])
def test_class_path_in_a_config_is_not_imported(refused, small, canary, name):
    value = {"class_path": "canary.Bird"}
    value = [value] if name in ("callbacks", "plugins") else value
    Path("a.yaml").write_text(yaml.safe_dump({"trainer": {name: value}}))
    code, text = refused("fit", *small, "--config=a.yaml")
    assert (code, "canary.Bird" in text) == (2, True)
    assert not canary.exists()


def test_own_classes_are_used_if_the_command_line_allows_it(
    txl, refused, small, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    hook = "def on_train_end(self, trainer, module): print('my own')"
    text = f"from lightning.pytorch import Callback\nclass Mine(Callback):\n    {hook}\n"
    (tmp_path / "package_of_mine.py").write_text(text)
    own = {"trainer": {"callbacks": "package_of_mine.Mine"}}
    Path("own.yaml").write_text(yaml.safe_dump(own))
    Path("sly.yaml").write_text(yaml.safe_dump(own | {"allow_imports": "package_of_mine"}))
    hint = "package_of_mine.Mine; if it is your own, add --allow_imports package_of_mine to"
    for name, message in (("own", hint), ("sly", "allow_imports")):
        code, line = refused("fit", *small, f"--config={name}.yaml")
        assert (code, message in line) == (2, True), line
    assert "package_of_mine" not in sys.modules
    code, output = txl("fit", *small, "--config=own.yaml", "--allow_imports", "package_of_mine")
    jsonargparse.set_parsing_settings(import_path_denylist=["package_of_mine"])
    assert (code, "my own\n" in output.out) == (0, True), output.err


@pytest.mark.parametrize("name", ["*", "jsonargparse", ""])
def test_not_everything_can_be_allowed(refused, small, name):
    code, line = refused("fit", *small, f"--allow_imports={name}")
    assert (code, "allow_imports: invalid" in line) == (2, True), line


def test_class_path_in_a_checkpoint_is_not_imported(refused, small, canary, run_folder):
    content = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"] |= {"_instantiator": "canary.Bird", "_class_path": "canary.Bird"}
    save_checkpoint(content, Path("tampered.ckpt"), {"step": 4, "exact": True})
    for command in ("fit", "validate"):
        code, text = refused(command, *small, "--ckpt_path=tampered.ckpt")
        assert (code, "has a setting that this release does not know" in text) == (4, True)
    load(Path("tampered.ckpt"))
    with pytest.raises(Exception, match="canary"):
        LanguageModel.load_from_checkpoint("tampered.ckpt")
    assert not canary.exists()
    import_module("canary")
    assert canary.exists()


def test_sizes_beyond_those_of_the_weights_are_refused_before_a_network_is_built(
    txl, refused, small, run_folder
):
    last = run_folder / "checkpoints" / "last.ckpt"
    sizes = {"n_layer": 10**9}
    content = torch.load(last, weights_only=True)
    content["hyper_parameters"]["net"] |= sizes
    torch.save(content, "huge.ckpt")
    assert txl("convert", last, "--out=huge")[0] == 0
    config = Path("huge", "config.json")
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"net": settings["net"] | sizes}))
    for command in ("fit", "test"):
        for path in ("huge.ckpt", "huge"):
            code, line = refused(command, *small, f"--ckpt_path={path}")
            assert (code, "huge" in line) == (4, True), line


class Song:
    """Creates a folder when it is unpickled, with only standard modules."""

    def __init__(self, sung):
        self.sung = sung

    def __reduce__(self):
        return os.mkdir, (str(self.sung),)


@pytest.mark.parametrize("command", ["fit", "validate", "generate"])
def test_file_with_code_is_refused_and_not_executed(
    refused, text_file, monkeypatch, tmp_path, command
):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    data = [] if command == "generate" else [f"--data.path={text_file}"]
    song = {"hyper_parameters": {"net": {}}, "state_dict": Song(tmp_path / "sung")}
    for content in (song, {"hyper_parameters": {"layers": 3}}, [1, 2], None):
        torch.save(content, "foreign.ckpt")
        code, text = refused(command, *data, "--ckpt_path=foreign.ckpt")
        problem = ": refused: " if content is song else " is not a checkpoint written by fit"
        assert (code, f"foreign.ckpt{problem}" in text) == (4, True)
    assert not (tmp_path / "sung").exists()


FORMATS = {
    "zip": torch.save,
    "old torch": partial(torch.save, _use_new_zipfile_serialization=False),
    "pickle": lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2)),
}
CONTENTS = {
    "run": lambda song: {"hyper_parameters": {"net": {}}, "state_dict": {"a": song}},
    "nvidia": lambda song: {"model_config": {}, "model_state": {"a": song}},
    "vocabulary": lambda song: {"model_config": {}, "model_state": {}, "vocab": song},
    "state_dict": lambda song: {"a": song},
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*[(kind, "zip") for kind in CONTENTS], *[("state_dict", name) for name in FORMATS][1:]],
)
def test_malicious_pickle_is_refused_in_one_line(tmp_path, kind, name):
    folder = tmp_path / "folder"
    path = tmp_path / "folder" / "a.pt"
    sung = tmp_path / "sung"
    folder.mkdir()
    FORMATS[name](CONTENTS[kind](Song(sung)), path)
    (folder / "config.json").write_text('{"model_type": "transfo-xl"}')
    (folder / "pytorch_model.bin").write_bytes(path.read_bytes())
    with_args = partial(load_any_checkpoint, args="args.json")
    loads = {load_any_checkpoint: path, with_args: path, txl_lightning.load: path}
    for load_any, source in (*loads.items(), (load_any_checkpoint, folder)):
        with pytest.raises(CheckpointError, match=str(folder)) as refusal:
            load_any(source)
        assert len(str(refusal.value).splitlines()) == 1
    assert not sung.exists()
    if name == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert sung.exists()


def test_torchscript_and_the_first_archives_of_torch_are_refused(tmp_path):
    """TorchScript contains code; the tar format can only be read by executing pickles."""
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.script(torch.nn.Linear(1, 1)).save(tmp_path / "script.pt")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Song(tmp_path / "sung"), protocol=2))
    with tarfile.open(tmp_path / "old.pt", "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.add(tmp_path / "pickle", name)
    for name in ("script.pt", "old.pt"):
        with pytest.raises(CheckpointError, match=name):
            load_any_checkpoint(tmp_path / name)
    assert not (tmp_path / "sung").exists()


def test_refused_pickle_is_named_with_instructions(refused, tmp_path):
    torch.save({"a": Song(tmp_path / "sung")}, "a.pt")
    code, text = refused("convert", "a.pt", "--out=o")
    assert (code, Path("o").exists()) == (4, False)
    assert f"a.pt: refused: reading it would execute {os.mkdir.__module__}.mkdir; save its" in text
    assert "torch.save(model.state_dict(), 'sd.pt')" in text


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_and_random_files_are_refused_by_name(tmp_path, suffix):
    whole = NVIDIA.read_bytes()
    chance = random.Random(0)
    damaged = [whole[:size] for size in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    damaged += [chance.randbytes(size) for size in (1, 100, 5000)]
    damaged += [b"PK\x03\x04", b"X", b"0", b"\x80\x02.", b"a" * 99]
    path = tmp_path / f"a{suffix}"
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=str(path)) as refusal:
            load_any_checkpoint(path)
        assert len(str(refusal.value).splitlines()) == 1
