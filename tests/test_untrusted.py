"""What a stranger has written runs nothing: a canary is imported by nobody."""

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import yaml

from txl_lightning import LanguageModel, checkpoints
from txl_lightning.convert import load_any_checkpoint, load_huggingface
from txl_lightning.errors import CheckpointError

NVIDIA = Path(__file__).parent / "golden" / "nvidia" / "checkpoint_best.pt"


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Path:
    """A module that could be imported; the file that it leaves then."""
    (tmp_path / "canary.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sung').touch()\nclass Bird: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "sung"
    sys.modules.pop("canary", None)


def test_the_canary_would_sing(canary, tmp_path):
    subprocess.run([sys.executable, "-c", "import canary"], cwd=tmp_path, check=True)
    assert canary.exists()


@pytest.mark.parametrize(
    "key", ["trainer.callbacks", "trainer.logger", "trainer.plugins", "trainer.strategy"]
)
def test_a_class_path_in_a_config_is_not_imported(txl, small, canary, key):
    part, name = key.split(".")
    value = {"class_path": "canary.Bird"}
    value = [value] if name in ("callbacks", "plugins") else value
    Path("a.yaml").write_text(yaml.safe_dump({part: {name: value}}))
    code, output = txl("fit", *small, "--config=a.yaml")
    assert code == 2
    assert "canary.Bird" in output.err
    assert not canary.exists()


@pytest.fixture
def tampered(run_folder, tmp_path):
    """A checkpoint of ours that says by what it is to be made."""
    held = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    held["hyper_parameters"]["_instantiator"] = "canary.Bird"
    held["hyper_parameters"]["_class_path"] = "canary.Bird"
    torch.save(held, tmp_path / "tampered.ckpt")
    return tmp_path / "tampered.ckpt"


@pytest.mark.parametrize("verb", ["fit", "validate", "generate"])
def test_a_maker_named_in_a_checkpoint_is_not_imported(txl, small, canary, tampered, verb):
    options = small if verb != "generate" else []
    if verb == "fit":
        options = [*options, "--trainer.max_steps=6"]
    code, output = txl(verb, *options, f"--ckpt_path={tampered}")
    assert not canary.exists()
    if verb != "generate":
        assert code == 4
        assert "has a setting that this release does not know" in output.err


def test_nor_by_lightnings_own_way_to_load_one(canary, tampered):
    with pytest.raises(Exception, match="canary"):
        LanguageModel.load_from_checkpoint(tampered)
    assert not canary.exists()


class Song:
    """Sings when it is unpickled, without any module of its own."""

    def __init__(self, sung):
        self.sung = sung

    def __reduce__(self):
        return os.mkdir, (str(self.sung),)


def held_by(kind: str, song) -> object:
    """A checkpoint that a kind of file holds, with a song where weights are."""
    whole = {
        "run": {"hyper_parameters": {"net": {}}, "state_dict": {"a": song}},
        "nvidia": {"model_config": {}, "model_state": {"a": song}},
        "nvidia's vocabulary": {
            "model_config": {},
            "model_state": {},
            "args": argparse.Namespace(a=1),
            "vocab": song,
        },
    }
    return whole.get(kind, {"a": song})


def plain_pickle(held, path):
    path.write_bytes(pickle.dumps(held, protocol=4))


def old_pickle(held, path):
    path.write_bytes(pickle.dumps(held, protocol=2))


def zipped(held, path):
    torch.save(held, path)


def not_zipped(held, path):
    torch.save(held, path, _use_new_zipfile_serialization=False)


WAYS = [zipped, not_zipped, plain_pickle, old_pickle]


@pytest.mark.parametrize("write", WAYS)
def test_the_song_would_be_sung_by_what_executes_pickles(tmp_path, write):
    write({"a": Song(tmp_path / "sung")}, tmp_path / "a.pt")
    if write in (zipped, not_zipped):
        torch.load(tmp_path / "a.pt", weights_only=False)
    else:
        pickle.loads((tmp_path / "a.pt").read_bytes())
    assert (tmp_path / "sung").exists()


def in_folder(path):
    """As Hugging Face has it."""
    (path.parent / "config.json").write_text('{"model_type": "transfo-xl"}')
    path.rename(path.with_name("pytorch_model.bin"))
    return path.parent


ENTRIES = {
    "run": lambda path: checkpoints.load_run(path),
    "nvidia": lambda path: load_any_checkpoint(path),
    "nvidia's vocabulary": lambda path: load_any_checkpoint(path),
    "huggingface": lambda path: load_huggingface(in_folder(path)),
    "original": lambda path: load_any_checkpoint(str(path), args="args.json"),
}


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("write", WAYS)
def test_a_pickle_that_would_sing_is_refused_in_one_line(tmp_path, kind, write):
    path = tmp_path / "folder" / "a.pt"
    path.parent.mkdir()
    write(held_by(kind, Song(tmp_path / "sung")), path)
    with pytest.raises(CheckpointError, match=str(path.parent)) as refusal:
        ENTRIES[kind](path)
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "sung").exists()


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("kind", ["original", "nvidia", "nvidia's vocabulary", "run"])
def test_nor_does_convert_sing(txl, tmp_path, kind, write):
    write(held_by(kind, Song(tmp_path / "sung")), tmp_path / "a.pt")
    for given in (["a.pt"], ["a.pt", "--args=args.json"], ["."]):
        if given == ["."]:
            in_folder(tmp_path / "a.pt")
        code, output = txl("convert", *given, "--out=o")
        assert code == 4
        assert output.err.startswith("error: ")
        assert len(output.err.splitlines()) == 1
    assert not (tmp_path / "sung").exists()
    assert not Path("o").exists()


def test_nor_do_a_program_of_torch_and_an_archive_of_its_first_days(txl, tmp_path):
    """TorchScript holds code; the tar format was read by executing pickles only."""
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.script(torch.nn.Linear(1, 1)).save("script.pt")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Song(tmp_path / "sung"), protocol=2))
    with tarfile.open("old.pt", "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.add("pickle", name)
    for name in ("script.pt", "old.pt"):
        code, output = txl("convert", name, "--out=o")
        assert (code, len(output.err.splitlines())) == (4, 1)
    assert not (tmp_path / "sung").exists()


def test_a_song_says_its_name_and_the_way_out(txl, tmp_path):
    torch.save({"a": Song(tmp_path / "sung")}, "a.pt")
    _, output = txl("convert", "a.pt", "--out=o")
    refused = f"a.pt: refused: to read it would execute {os.mkdir.__module__}.mkdir; save its"
    assert refused in output.err
    assert "torch.save(model.state_dict(), 'sd.pt')" in output.err


def test_a_pickled_vocabulary_is_refused(txl, tmp_path):
    for name in ("vocab.pkl", "words.txt"):
        plain_pickle(Song(tmp_path / "sung"), tmp_path / name)
        code, output = txl("convert", NVIDIA, "--out=o", "--vocab", name)
        assert (code, len(output.err.splitlines())) == (3, 1)
        assert f"vocab: {name}" in output.err
    assert not (tmp_path / "sung").exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".ckpt", ".bin"])
def test_damaged_and_random_files_are_refused_by_name(txl, tmp_path, suffix):
    whole, chance = NVIDIA.read_bytes(), random.Random(0)
    damaged = [whole[:size] for size in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    damaged += [chance.randbytes(size) for size in (1, 100, 5000)]
    damaged += [b"PK\x03\x04", b"X", b"0", b"\x80\x02.", b"a" * 99]
    Path("args.json").write_text(json.dumps({}))
    path = tmp_path / f"a{suffix}"
    for held in damaged:
        path.write_bytes(held)
        code, output = txl("convert", path, "--out=o", "--args=args.json")
        assert (code, len(output.err.splitlines())) == (4, 1), held[:9]
        assert str(path) in output.err
