"""inspect and recl: tables and figures of a model, on its own text or another."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.pictures import has_curves
from txl_lightning import stream_nats
from txl_lightning.analysis.context_length import compute_recl, score_context, spread_targets
from txl_lightning.checkpoints import load, load_checkpoint
from txl_lightning.checkpoints.saving import manifest_path
from txl_lightning.commands.inputs import choose_split, pick_device, read_ids
from txl_lightning.files import hash_file
from txl_lightning.runs.listing import shorten_paths


@pytest.fixture
def loaded(checkpoint):
    """A model, and the ids of its validation text."""
    loaded = load_checkpoint(checkpoint)
    model, vocab = loaded.build()
    return model, read_ids(loaded, vocab, None, "val")


def test_text_ids_are_those_of_the_run_or_of_a_file(run_folder, checkpoint):
    loaded = load_checkpoint(checkpoint)
    vocab = loaded.load_vocabulary()
    whole = (run_folder.parent / "letters.txt").read_bytes()
    parts = {"train": whole[:5400], "val": whole[5400:5700], "test": whole[5700:]}
    for split, text in parts.items():
        assert read_ids(loaded, vocab, None, split).tobytes() == text


def test_words_are_read_with_the_checkpoints_vocabulary(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    checkpoint = load_checkpoint("runs/version_0/checkpoints/last.ckpt")
    vocab = checkpoint.load_vocabulary()
    (tmp_path / "other.txt").write_text("cd ab\nxy\n")
    for path, expected in (("other.txt", {"cd", "ab", "<unk>"}), (None, {"ab", "cd"})):
        ids = read_ids(checkpoint, vocab, path, None).tolist()
        assert set(vocab.decode(ids).split()) == expected


def test_a_split_is_that_of_a_run_or_a_store_and_refused_of_a_file(accepted, text_file, tmp_path):
    accepted("prepare", text_file, f"--out={tmp_path / 'store'}", "--vocab=bytes")
    for path in (None, str(tmp_path / "store")):
        assert [choose_split(path, split) for split in (None, "train")] == ["val", "train"]
        with pytest.raises(ValueError, match="split: invalid dev; expected one of train, val, te"):
            choose_split(path, "dev")
    assert choose_split(str(text_file), None) is None
    with pytest.raises(ValueError, match="split: invalid train; expected left out with a path"):
        choose_split(str(text_file), "train")


def test_omitted_device_is_a_gpu_if_present(monkeypatch):
    for has_gpu, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert (pick_device(None), pick_device("cpu")) == (expected, "cpu")


def test_inspect_writes_each_table_and_its_picture(txl, checkpoint, read_table):
    code, output = txl("inspect", checkpoint, "--batch_size=2", "--out=out")
    assert (code, "written to out" in output.out) == (0, True)
    for name, n_row in (("positions", 2 * 8), ("memory", 6), ("attention", 2)):
        rows, content = read_table(f"out/{name}")
        assert len(rows) == n_row
        assert (content["tokens"], content["tgt_len"], content["unit"]) == (300, 8, "byte")
        assert has_curves(f"out/{name}.png")
    memory = read_table("out/memory")[1]["rows"]
    assert [row["mem_len"] for row in memory] == [0, 2, 4, 8, 16, 32]


def test_inspect_reads_a_short_text_in_fewer_rows(txl, checkpoint, read_table):
    for tokens, rows in ((300, 6), (99, 2)):
        assert txl("inspect", checkpoint, f"--tokens={tokens}", "--out=out")[0] == 0
        assert read_table("out/memory")[1]["batch_size"] == rows


def test_inspect_measures_the_nats_of_stream_nats(txl, checkpoint, loaded, read_table):
    options = ("--batch_size=1", "--tgt_len=10", "--mem_lens", "20", "5", "--tokens=200")
    assert txl("inspect", checkpoint, *options, "--out=inspect")[0] == 0
    rows = read_table("inspect/memory")[1]["rows"]
    assert [row["mem_len"] for row in rows] == [0, 5, 8, 20]
    model, ids = loaded
    for row in rows:
        lengths = {"tgt_len": 10, "mem_len": row["mem_len"]}
        nats_BT = stream_nats(model, ids[:200], batch_size=1, **lengths)[:, 20:190]
        assert row["nats"] == pytest.approx(nats_BT.mean().item(), abs=1e-6)


def test_checkpoint_without_its_run_needs_a_text(txl, refused, checkpoint, tmp_path):
    lonely = tmp_path / "far" / "away" / "best.ckpt"
    lonely.parent.mkdir(parents=True)
    for file in (checkpoint, manifest_path(checkpoint)):
        (lonely.parent / file.name).write_bytes(file.read_bytes())
    code, line = refused("inspect", lonely)
    assert code == 3
    assert line.endswith("names its training text; give a text with --path")
    Path("text.txt").write_text("some text " * 50)
    assert txl("inspect", lonely, "--path=text.txt", "--batch_size=2")[0] == 0
    assert (lonely.parent / "inspect" / "memory.csv").is_file()


def test_a_text_too_short_for_inspect_is_refused_before_anything_is_written(
    refused, run_folder, tmp_path
):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    code, line = refused("inspect", folder, "--tokens=48")
    needed = "batch_size 1, tgt_len 8 and mem_lens up to 32 need 49"
    advice = "lower one of them, or give more text (--path, --tokens)"
    assert (code, line) == (3, f"the text that is read has 48 tokens; {needed}; {advice}")
    assert not (folder / "inspect").exists()


def test_recl_compares_a_group_on_the_same_positions(accepted, checkpoint, loaded, read_table):
    other = checkpoint.with_name("last.ckpt")
    options = ("--step=4", "--max_context=12", "--positions=9", "--out=recl", "--r", "0.5", "1")
    place_P = spread_targets(300, 12, 9)
    output = accepted("recl", checkpoint, other, *options)
    models = {"best": loaded[0], "last": load(other)[0]}
    nats = {
        name: np.stack([score_context(model, loaded[1], place_P, n) for n in (4, 8, 12)])
        for name, model in models.items()
    }
    control = {
        name: np.stack([score_context(model, loaded[1], place_P, n, unrelated=4) for n in (8, 12)])
        for name, model in models.items()
    }
    content = read_table("recl/recl")[1]
    expected, _ = compute_recl(nats, control, [4, 8, 12], [0.5, 1])
    assert content["rows"] == expected
    assert (content["contexts"], content["positions"], content["split"]) == ([4, 8, 12], 9, "val")
    sha256 = {path.stem: hash_file(path) for path in (checkpoint, other)}
    assert content["checkpoint_sha256"] == sha256
    assert np.isfinite([content["nats"][name] for name in ("best", "last")]).all()
    gains = read_table("recl/gains")[0]
    assert len(gains) == 2 * 2 * 2
    assert all(float(row["control"]) >= 0 for row in gains)
    assert output.out.count("RECL") == 4
    # Nothing is gained by the first context, so that it has no control.
    is_controlled = ["unrelated" in line for line in output.out.splitlines()[1:7]]
    assert is_controlled == [False, True, True] * 2
    assert has_curves("recl/recl.png")


@pytest.mark.parametrize(
    ("reading", "lengths"), [("whole", {}), ("trained", {"tgt_len": 8, "mem_len": 8})]
)
def test_recl_reads_whole_contexts_or_as_in_training(
    txl, checkpoint, loaded, read_table, reading, lengths
):
    model, ids = loaded
    Path("text.txt").write_bytes(ids[:31].astype(np.uint8).tobytes())
    options = f"--step=15 --max_context=30 --path=text.txt --reading={reading} --out=recl".split()
    assert txl("recl", checkpoint, *options)[0] == 0
    expected = [
        score_context(model, ids, np.array([30]), context, **lengths).item() for context in (15, 30)
    ]
    content = read_table("recl/recl")[1]
    assert content["nats"]["best"] == pytest.approx(expected, abs=1e-5)
    how = lengths | {"unrelated": 15}
    control = score_context(model, ids[:31], np.array([30]), 30, **how).item()
    assert content["control_nats"]["best"] == pytest.approx([control], abs=1e-5)
    gain = 1 - np.exp(min(expected[0], control) - expected[0])
    [step] = [row for row in read_table("recl/gains")[1]["rows"] if row["r"] == 1]
    assert step["control"] == pytest.approx(gain, abs=1e-5)
    assert (content["path"], content["split"]) == ("text.txt", None)


def test_each_model_of_a_group_is_read_in_the_segments_of_its_own_training(
    txl, checkpoint, loaded, small, read_table
):
    assert txl("fit", *small, "--data.tgt_len=3")[0] == 0
    other = "runs/version_0/checkpoints/last.ckpt"
    _, ids = loaded
    Path("text.txt").write_bytes(ids[:31].astype(np.uint8).tobytes())
    options = ("--step=15", "--max_context=30", "--path=text.txt", "--out=recl")
    assert txl("recl", checkpoint, other, "--reading=trained", *options)[0] == 0
    how = {"model": load(other)[0], "tokens": ids, "target_P": np.array([30])}
    own, first = (
        [score_context(**how, context=c, tgt_len=tgt_len, mem_len=8).item() for c in (15, 30)]
        for tgt_len in (3, 8)
    )
    found = [*read_table("recl/recl")[1]["nats"].values()][1]
    assert found == pytest.approx(own, abs=1e-6)
    assert found != pytest.approx(first, abs=1e-6)


def test_group_needs_one_vocabulary_and_different_files(txl, refused, checkpoint, small):
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    other = "runs/version_0/checkpoints/last.ckpt"
    message = f"ckpt_path: {other} has another vocabulary than {checkpoint}"
    assert refused("recl", checkpoint, other) == (2, message)
    code, line = refused("recl", checkpoint, checkpoint)
    assert (code, line.endswith("expected different files")) == (2, True)
    code, line = refused("recl", checkpoint, os.path.relpath(checkpoint))
    assert (code, line.endswith("expected different files")) == (2, True)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a/b/best.ckpt"], ["best"]),
        (["a/b/best.ckpt", "a/b/last.ckpt"], ["best", "last"]),
        (["r/txl/v_0/best.ckpt", "r/plain/v_0/best.ckpt"], ["txl", "plain"]),
        (["r/txl/v_0/best.ckpt", "r/txl/v_1/last.ckpt"], ["v_0/best", "v_1/last"]),
        (["r/best.ckpt", "r/old/best.ckpt"], ["best", "old"]),
        (["r/lr0.1", "r/lr0.2"], ["lr0.1", "lr0.2"]),
        (["r/best.ckpt", "r/best"], ["best.ckpt", "best"]),
        (["r/v", "r/v/v"], ["v", "v/v"]),
        (["r/v/v", "r/v", "r/v/w/v"], ["v/v", "v", "v/w/v"]),
    ],
)
def test_models_are_named_by_the_different_parts_of_their_paths(paths, expected):
    assert shorten_paths([*map(Path, paths)]) == expected
