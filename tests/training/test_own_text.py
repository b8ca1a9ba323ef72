"""A text of one's own without a network is trained by the recipe of its size."""

import gzip
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from experiments.results import load_records
from txl_lightning.data.datamodule import CorpusConfig
from txl_lightning.data.store import open_store
from txl_lightning.data.vocab import SubwordOptions
from txl_lightning.model import has_bfloat16_units
from txl_lightning.training import network_size, own_text
from txl_lightning.training.network_size import Text
from txl_lightning.training.options import make_parser
from txl_lightning.training.settings import Resolved, parse, read_given

WORDS = ("the", "cat", "sat", "upon", "a", "warm", "mat", "and", "looked", "around", "it", "softly")

NETWORK = (
    *("--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=16"),
    *("--report.html=false", "--report.sample_len=0", "--trainer.accelerator=cpu"),
)


@pytest.fixture
def long_text(tmp_path):
    """A text of 60 kB, above the smallest that has a recipe."""
    draw = random.Random(1)
    path = tmp_path / "long.txt"
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(12_000)))
    assert path.stat().st_size > own_text.SMALLEST
    return path


def fit(accepted, long_text, *words):
    """Train two steps; return the line about the recipe, if any, and config.yaml."""
    steps = ("--trainer.val_check_interval=2", "--trainer.limit_val_batches=1")
    folder = long_text.parent / f"own {len(words)} {long_text.name}"
    where = ("--data.path", long_text, "--trainer.default_root_dir", folder)
    output = accepted("fit", *where, *steps, "--trainer.accelerator=cpu", *words)
    lines = [each for each in output.err.splitlines() if "recipe for" in each]
    return lines, yaml.safe_load((folder / "version_0" / "config.yaml").read_text())


def test_recipe_is_printed_and_written_and_an_option_overrides_each_part(accepted, long_text):
    options = ("--trainer.max_steps=2", "--model.net.d_model=32", "--data.subwords.n_token=300")
    [line], config = fit(accepted, long_text, *options)
    precision = "bf16-mixed" if has_bfloat16_units(torch.device("cpu")) else "32-true"
    chosen = f"bpe of 300 subwords; 4 layers of 32, dropout 0.3; muon; {precision}"
    chosen += "; memories restart once in every 512 tokens; 2 steps"
    assert line == f"recipe for a text of 0.1 MB on a CPU: {chosen}"
    assert config["model"]["net"]["d_model"] == 32
    assert config["model"]["net"]["norm"] == "pre"
    assert (config["data"]["vocab"], config["data"]["restart_len"]) == ("bpe", 512)
    assert (config["trainer"]["precision"] or "32-true") == precision
    assert (config["trainer"]["max_steps"], config["plan"]["minutes"]) == (2, None)


def test_config_with_a_network_has_no_recipe_and_a_short_text_has_a_notice(
    accepted, long_text, text_file
):
    network = long_text.parent / "network.yaml"
    network.write_text("model: {net: {n_layer: 1, d_model: 16, n_head: 2}}")
    lines, config = fit(accepted, long_text, f"--config={network}", "--trainer.max_steps=2")
    assert (lines, config["data"]["vocab"]) == ([], None)
    short = f"no recipe for a text of {text_file.stat().st_size:,} bytes, less than 50,000: "
    words = "--trainer.max_steps=2", "--model.net.d_model=16"
    lines, config = fit(accepted, text_file, *words)
    assert (lines, config["data"]["vocab"]) == ([f"{short}the defaults are used"], None)


def test_another_network_has_no_recipe_and_a_notice(accepted, long_text):
    words = "--model.net=LSTM", "--model.net.d_model=16", "--trainer.max_steps=2"
    lines, config = fit(accepted, long_text, *words)
    assert lines == ["no recipe for the network LSTMConfig: the defaults are used"]
    assert config["data"]["vocab"] is None


def test_config_without_a_network_overrides_parts_of_the_recipe(accepted, long_text):
    part = long_text.parent / "part.yaml"
    words = "data: {vocab: bytes}", "plan: {minutes: 0.05}", "trainer: {max_steps: 3}"
    # As in configs/hardware/one_gpu.yaml.
    part.write_text("\n".join([*words, "model: {compile: false}"]))
    [line], config = fit(accepted, long_text, f"--config={part}", "--model.net.d_model=16")
    assert line.startswith("recipe for a text of 0.1 MB on a CPU: bytes; 4 layers of 16,")
    assert line.endswith("; 0.05 min, at most 3 steps")
    assert config["trainer"]["max_steps"] == 3


def choose_on_cpu(n_byte, minutes):
    text = Text(n_byte / 3, 2048)
    return own_text.choose_recipe(n_byte, text, network_size.CPU, minutes)


@pytest.mark.parametrize(
    ("n_byte", "minutes", "width", "dropout"),
    [
        *((5e5, 5, 128, 0.3), (5e5, 30, 128, 0.3)),
        *((3e6, 5, 128, 0.1), (3e6, 30, 192, 0.2)),
        *((7e7, 5, 128, 0.0), (7e7, 30, 192, 0.0)),
    ],
)
def test_each_size_of_text_has_its_dropout_and_with_more_minutes_its_width(
    n_byte, minutes, width, dropout
):
    recipe = choose_on_cpu(n_byte, minutes)
    assert (recipe["model.net.d_model"], recipe["model.net.dropout"]) == (width, dropout)


def adopt(long_text, *words):
    """Return the settings of fit on a text."""
    return resolve(f"--data.path={long_text}", *words)


def resolve(*words):
    given = read_given([*words])
    recipe = own_text.find_recipe(given)
    settings = parse(make_parser("fit"), Resolved(given, [recipe]))
    print(own_text.describe_recipe(recipe, settings), file=sys.stderr)
    return settings


def test_minutes_are_planned_unless_steps_are_given(long_text):
    for words, minutes in (((), own_text.MINUTES), (("--trainer.max_steps=2000",), None)):
        settings = adopt(long_text, *words)
        assert settings.plan.minutes == minutes
        assert (settings.trainer.max_steps == 2000) == (minutes is None)


def test_a_plan_has_thirty_passes_and_ten_validations_unless_their_distance_is_given(long_text):
    for words, n in (((), 10), (("--trainer.val_check_interval=9",), None)):
        settings = adopt(long_text, *words)
        assert (settings.trainer.max_epochs, settings.trainer.max_steps) == (30, -1)
        assert settings.plan.validations == n


@pytest.mark.parametrize("options", [[], ["--trainer.accumulate_grad_batches=4"]])
def test_a_planned_run_ends_after_its_passes(accepted, text_file, monkeypatch, options):
    monkeypatch.setattr(own_text, "SMALLEST", 1)
    plan = {"trainer.max_epochs": 4, "trainer.limit_val_batches": 1}
    monkeypatch.setattr(own_text, "PLAN", own_text.PLAN | plan)
    words = f"--data.path={text_file}", "--data.vocab=bytes", *NETWORK
    lines = accepted("fit", *words, *options, "--data.batch_size=32").err.splitlines()
    assert lines[1].startswith("why: a CPU, 5 min, ")
    assert "read it 4 times, before the minutes are over, at about" in lines[1]
    assert lines[0].endswith("; 5 min, at most 4 passes over the text")
    run = json.loads(Path("runs/version_0/run.json").read_text())
    assert 3.5 * 5400 < run["tokens"] < 6 * 5400


@pytest.fixture
def prepared(accepted, long_text):
    """A text of 60 kB as a store, or as ids."""

    def prepare(kind):
        if kind == "store":
            accepted("prepare", long_text, "--vocab=characters", "--out=store")
            return "--data.store=store"
        np.save("ids.npy", np.frombuffer(long_text.read_bytes(), np.uint8))
        return "--data.ids=ids.npy"

    return prepare


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("store", "a text of 0.1 MB on a CPU: the vocabulary of the store;"),
        ("ids", "56,067 ids of unknown bytes, taken for 0.2 MB on a CPU: ids;"),
    ],
)
def test_a_store_and_ids_have_the_recipe_of_their_length(accepted, prepared, kind, shown):
    words = prepared(kind), *NETWORK, "--trainer.max_steps=2", "--trainer.limit_val_batches=1"
    output = accepted("fit", *words)
    line = output.err.splitlines()[0]
    assert line.startswith(f"recipe for {shown} 1 layers of 16, dropout 0.3; muon; ")
    assert "no effect" not in output.err
    config = yaml.safe_load(Path("runs/version_0/config.yaml").read_text())
    assert (config["model"]["optim"]["name"], config["data"]["restart_len"]) == ("muon", 512)
    assert (config["data"]["vocab"], config["plan"]["minutes"]) == (None, None)


@pytest.mark.parametrize("kind", ["store", "ids"])
def test_a_store_and_ids_have_known_tokens_and_a_store_also_known_bytes(prepared, long_text, kind):
    length = own_text.read_data(read_given([prepared(kind)])).source.measure_own()
    size = long_text.stat().st_size
    assert (length.n_byte, length.n_token) == (size if kind == "store" else None, size)
    assert (length.n_vocab is None) == (kind == "ids")


@pytest.mark.parametrize("minutes", [5, 30])
def test_a_prepared_text_has_the_vocabulary_and_the_settings_of_the_text(
    accepted, long_text, minutes
):
    accepted("prepare", long_text, "--out=store")
    words = f"--plan.minutes={minutes}", "--trainer.accelerator=cpu"
    text = adopt(long_text, *words)
    store = resolve("--data.store=store", *words)
    config = CorpusConfig(**text.data.as_dict())
    assert open_store("store", Path("data")).vocab.n_token == config.open_text().vocab.n_token
    text.data.vocab = text.data.path = store.data.store = None
    assert store == text


def test_the_size_of_json_lines_is_that_of_their_texts(long_text):
    path = long_text.with_name("texts.jsonl")
    lines = [json.dumps({"text": "a short text", "other": "o" * 100})] * 5000
    path.write_text("\n".join(lines))
    layer = own_text.find_recipe(read_given([f"--data.path={path}", "--trainer.accelerator=cpu"]))
    assert layer.origin == "recipe for a text of 0.1 MB on a CPU"
    assert CorpusConfig(path=path).source.measure_own().n_byte == 5000 * len("a short text")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--data.txt_key=a", "unknown option --data.txt_key; did you mean --data.text_key?"),
        ("--trainer.max_steps=many", "trainer.max_steps: invalid many; expected a whole number"),
        ("--data.vocab=none.json", "data.vocab: invalid none.json (No such file or directory)"),
        ("--model.optim.lr=-1", "model.optim.lr: invalid -1.0; expected greater than 0"),
        ("--model.net.n_head=7", "model.net.d_model: invalid 128; expected a multiple of n_head"),
        (
            "--config={trainer: {max_step: 1}}",
            "{trainer: {max_step: 1}}: trainer.max_step",
        ),
    ],
)
def test_a_mistake_is_refused_before_a_text_is_read(refused, tmp_path, word, message):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "to be or not"}\n' * 9000))
    code, line = refused("fit", f"--data.path={path}", "--data.data_dir=data", word)
    assert (code, line[: len(message)]) == (3 if "vocab" in word else 2, message)
    assert not Path("data").exists()


def test_what_only_the_recipe_of_some_text_allows_is_not_refused_before_it_is_read():
    parser = make_parser("fit")
    words = ["--data.path=a.txt", "--model.net.n_head=6"]
    own_text.refuse_mistakes(read_given([*words, "--plan.minutes=20"]), parser, ())
    with pytest.raises(ValueError, match=r"^model\.net\.d_model: invalid 128"):
        own_text.refuse_mistakes(read_given(words), parser, ())


@pytest.mark.parametrize("name", ["tgt_len", "batch_size"])
def test_sizes_of_which_no_steps_can_be_planned_are_refused(long_text, name):
    with pytest.raises(ValueError, match=rf"^data\.{name}: invalid 0; expected at least 1$"):
        adopt(long_text, f"--data.{name}=0")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ([], "; 5 min, at most 30 passes over the text"),
        (["--plan.minutes=2"], "; 2 min, at most 30 passes over the text"),
        (["--trainer.max_steps=2000"], "; 2,000 steps"),
        (["--plan.minutes=2", "--trainer.max_steps=9"], "; 2 min, at most 9 steps"),
        (["--plan.minutes=null"], "; 30 passes over the text"),
    ],
)
def test_recipe_says_what_ends_the_run(long_text, capsys, words, end):
    adopt(long_text, *words)
    assert capsys.readouterr().err.splitlines()[0].endswith(end)


@pytest.mark.parametrize("words", [[], ["--data.vocab=unigram"], ["--model.net.d_model=16"]])
def test_fit_reads_what_prepare_has_made(accepted, long_text, words):
    data = adopt(long_text, *words).data
    output = accepted("prepare", long_text, f"--vocab={data.vocab}").out
    folder = output.splitlines()[0].partition(": ")[2]
    config = CorpusConfig(**data.as_dict())
    assert config.open_text().folder == Path(folder)
    assert config.source.find_encoding().filled_subwords.n_token == 1024


BYTES_PER_SUBWORD = {"0.1": 2.6, "1": 2.9, "10": 3.4, "70": 3.4}  # by megabytes of text


def has_recipe(record, minutes, n_byte):
    """Return True if a measured run has the recipe of a size of texts and of so many minutes."""
    n_token = SubwordOptions().fill(n_byte).n_token
    recipe = choose_on_cpu(n_byte, minutes) | {"data.subwords.n_token": n_token}
    names = ("data.subwords.n_token", "data.restart_len", "model.net.dropout", "model.net.d_model")
    return all(record["options"].get(name) == recipe[name] for name in names)


@pytest.mark.parametrize(
    ("name", "n_byte"), [("0.1", 1e5), ("1", 1_115_394), ("10", 1e7), ("70", 7e7)]
)
def test_recipe_is_within_two_percent_of_the_best_that_was_measured(repository, name, n_byte):
    records = load_records(repository / "tests/training/recipes.json").values()
    runs = [run for run in records if run["kind"].startswith(f"{name} MB, ")]
    # A tenth of the text is measured; a segment has 16 rows of 64 subwords.
    most = own_text.PLAN["trainer.max_epochs"] * 0.9 * n_byte / BYTES_PER_SUBWORD[name] / (16 * 64)
    for minutes in {run["minutes"] for run in runs}:
        # A run with more steps than the recipe's passes would not be that of the recipe.
        ours = [run for run in runs if has_recipe(run, minutes, n_byte) and run["steps"] <= most]
        ours = [run for run in ours if run["minutes"] <= minutes]
        bits = max(ours, key=lambda run: run["steps"])["bits_per_byte"]
        best = min(run["bits_per_byte"] for run in runs if run["minutes"] == minutes)
        assert bits <= 1.02 * best, minutes


def test_only_what_is_read_of_a_folder_decides_its_recipe(long_text):
    folder = long_text.parent
    size = long_text.stat().st_size
    (folder / ".git").mkdir()
    (folder / ".git" / "pack").write_bytes(b"p" * 9000)
    (folder / "picture").write_bytes(bytes(9000))
    (folder / "latin").write_bytes(b"caf\xe9 " * 100)
    (folder / "same.txt").symlink_to(long_text)
    (folder / "version_0").mkdir()
    (folder / "version_0" / "run.json").write_text('{"max_steps": 3}')
    for vocab, n_byte in ((None, size), ("bytes", size + 500)):
        config = CorpusConfig(path=folder, vocab=vocab)
        assert config.source.measure_own().n_byte == n_byte


@pytest.mark.parametrize("words", ["", "--config=hardware/cpu", "--config=none.yaml"])
def test_fit_without_a_text_is_refused_with_what_to_give(refused, words):
    Path("none.yaml").write_text("data: {path: null, batch_size: 4}")
    code, line = refused("fit", *words.split())
    expected = "--data.path my.txt, --data.corpus NAME or --config quickstart"
    start = f"data.path: missing; expected {expected} (first: txl-lightning quickstart)"
    assert (code, line) == (2, start)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--data.pth=a.txt", "unknown option --data.pth; did you mean --data.path?"),
        ("--config={data: {pth: a.txt}}", "data.pth: unknown key; did you mean data.path?"),
        ("a.txt", "unknown word a.txt; did you mean --data.path a.txt?"),
    ],
)
def test_a_misspelt_option_for_the_text_is_named_before_the_text_is_missed(refused, words, line):
    code, shown = refused("fit", words)
    assert (code, shown.endswith(line)) == (2, True), shown


def test_text_is_given_by_a_config_of_any_form_or_by_the_checkpoints_run(
    accepted, small, run_folder, text_file
):
    Path("text.yaml").write_text(f"path: {text_file}")
    *options, _ = small
    for words in (
        [f"--config={{data: {{path: {text_file}}}}}"],
        ["--data=text.yaml"],
        [f"--ckpt_path={run_folder}", "--trainer.max_steps=6"],
    ):
        lines = accepted("fit", *options, *words).err.splitlines()
        [line] = [each for each in lines if each.startswith("data: ")]
        assert text_file.name in line


def test_measurement_of_converted_weights_needs_a_text(accepted, refused, run_folder, text_file):
    accepted("convert", run_folder, "--out=converted")
    code, line = refused("test", "converted")
    assert (code, line[:19]) == (2, "data.path: missing;")
    accepted("test", "converted", f"--data.path={text_file}")


def test_an_empty_section_of_a_config_leaves_the_recipe(accepted, long_text):
    Path("empty.yaml").write_text("model:")
    [line], _ = fit(accepted, long_text, "--config=empty.yaml", "--trainer.max_steps=2")
    assert "bpe" in line
