"""Networks that fit and convert wrote; folders of safetensors and JSON."""

import json
import os
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning.checkpoints import load, load_checkpoint, save_folder
from txl_lightning.checkpoints.contents import load_content, load_json, refuse_invalid_values
from txl_lightning.convert import load_any_checkpoint
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import CheckpointError
from txl_lightning.runs.folder import find_checkpoint

VOCAB = Characters("abcdefghijk")


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "shaw", "clamp_len": 4, "memory_source": "same_layer", "norm": "pre"},
        {"cutoffs": (3, 7), "div_val": 2, "tie_projs": (False, True, True), "d_embed": 12},
        {"d_embed": 12, "tie_projs": (True,), "same_length": "mem_len+1"},
        {"tie_weight": False, "untie_r": True},
    ],
)
def test_network_is_bit_identical_after_a_round_trip_with_shared_weights(
    make_net, tmp_path, changes
):
    net = make_net(**changes)
    save_folder(net, tmp_path, VOCAB)
    random_numbers = torch.get_rng_state()
    back, vocab = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), random_numbers)
    assert (back.config, vocab, back.training) == (net.config, VOCAB, False)
    torch.testing.assert_close(back.state_dict(), net.state_dict(), rtol=0, atol=0)
    counts = [len(list(each.parameters())) for each in (net, back)]
    assert counts == [len(load_file(tmp_path / "model.safetensors"))] * 2


def test_folder_without_a_vocabulary_has_two_files(make_net, tmp_path):
    save_folder(make_net(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    about = json.loads((tmp_path / "config.json").read_text())["txl_lightning"]
    assert (about.pop("format"), list(about)) == (1, ["rest", "weights_sha256"])
    assert load_checkpoint(tmp_path).load_vocabulary() is None


@pytest.fixture
def folder(make_net, tmp_path):
    save_folder(make_net(), tmp_path, VOCAB)
    return tmp_path


def change_without_checksums(folder, sizes=None):
    """Change sizes of the network, and remove the checksums from a folder's settings."""
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    net = settings["net"] | (sizes or {})
    path.write_text(json.dumps({"txl_lightning": {"format": 1}, "net": net}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"txl_lightning": {"format": 2}}, "written by a later release"),
        ({"net": {"n_layer": 0}}, "n_layer: invalid 0"),
        ({"net": {"n_layer": 10**9}}, "n_layer: invalid 1000000000; expected at most 10,000"),
        ({"net": {"kernel": "triton"}}, "kernel: invalid 'triton'; expected .*per_head.*sdpa"),
        ({"net": {"colour": 1}}, r"a setting has a wrong type \(.*colour"),
        ({"txl_lightning": {}}, r"a setting has a wrong type \('format"),
        ('{"model_type": "transfo-xl"}', "not in our format; txl-lightning convert .* --out NEW"),
        ("[]", r"content: invalid \[\]; expected settings by name"),
        ("[" * 100_000, "damaged, or not JSON"),
    ],
)
def test_invalid_settings_are_refused_with_their_file(folder, change, message):
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps(settings | change))
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        load_checkpoint(folder).build()


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_layer": 9999}, "n_layer: invalid 9999; expected at most 2[0-9]"),
        ({"d_model": 10**9}, "net: sizes beyond those of tensors"),
        ({"d_model": 10**30}, "a setting has a wrong type"),
        ({"d_inner": 10**12}, r"invalid \[32, 8\] float64; expected \[1000000000000, 8\]"),
    ],
)
def test_absurd_sizes_are_compared_with_the_weights_before_anything_is_built(
    folder, sizes, message
):
    change_without_checksums(folder, sizes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder).build()


def test_setting_that_is_infinite_is_refused_with_its_file(tmp_path):
    message = "a: a setting has a wrong type"
    with pytest.raises(CheckpointError, match=message), refuse_invalid_values(tmp_path / "a"):
        int(float("inf"))


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
def test_invalid_weights_are_refused_with_their_file_and_name(folder):
    change_without_checksums(folder)
    path = folder / "model.safetensors"
    name = "layers.0.attention.q_net.weight"
    whole = load_file(path)
    for message, weights in {
        f"missing: {name}$": {n: whole[n] for n in whole if n != name},
        "left over: extra$": whole | {"extra": torch.zeros(1)},
        rf"{name}: invalid \[1\] float32; expected \[8, 8\]": whole | {name: torch.zeros(1)},
        rf"{name}: invalid \[8, 8\] int64": whole | {name: whole[name].long()},
    }.items():
        save_file(weights, path)
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: state_dict: {message}"):
            load_checkpoint(folder).build()
    for size in (path.stat().st_size - 1, 100, 0):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged, or not a safe"):
            load_checkpoint(folder).build()


def test_60_flipped_bits_of_the_weights_are_refused_and_a_missing_checksum_is_a_warning(folder):
    path = folder / "model.safetensors"
    chance = random.Random(0)
    whole = path.read_bytes()
    for _ in range(60):
        flipped = bytearray(whole)
        place = chance.randrange(8 * len(whole))
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
            load_checkpoint(folder).build()
    path.write_bytes(whole)
    change_without_checksums(folder)
    with pytest.warns(UserWarning, match=r"safetensors: cannot be verified: config\.json does"):
        load_checkpoint(folder).build()
    # The warning comes only once.
    load_checkpoint(folder).build()


@pytest.mark.parametrize(
    ("name", "before", "after"), [("config.json", '"mem_len": 6', '"mem_len": 7'),
                                  ("vocab.json", "abc", "Abc")]
)  # fmt: skip
def test_settings_or_a_vocabulary_that_were_changed_are_refused(folder, name, before, after):
    path = folder / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(CheckpointError, match=r"config\.json: damaged: it, or vocab\.json, was"):
        load_checkpoint(folder).build()


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
def test_vocabulary_of_another_size_and_missing_files_are_refused(folder):
    change_without_checksums(folder)
    (folder / "vocab.json").write_text(Characters("ab").to_json())
    with pytest.raises(ValueError, match=r"vocab\.json: it has 2 tokens; the network has 11"):
        load_checkpoint(folder).build()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: no such file"):
        load_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint in this folder; expected a run's"):
        load_checkpoint(folder)


NETS = [{"layers": 3}, {}]
FOREIGN = [{"state_dict": {}}, [1, 2], *({"hyper_parameters": {"net": net}} for net in NETS)]
# torch raises another exception for each of these.
GARBAGE = [b"X\x01\x00\x00\x00\xff", b"0", b"PK\x03\x04", b"a" * 99, b""]


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
@pytest.mark.parametrize("content", [*FOREIGN, *GARBAGE])
def test_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    path = tmp_path / "other.ckpt"
    path.write_bytes(content) if content in GARBAGE else torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"other\.ckpt is not a checkpoint written by fit"):
        load(path)


def test_missing_checkpoint_error_lists_existing_ones(tmp_path, run_folder):
    with pytest.raises(ValueError, match=r"best\.ckpt: no such file; expected a"):
        load_checkpoint(tmp_path / "best.ckpt")
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(ValueError, match=r"best\.ckpt: no such file \(there is last\.ckpt\)"):
        load_checkpoint(tmp_path / "best.ckpt")
    for folder in (run_folder, run_folder / "checkpoints"):
        assert find_checkpoint(folder) == run_folder / "checkpoints" / "best.ckpt"
    assert find_checkpoint(tmp_path) == tmp_path / "last.ckpt"


@pytest.mark.parametrize("kind", ["run", "converted"])
def test_a_network_in_a_folder_whose_name_is_not_utf8_is_loaded(
    make_net, tmp_path, run_folder, kind
):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    if kind == "run":
        shutil.copytree(run_folder, odd)
    else:
        odd.mkdir()
        save_folder(make_net(), odd, VOCAB)
    network, vocab = load(odd)
    assert vocab.n_token == network.config.n_token


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="reading fails only in Linux")
@pytest.mark.parametrize("read", [load_content, load_json])
def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, read):
    # The first byte of a process's memory is a file's that no one can read.
    (tmp_path / "best.ckpt").symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match=r"best\.ckpt: cannot be read \(Input/output error"):
        read(tmp_path / "best.ckpt")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
PAGES = [b"<!DOCTYPE html>\n<html>Not found</html>", b"\n<html lang='en'>Sign in</html>"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(POINTER, "a Git LFS pointer .* git lfs pull"), *((page, "a web page") for page in PAGES)],
)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.json"])
def test_a_file_of_a_folder_without_its_content_is_named_as_what_it_is(
    folder, content, expected, name
):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}: {expected}"):
        load(folder)


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("name", ["a.ckpt", "a.pt", "a.bin", "a.safetensors"])
def test_a_pointer_in_place_of_a_checkpoint_is_named_as_what_it_is(tmp_path, name, has_manifest):
    path = tmp_path / name
    path.write_bytes(POINTER)
    if has_manifest:
        entry = {"0" * 64: {"step": 1, "exact": True, "bytes": 9}}
        (tmp_path / f"{name}.json").write_text(json.dumps(entry))
    for read in (load, load_content, load_any_checkpoint):
        with pytest.raises(CheckpointError, match=rf"{name}: a Git LFS pointer"):
            read(path)
