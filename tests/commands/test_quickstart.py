"""quickstart, from training to the suggested commands."""

import csv
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.helpers.pictures import has_curves
from txl_lightning import __main__ as entry
from txl_lightning import stream_nats
from txl_lightning.checkpoints import load, load_checkpoint
from txl_lightning.commands import quickstart
from txl_lightning.commands.quickstart import (
    choose_precision,
    measure_adaptation,
    measure_memory,
    print_next_commands,
)
from txl_lightning.model import EvalLengths
from txl_lightning.model.adaptation import Adaptation


@torch.inference_mode()
def bits_by_segments(net, ids, mem_len, row_len=None):
    """Return the mean bits of 4 rows, in segments of 8 with the network's own memory."""
    ids_BT = torch.from_numpy(ids.astype(np.int64))[: len(ids) // 4 * 4].view(4, -1)[:, :row_len]
    memory = net.empty_memory(4, EvalLengths(mem_len))
    nats = []
    for start in range(0, ids_BT.size(1) - 1, 8):
        targets_BL = ids_BT[:, start + 1 : start + 9]
        tokens_BL = ids_BT[:, start : start + targets_BL.size(1)]
        nats_BL, memory = net.loss(tokens_BL, targets_BL, memory)
        nats.append(nats_BL)
    return torch.cat(nats, 1).double().mean().item() / math.log(2)


def expect_lines(net, ids, lengths, row_len=None):
    bits = {mem_len: bits_by_segments(net, ids, mem_len, row_len) for mem_len in lengths}
    ways = ("", ", as trained", ", the same network without its memory")
    return [
        f"  mem_len {mem_len:4d}   {each:.3f} bits per byte{way}"
        for way, (mem_len, each) in zip(ways, bits.items(), strict=True)
    ]


def test_quickstart_measures_with_twice_the_memory_with_it_and_without(make_net, make_data, capsys):
    net = make_net(n_token=256)
    data = make_data()
    measure_memory(data, net)
    _, *lines, _ = capsys.readouterr().out.splitlines()
    assert lines == expect_lines(net, data.store.ids("test"), (12, 6, 0))
    assert len({line[:23] for line in lines}) == 3


def test_quickstart_measures_the_same_tokens_in_each_way_until_its_time_is_over(
    make_net, make_data, capsys
):
    net = make_net(n_token=256).train()
    data = make_data()
    # A machine that slows down: the third piece is the last one.
    measure_memory(data, net, iter([0.0, 1.0, 5.0, 51.0]).__next__)
    first, *lines, _ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"held-out test text, 100 of {len(data.store.ids('test')):,} tokens")
    assert lines == expect_lines(net, data.store.ids("test"), (12, 6, 0), row_len=25)
    assert net.training


def test_quickstart_compares_static_and_adapted_on_the_same_tokens(make_net, make_data, capsys):
    net = make_net(n_token=256)
    data = make_data()
    measure_adaptation(data, net, iter([0.0, 1.0, 51.0]).__next__)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "in one row, 17 tokens:"
    ids = data.store.ids("test")[:17]
    bits = []
    for use in (Adaptation(), Adaptation(cache_len=20_000, rate=0.1)):
        nats = stream_nats(net, ids, batch_size=1, tgt_len=8, adaptation=use)
        bits.append(f"{nats.mean().item() / math.log(2):.3f} bits per byte")
    assert lines[0] == f"  static         {bits[0]}"
    assert lines[1].startswith(f"  adapted        {bits[1]} (cache_len 20000, cache_theta 40, ")


@pytest.mark.slow
def test_quickstart_trains_measures_and_samples(txl, accepted, text_file, repository):
    settings = yaml.safe_load((repository / "configs" / "smoke.yaml").read_text())
    settings["data"] = {"path": str(text_file), "tgt_len": 8, "batch_size": 4}
    Path("small.yaml").write_text(yaml.safe_dump(settings))
    output = accepted("quickstart", "--config=small.yaml")
    for expected in (
        "the model's continuation:",
        "txl-lightning fit --config runs/smoke/version_0/config.yaml",
    ):
        assert expected in output.out
    run = Path("runs", "smoke", "version_0")
    net, _ = load(run / "checkpoints" / "last.ckpt")
    _, store = load_checkpoint(run).open_text()
    for line in expect_lines(net, store.ids("test"), (64, 32, 0)):
        assert line in output.out
    with (run / "metrics.csv").open() as file:
        nats = [float(row["val/nats"]) for row in csv.DictReader(file) if row["val/nats"]]
    # The letters are random: a fitted model has the logarithm of 26.
    assert math.log(256) > nats[0] > nats[-1] > math.log(26)
    assert has_curves("runs/smoke/version_0/curve.png")


@pytest.mark.parametrize("has_units", [True, False])
def test_quickstart_trains_in_bfloat16_where_it_is_faster_and_no_precision_is_given(
    monkeypatch, has_units
):
    monkeypatch.setattr(quickstart, "has_bfloat16_units", lambda _: has_units)
    cpu = {"trainer.accelerator": "cpu"}
    words = ["--trainer.precision=bf16-mixed"]
    assert choose_precision(cpu) == (words if has_units else [])
    assert choose_precision(cpu | {"trainer.precision": "32-true"}) == []
    assert choose_precision({"trainer.accelerator": "auto"}) == []


def test_the_suggested_commands_can_be_pasted_whatever_the_folder_s_name(
    capsys, parse_fit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = Path("my runs", "it's")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("data: {batch_size: 3}")
    print_next_commands(folder)
    lines = [line for line in capsys.readouterr().out.splitlines() if "txl-lightning" in line]
    fit, test, generate = map(shlex.split, lines)
    assert parse_fit(*fit[2:]).data.batch_size == 3
    assert (test[2], generate[2]) == (str(folder), str(folder))
    assert entry.make_parser("generate")[1].parse_args(generate[2:]).prompt == "import os"


def test_quickstart_refuses_a_config_that_is_not_one(refused):
    Path("list.yaml").write_text("[1]")
    for name, message in (
        ("none", "config: invalid none"),
        ("list.yaml", "invalid [1]"),
    ):
        code, text = refused("quickstart", f"--config={name}")
        assert (code, message in text) == (2, True), text


@pytest.mark.parametrize("data", ["corpus: sort", "ids: ids.npy", "{path: letters.txt, SPLIT}"])
def test_quickstart_refuses_data_without_a_test_text_before_training(refused, repository, data):
    np.save("ids.npy", np.arange(6000) % 7)
    settings = yaml.safe_load((repository / "configs" / "smoke.yaml").read_text())
    settings["data"] = yaml.safe_load(data.replace("SPLIT", "split: [0.5, 0.5, 0.0]"))
    settings["data"] |= {"tgt_len": 8, "batch_size": 4}
    settings["report"] = {"html": False, "sample_len": 0}
    Path("mine.yaml").write_text(yaml.safe_dump(settings))
    code, line = refused("quickstart", "--config=mine.yaml")
    assert (code, line) == (2, "config: invalid mine.yaml; expected one with a text to test")
    assert not Path("runs/smoke/version_0").exists()
