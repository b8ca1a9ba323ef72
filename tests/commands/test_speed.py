"""speed: times of tokens, as tables and a picture."""

import csv
import json
from pathlib import Path

import pytest
import torch

from txl_lightning.analysis.speed import compute_percentile, is_disturbed, with_memory, with_window

FEW = ("--tgt_len=4", "--segments=2", "--positions=2", "--tokens=5")
FEW = (*FEW, "--lengths", "16", "24", "--batches", "1", "3")


def test_a_checkpoint_is_timed_at_each_length_and_batch(txl, run_folder):
    code, output = txl("speed", run_folder / "checkpoints" / "best.ckpt", *FEW, "--out=times")
    assert code == 0
    assert "written to times" in output.out
    for name, key, values in (
        ("window", "attention_len", [16, 24]),
        ("latency", "batch_size", [1, 3]),
    ):
        said = json.loads(Path("times", f"{name}.json").read_text())
        with Path("times", f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row[key] for row in said["rows"]] == values
        assert [row[key] for row in rows] == [str(value) for value in values]
        assert said["machine"]["threads"] == torch.get_num_threads()
    row = json.loads(Path("times", "window.json").read_text())["rows"][0]
    assert row["speedup"] == pytest.approx(row["window_ms_per_token"] / row["memory_ms_per_token"])
    assert (row["window_positions"], row["segments"]) == (2, 2)
    assert "fastest of 2 segments, 2 windows" in output.out
    assert json.loads(Path("times", "latency.json").read_text())["rows"][0]["tokens"] == 5
    for name in ("window.png", "latency.png"):
        assert Path("times", name).read_bytes().startswith(b"\x89PNG")


def test_a_config_is_timed_with_weights_that_are_drawn(txl, tmp_path):
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
def test_what_cannot_be_timed_is_refused(txl, run_folder, option, message):
    code, output = txl("speed", run_folder / "checkpoints" / "best.ckpt", option)
    assert code == 2
    assert message in output.err


def test_a_segment_sees_its_memory_full_and_a_window_only_itself(make_net):
    net = make_net()
    lengths = []
    hidden = net.hidden

    def counted(tokens, memory, *rest):
        lengths.append((tokens.size(1), getattr(memory, "held", 0)))
        return hidden(tokens, memory, *rest)

    net.hidden = counted
    with torch.inference_mode():
        segment, window = with_memory(net, 20, 4, 2), with_window(net, 20)
        assert all(read() > 0 for read in (segment, window, segment, window))
    assert lengths[-4:] == [(4, 20), (20, 0)] * 2


def row(attention_len: int, memory_ms: tuple[float, float], window_ms: tuple[float, float]):
    names = ("memory_ms_per_token", "memory_median_ms", "window_ms_per_token", "window_median_ms")
    times = dict(zip(names, (*memory_ms, *window_ms), strict=True))
    return {"attention_len": attention_len} | times


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (((2, 2.1), (30, 32)), False),
        (((2, 4.0), (30, 32)), True),
        (((2, 2.1), (30, 60)), True),
        (((2, 2.1), (9, 9)), True),
    ],
)
def test_times_that_other_work_has_lengthened_are_told(second, expected):
    assert is_disturbed([row(8, (1, 1.2), (10, 11)), row(16, *second)]) is expected


def test_a_percentile_is_the_least_time_that_so_many_do_not_exceed():
    seconds = [float(number) for number in range(100, 0, -1)]
    assert [compute_percentile(seconds, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert compute_percentile([3.0], 50) == 3.0
