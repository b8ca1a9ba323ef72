"""What --help says, and what it does not wait for."""

import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser

import pytest

from txl_lightning import __main__ as door
from txl_lightning.help import EXAMPLES

PLAIN = [verb for verb, (call, _) in door.VERBS.items() if call is door.plain]
SLOW = {"lightning", "torchmetrics", "wandb", "matplotlib", "scipy", "requests", "tokenizers"}


PROGRAM = """
import sys
from txl_lightning.__main__ import main
try:
    main()
finally:
    print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def imported(repository, *arguments: str) -> set[str]:
    """The packages that a command has imported when it ends."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: python -m txl_lightning")
    return set(done.stderr.split())


@pytest.mark.parametrize("verb", PLAIN)
def test_the_help_of_our_own_verbs_does_not_wait_for_what_it_does_not_need(repository, verb):
    packages = imported(repository, verb, "--help")
    assert "jsonargparse" in packages
    assert not packages & SLOW


def test_the_verbs_are_listed_before_torch_is_imported(repository):
    assert not imported(repository, "--help") & {*SLOW, "torch", "numpy"}


def test_a_text_is_prepared_without_torch(repository):
    assert not imported(repository, "prepare", "--help") & {"torch", "rich"}


@pytest.fixture
def read_help(monkeypatch, capsys):
    """What a verb says of itself in so many columns."""

    def read(verb: str, option: str = "--help", columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stop:
            door.run([verb, option])
        assert stop.value.code == 0
        return capsys.readouterr().out

    return read


@pytest.mark.parametrize("verb", door.VERBS)
def test_help_says_how_a_verb_is_called_what_it_does_and_one_example(read_help, verb):
    text = read_help(verb)
    assert text.startswith(f"usage: python -m txl_lightning {verb} ")
    usage, about, *_, example = text.strip().split("\n\n")
    assert "[options]" in usage
    assert about.endswith(".")
    assert example.startswith(f"example: python -m txl_lightning {verb} ")


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("verb", door.VERBS)
def test_help_is_in_words_and_in_lines_that_can_be_read(read_help, verb, columns):
    text = read_help(verb, columns=columns)
    for noise in ("type:", "Optional", "Literal", "Union", "``", "default: null", "lightning."):
        assert noise not in text
    assert not re.search(r"registry|\bhub\b|Lightning (AI|Studio|Cloud)", text, re.IGNORECASE)
    for line in text.splitlines():
        assert len(line) <= min(columns, 100) or line.startswith("example: ")


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("evaluate", "--document_unit {none,files,lines} What is a text of its own in path"),
        ("evaluate", "--mem_len N States remembered. --clamp_len"),
        ("recl", "usage: python -m txl_lightning recl ckpt_path [ckpt_path ...] [options]"),
        ("recl", "--r X [X ...] Shares of the positions"),
        ("recl", "looked at. (default: 0.1 0.5 1.0)"),
        ("generate", "usage: python -m txl_lightning generate --ckpt_path PATH [options]"),
        ("generate", "--stop STOP A text, or a list of them"),
        ("prepare", "--split [X,...] Fractions for train, val and test"),
        ("fit", "(one of constant, cosine, inverse_sqrt, linear, wsd; default: cosine)"),
        ("fit", "--model.compile {true,false} Whether to compile the network"),
        ("fit", "--trainer.devices DEVICES How many of them, or which"),
        ("fit", "--trainer.callbacks CALLBACKS Callbacks beside our own, as WeightAverage"),
        ("test", "--trainer.limit_test_batches X Segments that are read at most"),
    ],
)
def test_an_option_is_told_with_what_it_takes_and_its_default(read_help, verb, said):
    assert said in " ".join(read_help(verb).split())


@pytest.mark.parametrize("verb", door.VERBS)
def test_a_default_is_told_once(read_help, verb):
    for option in re.split(r"\n  (?=-)", read_help(verb)):
        assert len(re.findall(r"default(?!_)", option, re.IGNORECASE)) <= 1, option


def test_our_settings_come_before_the_trainers(read_help):
    text = read_help("fit")
    places = [text.index(f"  --{name}") for name in ("resume", "model.", "data.", "trainer.max")]
    assert places == sorted(places)


def parser_of(words: list[str], monkeypatch) -> ArgumentParser:
    """What reads the options of a verb of Lightning's."""
    from txl_lightning.training.cli import TxlCLI

    monkeypatch.setattr(TxlCLI, "parse_arguments", lambda self, *_: sys.exit(self))
    with pytest.raises(SystemExit) as stop:
        TxlCLI(words)
    return stop.value.code._subcommand_parsers[words[0]]


def test_every_option_of_fit_is_told_of_or_is_one_of_few(read_help, monkeypatch):
    told = set(re.findall(r"--?[\w.]+", read_help("fit") + read_help("fit", "--trainer.help")))
    parser = parser_of(["fit"], monkeypatch)
    names = {name for action in parser._actions for name in action.option_strings}
    # Others are a second spelling, a link, and files for whole groups.
    taken = {name for name in names if re.fullmatch(r"--?[\w.]+", name)}
    files = {f"--{name}" for name in ("trainer", *parser.groups)}
    assert taken - told - files == {"--weights_only", "--trainer.model_registry"}


def test_the_trainers_help_is_of_the_trainer_alone(read_help):
    text = read_help("fit", "--trainer.help")
    assert "--trainer.deterministic {true,false,warn}" in text
    assert not re.search(r"^  --(?!trainer\.)", text, re.MULTILINE)


def test_the_help_of_a_callback_is_in_words_too(read_help):
    text = read_help("fit", "--trainer.callbacks.help=WeightAverage")
    assert "--trainer.callbacks.start_step N" in text
    assert "type:" not in text


@pytest.mark.parametrize("verb", door.VERBS)
def test_an_example_is_a_command_that_is_understood(verb, monkeypatch, repository):
    monkeypatch.chdir(repository)
    words = shlex.split(EXAMPLES[verb])
    plain = verb in PLAIN
    parser = door.function_of(verb)[1] if plain else parser_of([verb, *words], monkeypatch)
    assert parser.parse_args(words)
