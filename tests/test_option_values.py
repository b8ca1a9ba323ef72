"""Values on the command line: texts, paths, whole numbers, lists; and sections of YAML files."""

import re
from pathlib import Path

import pytest

from txl_lightning import __main__ as entry
from txl_lightning.command_line import (
    COMMANDS,
    TrainerCommand,
    format_value,
    keep_texts,
    read_options,
    take_option,
)
from txl_lightning.errors import flatten_settings
from txl_lightning.imports import OWN

# YAML reads them as null, a list, a mapping, a number, a date or a mistake.
TEXTS = ["# Chapter 1", "~", "[T]", "- T", "a: b", "{a}", "Null", "1e5", "2024-01-01", "*a", "'"]
HOME = Path("~").expanduser()
ODD = [
    "",
    "[]",
    "[1]",
    "{}",
    "null",
    "nan",
    "1e400",
    "[[]]",
    "~",
    "{class_path: 3}",
    "&a [*a]",
    "[",
]


@pytest.fixture(scope="session")
def parse_words():
    """Parse the words of a command that is a function."""
    parsers = {}

    def parse(name, *words):
        if name not in parsers:
            parsers[name] = entry.make_parser(name)[1]
        _, words = take_option(entry.underscore_names([*words]), "--allow_imports")
        words = entry.name_first_words(name, words)
        settings = parsers[name].parse_args(words)
        keep_texts(settings, read_options(words))
        return settings.as_dict()

    return parse


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_option_stays_as_it_is_given(parse_words, text):
    options = ("prompt", "stop", "prompts")
    for joint in ("=", None):
        given = [[f"--{name}={text}"] if joint else [f"--{name}", text] for name in options]
        if joint or not text.startswith("-"):
            settings = parse_words("generate", "RUN", *(word for pair in given for word in pair))
            assert [settings[name] for name in options[:2]] == [text, text]
    assert parse_words("score", "RUN", f"--context={text}")["context"] == text


@pytest.mark.parametrize("text", [text for text in TEXTS if text != "~"])
def test_a_name_of_a_file_stays_as_it_is_given(parse_words, parse_fit, text):
    settings = parse_words("evaluate", text, f"--path={text}", "--per_token", f"x{text}")
    assert [settings[k] for k in ("ckpt_path", "path", "per_token")] == [text, text, f"x{text}"]
    assert parse_words("recl", text, "b")["ckpt_path"] == [text, "b"]
    settings = parse_fit(f"--data.path={text}", f"--ckpt_path={text}")
    assert (settings.data.path, settings.ckpt_path) == (text, text)


def test_a_text_in_a_config_is_read_as_yaml_once(parse_fit, tmp_path):
    (tmp_path / "a.yaml").write_text("data: {path: '# notes'}\nplan: {minutes: null}\n")
    settings = parse_fit(f"--config={tmp_path}/a.yaml")
    assert (settings.data.path, settings.plan.minutes) == ("# notes", None)


def test_null_leaves_an_option_out_but_is_a_word_of_a_prompt(parse_words, parse_fit):
    settings = parse_words("generate", "RUN", "null", "--mem_len=null", "--prompt_file=null")
    assert [settings[k] for k in ("prompt", "mem_len", "prompt_file")] == ["null", None, None]
    assert parse_words("score", "RUN", "--context", "null")["context"] == "null"
    assert parse_fit("--data.path=null").data.path is None
    logger = [
        "--trainer.logger=CSVLogger",
        "--trainer.logger.save_dir=a",
        "--trainer.logger.version=null",
    ]
    assert parse_fit(*logger).trainer.logger.init_args.version is None
    callback = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.filename=null"]
    assert parse_fit(*callback).trainer.callbacks[0].init_args.filename is None


def test_a_list_of_texts_is_json_or_several_words(parse_words, parse_fit):
    stop = parse_words("generate", "RUN", '--stop=["[T]", "b"]')["stop"]
    assert stop == ["[T]", "b"]
    for words in (['--data.path=["a", "b", "c"]'], ["--data.path", "a", "b", "c"]):
        words = entry.name_first_words("fit", words)
        assert parse_fit(*words).data.path == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["RUN", "-5 degrees"], "-5 degrees"),
        (["RUN", "-5", "--seed=3"], "-5"),
        (["RUN", "-- he said"], "-- he said"),
        (["RUN", "--seed=3", "--", "--top-k=3"], "--top-k=3"),
        (["--", "RUN", "-x"], "-x"),
    ],
)
def test_a_prompt_may_start_with_a_dash(parse_words, words, prompt):
    settings = parse_words("generate", *words)
    assert (settings["ckpt_path"], settings["prompt"]) == ("RUN", prompt)


def test_the_home_folder_is_expanded_in_every_path(parse_words, parse_fit, tmp_path):
    paths = ["out", "per_token", "path", "data_dir"]
    settings = parse_words("evaluate", "~/run", *(f"--{name}=~/a" for name in paths))
    assert settings["ckpt_path"] == f"{HOME}/run"
    assert {settings[name] for name in paths} == {f"{HOME}/a"}
    settings = parse_words("generate", "RUN", "~/a", "--out_ids=~/a.npy")
    assert (settings["prompt"], settings["out_ids"]) == ("~/a", f"{HOME}/a.npy")
    assert parse_words("prepare", "~/a")["name"] == f"{HOME}/a"
    root = "trainer: {default_root_dir: ~/a}\ndata: {path: [~/a, ~/b, ~/c]}\nckpt_path: ~/a\n"
    (tmp_path / "a.yaml").write_text(root)
    settings = parse_fit(f"--config={tmp_path}/a.yaml")
    assert settings.trainer.default_root_dir == settings.ckpt_path == f"{HOME}/a"
    assert settings.data.path == [f"{HOME}/{name}" for name in "abc"]


def test_a_config_is_found_in_the_home_folder(parse_fit, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.yaml").write_text("trainer: {max_steps: 7}")
    assert parse_fit("--config=~/a.yaml").trainer.max_steps == 7


def test_a_number_with_a_point_or_an_exponent_is_no_whole_number(parse_fit, tmp_path):
    (tmp_path / "a.yaml").write_text("data: {batch_size: 4.0}")
    for word, message in (
        (f"--config={tmp_path}/a.yaml", f"{tmp_path}/a.yaml: data.batch_size: invalid 4.0; "),
        ("--data.tgt_len=1e1", "data.tgt_len: invalid 1e1; expected a whole number"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            parse_fit(word)


@pytest.mark.parametrize(
    "text",
    [
        "model:",
        "trainer:",
        "data:",
        "plan:",
        "model: {net: , optim: }",
        "data: {words: }",
        "",
        "# a",
    ],
)
def test_an_empty_section_changes_nothing(parse_fit, tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    config = parse_fit(f"--config={tmp_path}/a.yaml")
    expected = parse_fit()
    del config["config"], expected["config"]
    assert flatten_settings(config.as_dict()) == flatten_settings(expected.as_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: []", "model: invalid []; expected settings by name"),
        ("- a", 'invalid ["a"]; expected settings by name'),
        ("model: {net: a.b}", "model.net: invalid a.b; expected settings by name (--model.net."),
        ("data: {path: a}\n\ndata: {path: b}", "data: given in line 1, and again in line 3"),
        ("trainer: {max_time: 1:00:00:00}", 'expected a duration as "DD:HH:MM:SS", with quotes'),
    ],
)
def test_a_wrong_section_is_refused_in_one_line(parse_fit, tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_fit(f"--config={tmp_path}/a.yaml")
    assert str(error.value).startswith(f"{tmp_path}/a.yaml: ")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--data.split=[0.9, 0.1]", "data.split: invalid [0.9, 0.1]; expected a list of 3 numbers"),
        ("--n_layr=3", "unknown option --n_layr; did you mean --model.net.n_layer?"),
        ("--data.path", "argument --data.path/--data.path+: expected one argument"),
        ("--config=.", "config: invalid .; expected a file"),
        ("--config=nope", "config: invalid nope; expected a file, or a name that `txl-lightning"),
    ],
)
def test_a_wrong_option_says_what_is_expected(parse_fit, word, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        parse_fit(word)


@pytest.mark.parametrize("value", ["none.yaml", "my.txt", "MyNet", "3", "null", "{a:", "."])
@pytest.mark.parametrize("group", ["model", "model.net", "model.optim", "data", "trainer", "plan"])
def test_what_is_no_group_of_settings_is_refused_with_what_to_give(parse_fit, group, value):
    message = f"{group}: invalid {value}; expected settings by name (--{group}.NAME VALUE), or "
    others = f"; or one of {', '.join(OWN)}" if group == "model.net" else ""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}a YAML file with them{others}$"):
        parse_fit(f"--{group}={value}")


def test_a_file_with_the_settings_of_a_group_is_read_even_if_it_is_named_like_a_class(
    parse_fit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.yaml").write_text("n_layer: 3")
    assert parse_fit("--model.net=net.yaml").model.net.n_layer == 3
    assert parse_fit("--config={model: {net: net.yaml}}").model.net.n_layer == 3


def test_the_name_of_a_group_is_no_hint_for_an_unknown_key_in_it(parse_fit):
    with pytest.raises(ValueError, match=r"^trainer\.qq: unknown key; see --help"):
        parse_fit("--trainer={qq: 1}")


STOPPING = "{class_path: EarlyStopping, init_args: {monitor: val/loss}}"


@pytest.mark.parametrize("added", ["WeightAverage", "[{class_path: WeightAverage}]"])
def test_callbacks_of_a_config_are_added_to_those_of_an_earlier_one(parse_fit, tmp_path, added):
    (tmp_path / "a.yaml").write_text(f"trainer: {{callbacks: [{STOPPING}]}}")
    (tmp_path / "b.yaml").write_text(f"trainer: {{callbacks+: {added}}}")
    configs = [f"--config={tmp_path}/{name}.yaml" for name in "ab"]
    callbacks = parse_fit(*configs, "--trainer.callbacks.decay=0.5").trainer.callbacks
    names = [each.class_path.rpartition(".")[2] for each in callbacks]
    assert names == ["EarlyStopping", "WeightAverage"]
    assert callbacks[1].init_args.decay == 0.5
    # An option is read by the last callback.
    with pytest.raises(ValueError, match=r"WeightAverage: patience: unknown key; .* last class"):
        parse_fit(*configs, "--trainer.callbacks.patience=7")
    (tmp_path / "a.yaml").write_text("data: {path: a}")
    (tmp_path / "b.yaml").write_text("data: {path+: [x]}")
    assert parse_fit(*configs).data.path == ["a", "x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"trainer: {{callbacks: [{STOPPING}], callbacks+: []}}", "no trainer.callbacks here"),
        (f"trainer: {{callbacks+: [], callbacks: [{STOPPING}]}}", "no trainer.callbacks here"),
        ("trainer: {callbacks+: null}", "trainer.callbacks+: invalid null; expected a list"),
        ("data: {vocab+: x}", "data.vocab+: unknown key; did you mean data.vocab?"),
        ("trainer+: {max_steps: 3}", "trainer+: unknown key; did you mean trainer?"),
    ],
)
def test_what_cannot_be_added_is_refused(parse_fit, tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_fit(f"--config={tmp_path}/a.yaml")


@pytest.mark.parametrize("option", ["data.column", "data.json_key", "run_name", "steps"])
def test_no_distant_name_is_suggested(parse_fit, option):
    with pytest.raises(ValueError, match=f"^unknown option --{option}; see --help for the known"):
        parse_fit(f"--{option}=3")


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("data.batchsize", "data.batch_size"),
        ("modle.net.n_layr", "model.net.n_layer"),
        ("wandb.checkpoint", "wandb.checkpoints"),
        ("lr", "model.optim.lr"),
    ],
)
def test_a_near_name_is_suggested(parse_fit, option, near):
    with pytest.raises(ValueError, match=f"^unknown option --{option}; did you mean --{near}[?]"):
        parse_fit(f"--{option}=3")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("monitr=3", "trainer.callbacks: EarlyStopping: monitr: unknown key; see --help"),
        ("patience=x", "trainer.callbacks: EarlyStopping: patience: Expected a <class 'int'>. Got"),
        (
            "patience=3",
            "trainer.callbacks: EarlyStopping: the following arguments are requ",
        ),
    ],
)
def test_a_wrong_option_of_a_class_names_the_class_or_the_key(parse_fit, option, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        parse_fit("--trainer.callbacks+=EarlyStopping", f"--trainer.callbacks.{option}")


FUNCTIONS = [name for name, each in COMMANDS.items() if not isinstance(each, TrainerCommand)]


@pytest.mark.slow
@pytest.mark.parametrize("command", FUNCTIONS)
def test_an_odd_value_of_any_option_is_accepted_or_refused(parse_words, command):
    for option in entry.make_parser(command)[1].names - {"help"}:
        for value in ODD:
            word = f"--{option}={value}"
            assert is_accepted_or_refused(lambda w: parse_words(command, "x", w), word), word


@pytest.mark.slow
def test_an_odd_value_of_any_option_of_fit_is_accepted_or_refused(parse_fit, tmp_path, monkeypatch):
    # Parsing makes the folder of trainer.default_root_dir.
    monkeypatch.chdir(tmp_path)
    for option in entry.import_module("txl_lightning.training.cli").make_parser("fit").names:
        if option.rpartition(".")[2] not in ("help", "print_config"):
            for value in ODD:
                word = f"--{option}={value}"
                assert is_accepted_or_refused(parse_fit, word), word


def is_accepted_or_refused(parse, word) -> bool:
    try:
        parse(word)
    except (entry.jsonargparse.ArgumentError, ValueError, OSError):
        return True
    except Exception:
        return False
    return True


def test_a_value_is_written_as_an_option_reads_it(parse_words, parse_fit):
    for value in (None, 16):
        word = f"--model.net.clamp_len={format_value(value)}"
        assert parse_fit(word).model.net.clamp_len == value
    for text in TEXTS:
        word = f"--prompt={format_value(text)}"
        assert parse_words("generate", "RUN", word)["prompt"] == text
    for value in (True, False):
        assert parse_fit(f"--model.compile={format_value(value)}").model.compile is value
    betas = format_value([0.5, 0.75])
    assert parse_fit(f"--model.optim.betas={betas}").model.optim.betas == (0.5, 0.75)
    paths = ["#a", "[b]", "c"]
    assert parse_fit(f"--data.path={format_value(paths)}").data.path == paths
    assert parse_words("generate", "R", f"--stop={format_value(paths)}")["stop"] == paths
