"""speed: times of tokens, as tables and pictures."""

from pathlib import Path

import pytest
import torch

FEW = ("--tgt_len=4", "--segments=2", "--positions=2", "--tokens=5")
FEW = (*FEW, "--lengths", "16", "24", "--batches", "1", "3")


def test_config_is_timed_at_each_length_and_batch_size(txl, refused, tmp_path, read_table):
    path = tmp_path / "net.yaml"
    path.write_text("model: {net: {n_token: 9, n_layer: 1, n_head: 1, d_model: 8}}")
    code, output = txl("speed", path, *FEW, "--out=times")
    assert (code, "fastest of 2 segments, 2 windows" in output.out) == (0, True)
    window, latency = (read_table(f"times/{name}")[1] for name in ("window", "latency"))
    assert [row["attention_len"] for row in window["rows"]] == [16, 24]
    assert [row["batch_size"] for row in latency["rows"]] == [1, 3]
    assert window["machine"]["threads"] == torch.get_num_threads()
    for name in ("window", "latency"):
        assert Path("times", f"{name}.png").read_bytes().startswith(b"\x89PNG")
    row = window["rows"][0]
    assert row["speedup"] == pytest.approx(row["window_ms_per_token"] / row["memory_ms_per_token"])
    assert (row["window_positions"], row["segments"], row["tgt_len"]) == (2, 2, 4)
    path.write_text("model: {}")
    code, line = refused("speed", path, *FEW)
    assert (code, "is not a config with model.net" in line) == (2, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--tgt_len=0", "tgt_len: invalid 0; expected at least 1"),
        ("--positions=0", "positions: invalid 0"),
        ("--lengths=0", "lengths: invalid [0]; expected at least 1 each"),
    ],
)
def test_invalid_count_is_refused(refused, checkpoint, option, message):
    code, line = refused("speed", checkpoint, option)
    assert (code, line[: len(message)]) == (2, message)
