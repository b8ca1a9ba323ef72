"""The layers of settings: what is given, which layer counts, and where each setting comes from."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.errors import CheckpointError
from txl_lightning.training import own_text
from txl_lightning.training.options import find_resume, make_parser, require_text
from txl_lightning.training.own_text import find_recipe
from txl_lightning.training.settings import (
    SECTIONS,
    Resolved,
    SettingsLayer,
    merge_layers,
    nest_settings,
    parse,
    read_given,
)
from txl_lightning.training.start import find_start

KEYS = ("seed", "data.path", "data.words.lower", "model.net.n_layer", "trainer.callbacks")
SETTINGS = st.dictionaries(st.sampled_from(KEYS), st.integers() | st.none() | st.text(max_size=3))
TREES = SETTINGS.map(nest_settings)


def merge_trees(*trees):
    return merge_layers([SettingsLayer("", tree) for tree in trees])


@given(TREES, TREES, TREES)
def test_merging_is_associative(first, second, third):
    all_at_once = merge_trees(first, second, third)
    assert merge_trees(merge_trees(first, second), third) == all_at_once
    assert merge_trees(first, merge_trees(second, third)) == all_at_once


@given(SETTINGS, SETTINGS)
def test_of_two_values_the_later_one_counts(first, second):
    assert merge_trees(nest_settings(first), nest_settings(second)) == nest_settings(first | second)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ({"callbacks": [1]}, {"callbacks+": 2}, {"callbacks": [1, 2]}),
        ({"callbacks": [1]}, {"callbacks": [2]}, {"callbacks": [2]}),
        ({"callbacks+": [1]}, {"callbacks+": [2]}, {"callbacks+": [1, 2]}),
        ({"callbacks+": [1]}, {"callbacks": [2]}, {"callbacks": [2]}),
        ({"callbacks": 1}, {"callbacks+": [2]}, {"callbacks": [1, 2]}),
        # A mapping that is no section is one value.
        ({"max_time": {"days": 1}}, {"max_time": {"hours": 1}}, {"max_time": {"hours": 1}}),
        (
            {"logger": {"class_path": "A", "init_args": {"x": 1, "y": 1}}},
            {"logger": {"class_path": "a.A", "init_args": {"x": 2}}},
            {"logger": {"class_path": "a.A", "init_args": {"x": 2, "y": 1}}},
        ),
        (
            {"logger": {"class_path": "A", "init_args": {"x": 1}}},
            {"logger": {"class_path": "B"}},
            {"logger": {"class_path": "B"}},
        ),
    ],
)
def test_lists_and_classes_of_a_later_config(first, second, merged):
    assert merge_trees({"trainer": first}, {"trainer": second}) == {"trainer": merged}


def test_settings_of_another_network_replace_those_of_the_one_before():
    nets = {"class_path": "a.A", "width": 3}, {"width": 4}, {"class_path": "a.B"}
    first, second, third = ({"model": {"net": net}} for net in nets)
    assert merge_trees(first, second)["model"]["net"] == {"class_path": "a.A", "width": 4}
    assert merge_trees(first, second, third) == third


@pytest.mark.parametrize("command", ["fit", "test"])
def test_each_group_of_options_is_a_section(command):
    assert {*make_parser(command).groups} <= SECTIONS


def test_what_is_given_is_read_in_its_order_and_words_count_before_configs(parse_fit, tmp_path):
    (tmp_path / "a.yaml").write_text("trainer: {max_steps: 1}\ndata: {tgt_len: 1}")
    (tmp_path / "words.yaml").write_text("tgt_len: 2")
    config = f"--config={tmp_path / 'a.yaml'}"
    section = f"--data={tmp_path / 'words.yaml'}"
    assert parse_fit(config, section).data.tgt_len == 2
    assert parse_fit(section, config).data.tgt_len == 1
    assert parse_fit("--trainer.max_steps=5", config).trainer.max_steps == 5


def test_a_config_is_read_once(parse_fit, tmp_path):
    # Of a pipe, nothing is left for a second reader.
    os.mkfifo(path := tmp_path / "pipe")
    text = "trainer: {max_steps: 7}\nmodel: {net: {n_layer: 3}}"
    writer = threading.Thread(target=path.write_text, args=[text])
    writer.start()
    read = parse_fit("--config", path)
    writer.join()
    assert (read.trainer.max_steps, read.model.net.n_layer) == (7, 3)


def test_a_mistake_names_the_file_that_counts(parse_fit, tmp_path):
    for name, value in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.yaml").write_text(f"model: {{net: {{n_layer: {value}}}}}")
    configs = [f"--config={tmp_path / name}.yaml" for name in "ab"]
    with pytest.raises(ValueError, match=r"b\.yaml: model\.net\.n_layer: invalid y; expected a"):
        parse_fit(*configs)
    with pytest.raises(ValueError, match=r"^model\.net\.n_layer: invalid z; expected a whole"):
        parse_fit(*configs, "--model.net.n_layer=z")


def test_a_setting_of_a_checkpoint_that_no_option_has_is_named():
    saved = SettingsLayer("last.ckpt", {"model": {"old": 3}}, is_saved=True)
    with pytest.raises(CheckpointError, match=r"last\.ckpt: it has a setting .*model\.old: unkn"):
        parse(make_parser("fit"), Resolved(read_given([]), [saved]))


READ_EARLY = (
    *("resume", "ckpt_path", "checkpoint.mirror", "plan.minutes", "model.net.class_path"),
    *("data.path", "data.ids", "data.store", "data.corpus", "data.vocab", "data.data_dir"),
    *("data.split", "data.batch_size", "data.tgt_len", "data.words", "data.subwords"),
    *("trainer.default_root_dir", "trainer.max_steps", "trainer.max_epochs", "trainer.max_time"),
    *("trainer.fast_dev_run", "trainer.accelerator"),
)
ODD = ("", "[]", "[1]", "{}", "{a: 1}", "null", "nan", "1e400", "[[]]", "~", "3", "true", "'['")


@pytest.mark.parametrize("key", READ_EARLY)
def test_an_odd_value_that_is_read_before_it_is_parsed_has_no_traceback(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3").write_text("abc")
    section, _, name = key.rpartition(".")
    tree = "{}: {}" if not section else "{}: {{{}: {}}}"
    for value in ODD:
        place = "model: {net: {class_path: {}}}" if key.startswith("model.net") else tree
        names = [each for each in (section, name) if each]
        text = place.replace("{}", value) if "net" in place else tree.format(*names, value)
        for words in ([f"--config={text}"], [f"--{key}={value}"]):
            try:
                read = read_given([*words, "--data.path=3"] if "data" not in key else words)
                find_recipe(read)
                find_start(find_resume("fit", read), read)
                require_text(read)
                assert read.net_class is None or isinstance(read.net_class, str)
            except (ValueError, OSError):
                pass


@pytest.fixture
def explained(accepted):
    """Return the value and the origin of each setting that --explain prints."""

    def explain(*words):
        rows = [line.split() for line in accepted(*words, "--explain").out.splitlines()]
        return {key: (value, " ".join(origin)) for key, value, *origin in rows}

    return explain


def test_each_setting_that_is_no_default_is_explained_by_its_layer(
    explained, run_folder, text_file, monkeypatch
):
    monkeypatch.setattr(own_text, "SMALLEST", 1)
    Path("part.yaml").write_text(
        "plan: {minutes: 2}\ndata: {tgt_len: 32}\nmodel: {eval_mem_len: 9}"
    )
    words = ["--config=part.yaml", f"--data.path={text_file}", "--data.tgt_len=48"]
    rows = explained("fit", *words, "--trainer.accelerator=cpu")
    recipe = "recipe for a text of 0.0 MB on a CPU"
    expected = {
        "data.path": (str(text_file), "command line"),
        "data.tgt_len": ("48", "command line"),
        "data.vocab": ("bpe", recipe),
        "model.optim.name": ("muon", recipe),
        "model.eval_mem_len": ("9", "part.yaml"),
        "plan.minutes": ("2.0", "part.yaml"),
    }
    assert {key: rows[key] for key in expected} == expected
    assert "model.net.n_layer" not in rows  # 4, as without a recipe
    assert not Path("runs").exists()


def test_a_network_that_is_chosen_is_explained(explained, text_file):
    rows = explained("fit", f"--data.path={text_file}", "--model.net=LSTM")
    name = "txl_lightning.networks.lstm.LSTMConfig"
    assert rows["model.net.class_path"] == (name, "command line")


def test_settings_of_a_checkpoint_are_explained_by_its_path(explained, run_folder):
    rows = explained("test", run_folder, "--trainer.limit_test_batches=1")
    path = str(run_folder / "checkpoints" / "best.ckpt")
    assert rows["model.net.d_model"] == ("8", path)
    assert rows["data.path"][1] == path
    assert rows["trainer.limit_test_batches"] == ("1", "command line")
