"""The output of --help, and the packages that it does not import."""

import argparse
import inspect
import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

import txl_lightning
from txl_lightning import CorpusDataModule
from txl_lightning import __main__ as entry
from txl_lightning.command_line import COMMANDS, TrainerCommand
from txl_lightning.data.sources import DataConfig
from txl_lightning.imports import OWN

SLOW = {"lightning", "torchmetrics", "wandb", "matplotlib", "scipy", "requests", "tokenizers"}
TRAINER = [name for name, command in COMMANDS.items() if isinstance(command, TrainerCommand)]
FUNCTIONS = [name for name in COMMANDS if name not in TRAINER]
PROGRAM = """
import sys
from txl_lightning.__main__ import main
try:
    main()
finally:
    print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ([], {*SLOW, "torch", "numpy"}),
        (["prepare"], {"torch", "rich"}),
        (["configs"], {"torch", "numpy", "rich"}),
    ],
)
def test_help_of_functions_imports_no_slow_packages(repository, words, absent):
    command = [sys.executable, "-c", PROGRAM, *words, "--help"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: txl-lightning")
    packages = set(done.stderr.split())
    assert "jsonargparse" in packages
    assert not packages & absent


ALL_HELPS = """
import sys
from contextlib import suppress
from txl_lightning import __main__ as entry
for command in sys.argv[1:]:
    with suppress(SystemExit):
        entry.run([command, "--help"])
    print(command, *{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def test_no_help_of_a_function_imports_slow_packages(repository):
    """In one process: its imports are those of all commands so far."""
    command = [sys.executable, "-c", ALL_HELPS, *FUNCTIONS]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stderr.splitlines()]
    assert [line[0] for line in lines] == FUNCTIONS
    assert [(line[0], SLOW & {*line}) for line in lines if SLOW & {*line}] == []


@pytest.mark.parametrize(
    ("words", "present", "absent"),
    [
        # sympy comes with torch._dynamo: two seconds.
        ("generate RUN --max_new_tokens=2", {"torch"}, {*SLOW, "sympy"}),
        ("evaluate RUN", {"torch"}, {*SLOW, "sympy"}),
        pytest.param("runs RUN", set(), {"torch", "lightning"}, marks=pytest.mark.slow),
        pytest.param(
            "compare RUN --out=o.png", set(), {"torch", "lightning"}, marks=pytest.mark.slow
        ),
        pytest.param("prepare TEXT --vocab=words", set(), {*SLOW, "torch"}, marks=pytest.mark.slow),
    ],
)
def test_a_command_imports_only_what_it_needs(run_folder, text_file, words, present, absent):
    words = words.replace("RUN", str(run_folder)).replace("TEXT", str(text_file)).split()
    command = [sys.executable, "-c", PROGRAM, *words]
    how = {"cwd": text_file.parent, "capture_output": True, "text": True}
    done = subprocess.run(command, **how, check=False)
    assert done.returncode == 0, done.stderr
    packages = set(done.stderr.splitlines()[-1].split())
    assert (present - packages, absent & packages) == (set(), set())


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command in 100 columns, and of the Trainer's options."""
    commands = {command: [command, "--help"] for command in COMMANDS}
    commands["trainer"] = ["fit", "--trainer.help"]
    commands |= {f"{command} full": [command, "--help", "full"] for command in TRAINER}
    texts = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "102")
        for name, words in commands.items():
            printed = io.StringIO()
            with pytest.raises(SystemExit, match="0"), redirect_stdout(printed):
                entry.run(words)
            texts[name] = printed.getvalue()
    return texts


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_usage_options_without_types_and_an_example_that_parses(
    helps, command, parse_fit, monkeypatch, tmp_path
):
    usage, *lines = helps[command].rstrip().splitlines()
    assert re.fullmatch(rf"usage: txl-lightning {command} .*\[options\]", usage)
    for noise in ("type:", "Optional", "Literal[", "Union[", "``", "default: null", ":class:"):
        assert noise not in helps[command]
    options = [line for line in lines if line.startswith("  ")]
    assert all(len(line) <= 100 or line.strip().startswith("--") for line in options)
    name, example = lines[-1].split(f" txl-lightning {command}")
    assert name == "example:"
    # A shipped config is found from any folder.
    monkeypatch.chdir(tmp_path)
    words = entry.name_first_words(command, shlex.split(example))
    if command in TRAINER:
        assert parse_fit(*words)
        return
    function, parser = entry.make_parser(command)
    assert parser.parse_args(words) is not None
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    assert all(re.search(rf"\b{name}\b", usage) for name in needed)


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("generate", "usage: txl-lightning generate ckpt_path [prompt] [options]"),
        ("recl", "shorter context. (default: 0.1 0.5 1.0)"),
        ("prepare", "(one of none, files, lines)"),
        ("fit full", "--model.optim.schedule {constant,cosine,inverse_sqrt,linear,wsd} Learning"),
        ("fit", "Memory length M in training: cached hidden states per layer;"),
        ("fit", "Peak learning rate, whatever the schedule. (default: 0.001)"),
        ("fit", "Rows read in parallel, over all devices together. (default: 16)"),
        ("fit", "--trainer.val_check_interval VAL_CHECK_INTERVAL Segments from one validation to"),
        (
            "fit",
            "In fit, for 50 kB or more, a recipe by its size, the device and the minutes replaces",
        ),
        ("fit", "Seed of all random numbers: equal ones give equal runs; true: a random one;"),
        ("generate", "Equal seeds give equal texts, and a call's texts differ; left out, torch"),
        ("test full", "--trainer.limit_test_batches LIMIT_TEST_BATCHES How much"),
    ],
)
def test_options_have_their_fields_docstrings_and_defaults(helps, command, part):
    assert part in " ".join(helps[command].split())


@pytest.mark.parametrize("command", FUNCTIONS)
def test_every_option_of_a_command_has_a_sentence(command):
    _, parser = entry.make_parser(command)
    options = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    assert [each.dest for each in options if not (each.help or "").strip()] == []


def test_the_settings_of_a_text_are_explained_alike_to_prepare_and_to_fit():
    explained = [
        inspect.getdoc(each).split("Args:\n")[1] for each in (DataConfig, CorpusDataModule)
    ]
    assert explained[1].startswith(explained[0])


def test_options_appear_in_the_help_of_their_commands_ours_first(helps):
    for option in ("--model.optim.lr", "--checkpoint.every_n_steps", "--trainer.max_steps"):
        assert option in helps["fit full"]
        assert option not in helps["test full"]
    order = ("resume", "model.", "data.", "trainer.max_steps")
    starts = [helps["fit full"].index(f"  --{name}") for name in order]
    assert starts == sorted(starts)
    assert "--trainer.deterministic" not in helps["fit full"]
    assert "--trainer.deterministic" in helps["trainer"]
    assert not re.search(r"^  --(?!trainer\.)", helps["trainer"], re.MULTILINE)


def test_help_of_fit_is_short_and_names_the_full_one(helps):
    names = ("fit", "fit full")
    # Without the sentence about --model.net.
    shown, all_shown = ({*re.findall(r"--[\w.]+(?![\w.]| NAME)", helps[name])} for name in names)
    assert len(shown) <= 30 < 90 < len(all_shown)
    assert shown < all_shown
    assert {"--config", "--data.path", "--model.net.mem_len", "--plan.minutes"} <= shown
    assert "--help full prints all" in helps["fit"]


@pytest.mark.parametrize("name", ["fit", "fit full"])
def test_help_of_fit_names_the_networks_that_can_be_chosen(helps, name):
    line = " ".join(helps[name].split())
    assert f"--model.net NAME chooses a network: {', '.join(OWN)}, or a class of settings" in line


def test_groups_of_options_are_named_for_people(helps):
    titles = re.findall(r"^(\S.*):$", helps["fit"], re.MULTILINE)
    assert titles == [
        "options",
        "Network",
        "Evaluation and compilation",
        "Optimizer and schedule",
        "Data",
        "Duration of a run",
        "Trainer",
    ]


def test_the_first_lines_say_what_to_do_first_and_their_commands_parse(capsys, parse_fit):
    entry.run([])
    text = capsys.readouterr().out
    lines = re.findall(r"^  txl-lightning (.+?) {2,}", text.split("Commands:")[0], re.MULTILINE)
    names = [shlex.split(line)[0] for line in lines]
    assert names == ["quickstart", "fit", "generate"]
    assert parse_fit(*shlex.split(lines[1])[1:])


def test_the_version_is_printed(capsys):
    entry.run(["--version"])
    assert capsys.readouterr().out == f"txl-lightning {txl_lightning.__version__}\n"


def test_the_help_of_a_callback_has_no_types(capsys):
    with pytest.raises(SystemExit, match="0"):
        entry.run(["fit", "--trainer.callbacks.help=WeightAverage"])
    text = capsys.readouterr().out
    assert "--trainer.callbacks.start_step" in text
    assert "type:" not in text
