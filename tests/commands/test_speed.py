"""speed: times of tokens, as tables and pictures."""

from pathlib import Path

import pytest
import torch

FEW = ("--tgt_len=4", "--segments=2", "--positions=2", "--tokens=5")
FEW = (*FEW, "--lengths", "16", "24", "--batches", "1", "3")


def test_checkpoint_is_timed_at_each_length_and_batch_size(txl, checkpoint, read_table):
    code, output = txl("speed", checkpoint, *FEW, "--out=times")
    assert (code, "fastest of 2 segments, 2 windows" in output.out) == (0, True)
    for name, key, values in (
        ("window", "attention_len", [16, 24]),
        ("latency", "batch_size", [1, 3]),
    ):
        _, content = read_table(f"times/{name}")
        assert [row[key] for row in content["rows"]] == values
        assert content["machine"]["threads"] == torch.get_num_threads()
        assert Path("times", f"{name}.png").read_bytes().startswith(b"\x89PNG")
    row = read_table("times/window")[1]["rows"][0]
    assert row["speedup"] == pytest.approx(row["window_ms_per_token"] / row["memory_ms_per_token"])
    assert (row["window_positions"], row["segments"], row["tgt_len"]) == (2, 2, 4)


def test_config_is_timed_with_random_weights(txl, tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text("model: {net: {n_token: 9, n_layer: 1, n_head: 1, d_model: 8}}")
    assert txl("speed", path, *FEW, "--out=times")[0] == 0
    path.write_text("model: {}")
    code, output = txl("speed", path, *FEW)
    assert (code, "is not a config with model.net" in output.err) == (2, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--tgt_len=0", "tgt_len: invalid 0; expected at least 1"),
        ("--positions=0", "positions: invalid 0"),
        ("--lengths=0", "lengths: invalid [0]; expected at least 1 each"),
    ],
)
def test_invalid_count_is_refused(txl, checkpoint, option, message):
    code, output = txl("speed", checkpoint, option)
    assert (code, message in output.err) == (2, True)
