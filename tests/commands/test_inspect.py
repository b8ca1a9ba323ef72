"""inspect: tables and pictures from a checkpoint, on its own text or another."""

from pathlib import Path

import pytest

from txl_lightning import stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.commands.inputs import read_ids


def test_inspect_writes_each_table_and_its_picture(txl, checkpoint, read_table):
    code, output = txl("inspect", checkpoint, "--batch_size=2", "--out=seen")
    assert (code, "written to seen" in output.out) == (0, True)
    for name, n_row in (("positions", 2 * 8), ("memory", 6), ("attention", 2)):
        rows, content = read_table(f"seen/{name}")
        assert len(rows) == n_row
        assert (content["tokens"], content["tgt_len"], content["unit"]) == (300, 8, "byte")
        assert Path("seen", f"{name}.png").read_bytes().startswith(b"\x89PNG")
    memory = read_table("seen/memory")[1]["rows"]
    assert [row["mem_len"] for row in memory] == [0, 2, 4, 8, 16, 32]


def test_inspect_measures_the_nats_of_stream_nats(txl, checkpoint, read_table):
    options = ("--batch_size=1", "--tgt_len=10", "--mem_lens", "20", "5", "--tokens=200")
    assert txl("inspect", checkpoint, *options)[0] == 0
    rows = read_table("inspect/memory")[1]["rows"]
    assert [row["mem_len"] for row in rows] == [0, 5, 8, 20]
    model, vocab = load_run(checkpoint)
    ids = read_ids(str(checkpoint), vocab, None, "val")[:200]
    for row in rows:
        lengths = {"tgt_len": 10, "mem_len": row["mem_len"]}
        nats_BT = stream_nats(model, ids, batch_size=1, **lengths)[:, 20:190]
        assert row["nats"] == pytest.approx(nats_BT.mean().item(), abs=1e-6)


def test_checkpoint_without_its_run_needs_a_text(txl, refused, checkpoint, tmp_path):
    lonely = tmp_path / "far" / "away" / "best.ckpt"
    lonely.parent.mkdir(parents=True)
    lonely.write_bytes(checkpoint.read_bytes())
    code, line = refused("inspect", lonely)
    assert code == 3
    assert line.endswith("says what it was trained on; give a text with --path")
    Path("text.txt").write_text("some text " * 50)
    assert txl("inspect", lonely, "--path=text.txt", "--batch_size=2")[0] == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--split=dev", "split: invalid dev; expected one of train, val"),
        ("--tokens=0", "tokens: invalid 0; expected at least 1"),
        ("--tgt_len=0", "tgt_len: invalid 0; expected at least 1"),
        ("--mem_lens=x", "mem_lens: invalid x; expected a whole"),
    ],
)
def test_invalid_option_is_one_line_and_exit_code_2(refused, checkpoint, option, message):
    code, line = refused("inspect", checkpoint, option)
    assert (code, line[: len(message)]) == (2, message)
