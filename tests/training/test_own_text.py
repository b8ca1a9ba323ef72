"""A text of one's own without a network is trained by the recipe of its size."""

import itertools
import random

import pytest
import torch
import yaml

from experiments.first_result import run as first_result
from experiments.results import load_records
from txl_lightning.model import has_bfloat16_units
from txl_lightning.training import own_text
from txl_lightning.training.options import make_parser, parse

WORDS = ("the", "cat", "sat", "upon", "a", "warm", "mat", "and", "looked", "around", "it", "softly")


@pytest.fixture
def long_text(tmp_path):
    """A text of 60 kB, above the smallest that has a recipe."""
    draw = random.Random(1)
    path = tmp_path / "long.txt"
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(12_000)))
    assert path.stat().st_size > own_text.SMALLEST
    return path


def fit(txl, long_text, *words):
    """Train two steps; return the line about the recipe, if any, and config.yaml."""
    steps = ("--trainer.val_check_interval=2", "--trainer.limit_val_batches=1")
    folder = long_text.parent / f"own {len(words)} {long_text.name}"
    where = ("--data.path", long_text, "--trainer.default_root_dir", folder)
    code, output = txl("fit", *where, *steps, "--trainer.accelerator=cpu", *words)
    assert code == 0, output.err
    lines = [each for each in output.err.splitlines() if each.startswith("recipe")]
    return lines, yaml.safe_load((folder / "version_0" / "config.yaml").read_text())


def test_recipe_is_printed_and_written_and_an_option_overrides_each_part(txl, long_text):
    options = ("--trainer.max_steps=2", "--model.net.d_model=32", "--data.subwords.n_token=300")
    [line], config = fit(txl, long_text, *options)
    precision = "bf16-mixed" if has_bfloat16_units(torch.device("cpu")) else "32-true"
    chosen = f"bpe of 300 subwords; 4 layers of 32, dropout 0.3; muon; {precision}"
    chosen += "; memories restart once in every 512 tokens; 2 steps"
    assert line == f"recipe for a text of 0.1 MB: {chosen}"
    assert config["model"]["net"]["d_model"] == 32
    assert config["model"]["net"]["norm"] == "pre"
    assert (config["data"]["vocab"], config["data"]["restart_len"]) == ("bpe", 512)
    assert config["trainer"]["precision"] == precision
    assert (config["trainer"]["max_steps"], config["plan"]["minutes"]) == (2, None)


def test_config_with_a_network_or_a_short_text_has_no_recipe(txl, long_text, text_file):
    network = long_text.parent / "network.yaml"
    network.write_text("model: {net: {n_layer: 1, d_model: 16, n_head: 2}}")
    lines, config = fit(txl, long_text, f"--config={network}", "--trainer.max_steps=2")
    assert (lines, config["data"]["vocab"]) == ([], None)
    lines, config = fit(txl, text_file, "--trainer.max_steps=2", "--model.net.d_model=16")
    assert (lines, config["data"]["vocab"]) == ([], None)


def test_config_without_a_network_overrides_parts_of_the_recipe(txl, long_text):
    part = long_text.parent / "part.yaml"
    words = "data: {vocab: bytes}", "plan: {minutes: 0.05}", "trainer: {max_steps: 3}"
    # As in configs/hardware/one_gpu.yaml.
    part.write_text("\n".join([*words, "model: {compile: false}"]))
    [line], config = fit(txl, long_text, f"--config={part}", "--model.net.d_model=16")
    assert line.startswith("recipe for a text of 0.1 MB: bytes; 4 layers of 16,")
    assert line.endswith("; 0.05 min")
    assert config["trainer"]["max_steps"] == 3
    assert config["data"]["subwords"]["n_token"] != own_text.SIZES[0][1]


@pytest.mark.parametrize(
    ("n_byte", "n_token"), [(n, each[1]) for each in own_text.SIZES for n in [each[0] or 10**9]]
)
def test_each_size_of_text_has_its_number_of_subwords(n_byte, n_token):
    assert own_text.choose_recipe(n_byte, None)["data.subwords.n_token"] == n_token
    assert "data.subwords.n_token" not in own_text.choose_recipe(n_byte, "words")


def test_minutes_are_planned_unless_steps_are_given(long_text):
    for words, minutes in (((), own_text.MINUTES), (("--trainer.max_steps=2000",), None)):
        parser, words = make_parser("fit"), [f"--data.path={long_text}", *words]
        settings = own_text.adopt_recipe(parser, words, parse(parser, words))
        assert settings.plan.minutes == minutes
        assert (settings.trainer.max_steps == 2000) == (minutes is None)


def find_recipe(n_byte, kinds):
    """Return the name of the measured kind that has the recipe of a text of so many bytes."""
    recipe = own_text.choose_recipe(n_byte, None)
    names = ("data.subwords.n_token", "data.restart_len", "model.net.dropout", "model.net.d_model")
    same = [all(kinds[kind].get(n) == recipe[n] for n in names) for kind in kinds]
    [found] = itertools.compress(kinds, same)
    return found


@pytest.mark.parametrize(
    ("size", "n_byte"), [("0.1", 1e5), ("1", 1_115_394), ("10", 1e7), ("70", 7e7)]
)
def test_recipe_is_within_two_percent_of_the_best_that_was_measured(repository, size, n_byte):
    records = load_records(repository / "experiments/first_result/results.json").values()
    name = f"{size} MB, {find_recipe(n_byte, first_result.SIZES[size])}"
    runs = [r for r in records if r["kind"].startswith(f"{size} MB, ")]
    by_minutes = {r["minutes"]: r["bits_per_byte"] for r in runs if r["kind"] == name}
    assert by_minutes
    for minutes, bits in by_minutes.items():
        best = min(r["bits_per_byte"] for r in runs if r["minutes"] == minutes)
        assert bits <= 1.02 * best, (minutes, name)
