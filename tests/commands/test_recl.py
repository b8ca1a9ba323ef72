"""recl: a group of checkpoints on the same positions of one text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning.checkpoints import load_run
from txl_lightning.commands.inputs import read_ids
from txl_lightning.commands.recl import shorten_paths


def test_recl_compares_a_group_on_the_same_positions(txl, checkpoint, read_table):
    other = checkpoint.with_name("last.ckpt")
    options = ("--step=4", "--max_context=12", "--positions=9", "--r", "0.5", "1")
    code, output = txl("recl", checkpoint, other, *options)
    assert code == 0
    rows, content = read_table("recl/recl")
    pairs = [(row["model"], float(row["r"])) for row in rows]
    assert pairs == [("best", 0.5), ("last", 0.5), ("best", 1), ("last", 1)]
    assert {int(row["recl"]) for row in rows} <= {4, 8, 12}
    assert (content["contexts"], content["positions"]) == ([4, 8, 12], 9)
    assert np.isfinite([content["nats"][name] for name in ("best", "last")]).all()
    assert len(read_table("recl/gains")[0]) == 2 * 2 * 2
    assert output.out.count("RECL") == 4
    assert Path("recl", "recl.png").read_bytes().startswith(b"\x89PNG")


def test_recl_reads_whole_contexts_or_as_in_training(txl, checkpoint, read_table):
    model, vocab = load_run(checkpoint)
    ids = read_ids(str(checkpoint), vocab, None, "val").astype(np.int64)
    window, memory = torch.from_numpy(ids[30:61])[None], None
    for start, stop in ((0, 6), (6, 14), (14, 22), (22, 30)):
        h_BLD, memory = model.hidden(window[:, start:stop], memory)
    last_states = {"trained": h_BLD[:, -1:], "whole": model.hidden(window[:, :-1])[0][:, -1:]}
    Path("text.txt").write_bytes(ids[30:61].astype(np.uint8).tobytes())
    for reading, h_B1D in last_states.items():
        options = ("--step=15", "--max_context=30", "--path=text.txt", f"--reading={reading}")
        assert txl("recl", checkpoint, *options)[0] == 0
        expected = model.head.nats(h_B1D, window[:, -1:]).item()
        assert read_table("recl/recl")[1]["nats"]["best"][-1] == pytest.approx(expected, abs=1e-5)


def test_group_needs_one_vocabulary_and_different_files(txl, refused, checkpoint, small):
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    other = "runs/version_0/checkpoints/last.ckpt"
    message = f"ckpt_path: {other} has another vocabulary than {checkpoint}"
    assert refused("recl", checkpoint, other) == (2, message)
    code, line = refused("recl", checkpoint, checkpoint)
    assert (code, line.endswith("expected different files")) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step=0"], "step: invalid 0"),
        (["--step=10", "--max_context=19"], "max_context: invalid 19; expected at least 2 * step"),
        (["--positions=0"], "positions: invalid 0"),
        (["--r", "0.5", "1.5"], "r: invalid [0.5, 1.5]; expected each above 0 and at most 1"),
        (["--max_context=300"], "max_context: invalid 300; expected less than the 300 tokens"),
    ],
)
def test_invalid_option_is_one_line_and_exit_code_2(refused, checkpoint, options, message):
    code, line = refused("recl", checkpoint, *options)
    assert (code, line[: len(message)]) == (2, message)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a/b/best.ckpt"], ["best"]),
        (["a/b/best.ckpt", "a/b/last.ckpt"], ["best", "last"]),
        (["r/txl/v_0/best.ckpt", "r/plain/v_0/best.ckpt"], ["txl", "plain"]),
        (["r/txl/v_0/best.ckpt", "r/txl/v_1/last.ckpt"], ["v_0/best", "v_1/last"]),
        (["r/best.ckpt", "r/old/best.ckpt"], ["best", "old"]),
    ],
)
def test_models_are_named_by_the_different_parts_of_their_paths(paths, expected):
    assert shorten_paths(paths) == expected
