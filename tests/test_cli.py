"""The command line: its results and its errors."""

import csv
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.testing import assert_close

from txl_lightning import LanguageModel
from txl_lightning import __main__ as entry
from txl_lightning.errors import format_line

AGAIN = "--trainer.default_root_dir=again"  # another folder, for runs that continue a finished one


@pytest.fixture
def best(run_folder):
    """Arguments that evaluate the best checkpoint of a run."""
    return (run_folder / "checkpoints" / "best.ckpt", AGAIN)


def test_fit_writes_all_files_of_a_run(run_folder):
    files = {path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*.*")}
    expected = {"config.yaml", "vocab.json", "metrics.csv", "hparams.yaml", "curve.png"}
    expected |= {"report.html", "attention.png", "run.json"}
    assert expected | {"checkpoints/best.ckpt", "checkpoints/last.ckpt"} <= files
    hparams = yaml.safe_load((run_folder / "hparams.yaml").read_text())
    assert len(hparams["data"]["fingerprint"]) == 16
    # Options that --help does not show are also settings.
    trainer = yaml.safe_load((run_folder / "config.yaml").read_text())["trainer"]
    assert {"max_steps", "deterministic", "barebones"} <= set(trainer)
    columns = (run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    for stage in ("train", "val"):
        names = ("loss", "nats", "bits_per_byte", "perplexity", "tokens_seen")
        assert {f"{stage}/{name}" for name in names} <= set(columns)
    assert {"train/tokens_per_second", "train/lr", "val/memory_gain"} <= set(columns)


def test_the_saved_config_gives_the_same_run_and_prints_its_text(accepted, run_folder):
    output = accepted("fit", "--config", run_folder / "config.yaml", AGAIN)
    counts = "6,000 bytes, 6,000 tokens (5,400 train, 300 val, 300 test), vocabulary of 256 bytes"
    assert re.search(rf"^data: \S*letters\.txt: {re.escape(counts)}$", output.err, re.MULTILINE)
    paths = [path / "checkpoints/last.ckpt" for path in (run_folder, Path("again/version_0"))]
    first, second = (torch.load(path, weights_only=True) for path in paths)
    assert_close(first["state_dict"], second["state_dict"], rtol=0, atol=0)


def test_a_run_is_measured_on_either_text_of_its_own_and_no_run_is_made(txl, run_folder):
    for command, shown in (
        ("predict", r"again/nats\.npy$"),
        ("test", r"^test/bits_per_byte +\d\.\d{4}$"),
        ("validate", r"^val/bits_per_byte +\d\.\d{4}$"),
    ):
        code, output = txl(command, run_folder, AGAIN)
        assert (code, "DataLoader" in output.out) == (0, False), output.err
        assert re.search(shown, output.out, re.MULTILINE)
    assert np.load("again/nats.npy").shape == (4, 300 // 4 - 1)
    assert [path.name for path in Path("again").iterdir()] == ["nats.npy"]
    assert not Path("runs").exists()


def test_the_text_of_a_measurement_is_shown_on_a_terminal(txl, run_folder, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, output = txl("test", run_folder)
    assert (code, "Testing" in output.err) == (0, True)


def test_another_text_than_the_runs_is_read_if_it_is_named(refused, run_folder):
    code, line = refused("test", run_folder, "--data.corpus=python_source", "--data.path=none.txt")
    assert (code, line.startswith("none.txt: no such file")) == (3, True)
    code, line = refused("test", run_folder, "--data.corpus=recall")
    both = r"data\.vocab: the checkpoint's is \w+, .*; data \(recall\): the checkpoint's is \w+, "
    assert (code, bool(re.match(both, line))) == (3, True)


def test_a_run_that_ends_between_validations_is_validated_at_its_end_and_can_continue(txl, small):
    command = ("fit", *small, "--model.optim.schedule=constant")
    assert txl(*command, "--trainer.max_steps=3")[0] == 0
    rows = csv.DictReader(Path("runs", "version_0", "metrics.csv").read_text().splitlines())
    assert [row["step"] for row in rows if row["val/nats"]] == ["1", "2"]
    assert txl(*command, "--resume=must")[0] == 0
    assert txl(*command, AGAIN)[0] == 0
    continued, at_once = (
        torch.load(f"{root}/version_0/checkpoints/last.ckpt", weights_only=True)
        for root in ("runs", "again")
    )
    assert continued["global_step"] == at_once["global_step"] == 4
    assert_close(continued["state_dict"], at_once["state_dict"], rtol=0, atol=0)


def test_lengths_given_at_evaluation_replace_the_checkpoints(txl, best, monkeypatch):
    mem_lens = []
    monkeypatch.setattr(
        LanguageModel,
        "on_test_epoch_end",
        lambda self: mem_lens.append(self.memory_bank.committed["test", 0].mem_len),
    )
    for option in ("--data.tgt_len=8", "--model.net.mem_len=128", "--model.eval_mem_len=3"):
        assert txl("test", *best, option)[0] == 0
    assert mem_lens == [8, 128, 3]


def test_text_outside_the_terminals_encoding_is_escaped(txl, best, monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert txl("generate", best[0], "--prompt=é", "--max_new_tokens=0")[0] == 0
    shown.flush()
    assert shown.buffer.getvalue().startswith(rb"\xe9")


ESCAPE = "\x1b]0;a\x07"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "options", "expected"),
    [(Terminal, "", r"\x1b]0;a\x07"), (Terminal, "--raw=true", ESCAPE), (io.StringIO, "", ESCAPE)],
)
def test_a_terminal_shows_escapes_of_a_text_and_a_pipe_gets_them(
    txl, best, monkeypatch, stream, options, expected
):
    monkeypatch.setattr(sys, "stdout", stream())
    words = ("generate", best[0], f"--prompt={ESCAPE}\t", "--max_new_tokens=0", *options.split())
    assert txl(*words)[0] == 0
    assert sys.stdout.getvalue() == f"{expected}\t\n"


def test_escapes_in_names_of_files_are_shown(accepted, best, small, text_file):
    name = f"{ESCAPE}.txt"
    folder = f"--trainer.default_root_dir={ESCAPE}"
    text_file.rename(name)
    for words in (
        ("prepare", name),
        ("evaluate", best[0], "--path", name, "--max_tokens=9"),
        ("fit", *small[:-1], "--data.path", name, folder),
        ("fit", *small[:-1], "--data.path", name, folder, "--resume=auto", "--trainer.max_steps=5"),
        ("predict", *best, folder),
        ("test", best[0], "--data.path", name, "--data.allow_mismatch=true"),
    ):
        output = accepted(*words)
        assert r"\x1b]0;a\x07" in output.out + output.err
        assert "\x1b" not in output.out + output.err


def test_without_a_command_the_commands_are_listed(txl):
    for arguments in ((), ("--help",), ("-h",)):
        code, output = txl(*arguments)
        assert (code, all(command in output.out for command in entry.COMMANDS)) == (0, True)


@pytest.mark.parametrize(
    ("command", "packages"),
    [("fit", "PyTorch and Lightning"), ("generate", "PyTorch"), ("sweep", "Optuna")],
)
def test_a_terminal_shows_at_once_what_is_loaded(txl, monkeypatch, command, packages):
    monkeypatch.setattr(sys, "stderr", Terminal())
    for call in ("run_function", "run_trainer_command"):
        monkeypatch.setattr(entry, call, lambda *_: print(sys.stderr.getvalue()))
    assert txl(command)[1].out == f"{command}: loading {packages} ...\n\n"


def test_a_missing_package_is_an_error_with_its_install_command(txl, small, monkeypatch):
    code, output = txl("fit", *small, "--trainer.logger=MLFlowLogger")
    assert (code, "pip install -U 'mlflow" in output.err) == (2, True), output.err
    monkeypatch.setattr(entry, "run_function", lambda *_: import_module("absent.part"))
    code, output = txl("sweep")
    assert (code, output.err) == (2, "error: No module named 'absent'; pip install absent\n")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("transformers.models", "'.[hub]' in the clone"),
        ("onnxscript", "'.[export]' in the clone"),
        ("s3fs", "'.[s3]' in the clone"),
        ("absent.part", "absent"),
    ],
)
def test_a_missing_package_of_an_extra_is_an_error_with_the_extra(txl, monkeypatch, module, words):
    def fail(*_):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(entry, "run_function", fail)
    code, output = txl("sweep")
    line = f"error: No module named '{module}'; pip install {words}\n"
    assert (code, output.err) == (2, line)


def test_each_extra_for_users_is_named_for_its_packages(repository):
    text = (repository / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert {*entry.EXTRAS.values()} == extras.keys() - {"dev"}
    for package, extra in entry.EXTRAS.items():
        assert any(line.startswith(package.replace("_", "-")) for line in extras[extra])


LINE = "\n"
COMMA = ", "
BOMB = "a0: &a0 [x, x]\n" + LINE.join(  # with aliases expanded, 10^11 times as long
    f"a{level}: &a{level} [{COMMA.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)
)
WRONG_SETTINGS = [
    (
        "--model.net.n_layr=3",
        "unknown option --model.net.n_layr; did you mean --model.net.n_layer?",
    ),
    ("--model.net.n_layer=two", "model.net.n_layer: invalid two; expected a whole"),
    ("--model.net.norm=mid", "model.net.norm: invalid mid; expected post, pre or pre_kv"),
    ("--model.eval_same_length=foo", "invalid foo; expected mem_len, mem_len+1, all or null"),
    ("--model.optim.lr=0", "model.optim.lr: invalid 0.0; expected greater than 0"),
    ("--trainer.logger=os.system", "trainer.logger: a setting may not import os.system"),
    ("--trainer.logger=WandbLoger", "trainer.logger: invalid WandbLoger; expected Logger"),
    ("--trainer.callbacks+=EarlyStoping", "trainer.callbacks+: invalid EarlyStoping; expected a"),
    ("--trainer.max_steps=-1", "trainer.max_steps: "),
    ("--trainer.val_check_interval=0.25", "trainer.val_check_interval: "),
    ("--trainer.limit_train_batches=0.5", "trainer.limit_train_batches: "),
    ("--trainer.gradient_clip_val=-1", "trainer.gradient_clip_val: invalid -1; expected at"),
    ("--trainer.log_every_n_steps=-1", "trainer.log_every_n_steps: invalid -1; expected at"),
    ("--trainer.min_steps=-1", "trainer.min_steps: invalid -1; expected at least 0, or null"),
    ("--trainer.val_check_interval=0.0", "trainer.val_check_interval: "),
    ("--trainer.val_check_interval=0", "trainer.val_check_interval: invalid 0; expected a number"),
    ("--seed_everything=-1", "seed_everything: invalid -1; expected a number from 0 to 4294967295"),
    ("--seed_everything=4294967296", "seed_everything: invalid 4294967296; expected a number fr"),
    ("--plan.minutes=.inf", "plan.minutes: invalid inf; expected a number greater than 0, or null"),
    ("--weights_only=false", "weights_only: invalid false"),
    ("model: {net: {n_layr: 3}}", "a.yaml: model.net.n_layr: unknown key; did you mean"),
    ("model: [", "a.yaml: line 1 is no YAML: expected the node content, but found"),
    ("data:\n  a: 1\n b: 2", "a.yaml: line 3 is no YAML: "),
    ("--trainer.max_steps=null", "trainer.max_steps: invalid null; expected a whole number"),
    ("config: 3", "a.yaml: config: invalid 3; expected --config on the command line, once for"),
    ("config: first.yaml", "a.yaml: config: invalid first.yaml; expected --config on the command"),
    ("\udcff\udcfe", "a.yaml: 'utf-8' codec can't decode"),
    ("--model.net.norm=mid\n" + "mid" * 1000, " characters) ... "),
    (BOMB, "aliases and more than 100 levels are not supported"),
    (f"model: {{net: {{cutoffs: '{{{BOMB.replace(LINE, COMMA)}}}'}}}}", "cutoffs: invalid {a0:"),
    ("[" * 50_000, "aliases and more than 100 levels are not supported"),
]


@pytest.mark.parametrize(
    ("text", "message"), WRONG_SETTINGS, ids=[text[:60] for text, _ in WRONG_SETTINGS]
)
def test_a_wrong_option_or_file_is_one_line(parse_fit, sizes, tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text, errors="surrogateescape")
    (tmp_path / "first.yaml").write_text("model: {net: {n_layer: 1}}")
    files = [f"--config={tmp_path / name}" for name in ("first.yaml", "a.yaml")]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_fit(*sizes, *([text] if text.startswith("--") else files))
    assert "\n" not in str(error.value)
    assert len(format_line(str(error.value))) < 1100


def test_a_distance_of_validations_may_be_a_duration(parse_fit, sizes):
    config = parse_fit(*sizes, "--trainer.val_check_interval=00:00:10:00")
    assert config.trainer.val_check_interval == "00:00:10:00"


def test_a_folder_of_runs_that_is_null_is_the_usual_one(parse_fit, sizes):
    config = parse_fit(*sizes, "--trainer.default_root_dir=null")
    assert config.trainer.default_root_dir == "runs"


AVERAGE = "{class_path: WeightAverage, init_args: {decay: 2}}"
MISTAKES = [
    ("fit --seed=5", 2, "unknown option --seed; did you mean --seed_everything?"),
    ("fit --max-steps=5", 2, "unknown option --max_steps; did you mean --trainer.max_steps?"),
    ("fit --ckpt_path=http://127.0.0.1:9/a.ckpt", 2, "a.ckpt; expected a path on this machine"),
    ("fit --trainer.default_root_dir=s3://bucket/x", 2, "a URL; checkpoint.mirror copies runs to"),
    (f"fit --trainer.callbacks='{AVERAGE}'", 2, "decay: invalid 2.0; expected at least 0 and less"),
    ("fit --model.net.cutoffs=[10,300]", 2, "expected smaller than the vocabulary"),
    ("fit --trainer.accelerator=gpu", 2, "trainer.accelerator: invalid gpu; expected auto or cpu"),
    ("fit --trainer.accelerator=cuda", 2, "trainer.accelerator: invalid cuda; expected auto or"),
    ("fit --data.path=few.txt", 3, "few.txt, train: 27 tokens are too few for 4 rows of 8 + 1"),
    ("fit --data.path=none.txt", 3, "none.txt: no such file"),
    ("fit --trainer.default_root_dir=few.txt/runs", 6, "default_root_dir: few.txt/runs: can"),
    ("fit --config=.", 2, "config: invalid .; expected a file, or a name that"),
    ("fit my.txt", 2, "unknown word my.txt; did you mean --data.path my.txt?"),
    ("fit --data.path=", 2, "data.path: invalid ''; expected a path, not an empty text"),
    ("prepare ''", 2, "name: invalid ''; expected a path"),
    ("evaluate RUN --path=' '", 2, "path: invalid ' '; expected a path"),
    ("evaluate ''", 2, "ckpt_path: invalid ''; expected a path"),
    ("export RUN --out=", 2, "out: invalid ''; expected a path"),
    ("test RUN --ckpt_path=B", 2, "two values; expected one of RUN and --ckpt_path B"),
    ("evaluate RUN --ckpt_path B", 2, "two values; expected one of RUN and --ckpt_path B"),
    ("generate RUN --ckpt_path B", 2, "two values; expected one of RUN and --ckpt_path B"),
    ("generate RUN a --prompt=b", 2, "prompt: invalid two values; expected one of a and --pr"),
    ("generate RUN a --stop=", 2, "stop: invalid ['']; expected texts of at least one character"),
    ("sweep a.yaml b.yaml", 2, "unknown word b.yaml; expected options"),
    ("predict", 2, "ckpt_path: missing"),
    ("trian", 2, "trian: unknown command; expected one of fit, validate"),
    ("prepare a.txt --subwords.n_token=9", 2, "subwords.n_token: invalid 9"),
    ("sweep bomb.yaml", 2, "bomb.yaml: aliases and more than 100 levels"),
    ("generate --ckpt_path='\x1b]0;a\x07\n'", 2, r"ckpt_path: \x1b]0;a\x07 : no such file"),
    ("prepare enwik9", 3, "name: invalid enwik9; expected a file"),
]


@pytest.mark.parametrize(("line", "exit_code", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_and_an_exit_code(refused, small, line, exit_code, message):
    Path("few.txt").write_bytes(b"a" * 30)
    Path("bomb.yaml").write_text(BOMB)
    command, *options = shlex.split(line)
    code, text = refused(command, *(small if command == "fit" else ()), *options)
    assert (code, message in text, len(text) < 1100) == (exit_code, True, True), text


def test_lightning_refuses_a_device_before_any_text_is_encoded(refused, small):
    assert refused("fit", *small, "--trainer.accelerator=quantum")[0] == 2
    assert not Path("data").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"],
        ["--trainer.fast_dev_run=true"],
        ["--trainer.log_every_n_steps=0", "--trainer.limit_val_batches=0"],
        ["--trainer.precision=bf16-mixed", "--model.optim.name=muon"],
        ["--trainer.overfit_batches=2"],
    ],
)
def test_lightnings_own_flags_work(txl, small, options):
    code, output = txl("fit", *small, *options)
    assert code == 0, output.err


@pytest.mark.parametrize(
    "option", ["--checkpoint.mirror=file:///x", "--checkpoint.every_n_steps=2"]
)
def test_what_needs_checkpoints_is_refused_in_a_run_that_writes_none(refused, small, option):
    code, line = refused("fit", *small, "--trainer.enable_checkpointing=false", option)
    assert code == 2
    name = option[2:].partition("=")[0]
    assert line.startswith(f"{name}: invalid ")
    assert line.endswith(" with trainer.enable_checkpointing false")


def test_without_a_logger_a_run_still_has_a_folder(txl, small):
    options = ("--trainer.logger=false", "--trainer.accumulate_grad_batches=2")
    code, output = txl("fit", *small, *options, "--report.html=true")
    assert (code, "run folder: runs/version_0\n" in output.out) == (0, True), output.err
    files = {path.name for path in Path("runs/version_0").iterdir()}
    assert files >= {"config.yaml", "vocab.json", "report.html", "checkpoints"}


@pytest.mark.slow
def test_a_closed_output_is_exit_code_141(run_folder, sizes, tmp_path, processes):
    options = [*sizes, "--trainer.max_steps=100000", f"--data.path={run_folder.parent}/letters.txt"]
    command = [sys.executable, "-m", "txl_lightning", "fit", *options]
    how = {"cwd": tmp_path, "env": os.environ | {"PYTHONUNBUFFERED": "1"}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = processes.start(command, **how, **pipes)
    process.stdout.close()
    assert process.wait(timeout=120) == 141


def test_settings_that_conflict_with_the_checkpoint_are_refused(
    txl, refused, best, run_folder, text_file
):
    text_file.write_bytes(text_file.read_bytes()[::-1])
    last = run_folder / "checkpoints" / "last.ckpt"
    fit = ("fit", "--config", run_folder / "config.yaml", AGAIN, "--ckpt_path", last)
    test = ("test", *best)
    other_text = ("test", *best, f"--data.path={text_file}")
    for arguments, exit_code, message in (
        ((*test, "--model.net.n_layer=3"), 2, "model.net.n_layer: invalid 3"),
        ((*test, "--data.vocab=characters"), 3, "data.vocab: the checkpoint's is"),
        (other_text, 3, "data (letters.txt): the checkpoint's is"),
        (fit, 2, "trainer.max_steps: invalid 4; expected more than the 4"),
        ((*fit, "--trainer.max_steps=6", "--model.optim.name=lamb"), 2, "model.optim.name"),
    ):
        code, text = refused(*arguments)
        assert (code, message in text) == (exit_code, True), text
    with pytest.warns(UserWarning, match="allow_mismatch is true"):
        code, output = txl(*other_text, "--data.allow_mismatch=true")
    assert (code, "test/bits_per_byte" in output.out) == (0, True)


def test_another_optimizer_starts_fresh_from_converted_weights(txl, run_folder):
    last = run_folder / "checkpoints" / "last.ckpt"
    arguments = ("fit", "--config", run_folder / "config.yaml", AGAIN, "--trainer.max_steps=6")
    assert txl("convert", last, "--out=weights")[0] == 0
    assert txl(*arguments, "--ckpt_path=weights", "--model.optim.name=lamb")[0] == 0
    assert txl(*arguments, "--ckpt_path", last, "--model.optim.name=adam")[0] == 0
    continued = Path("again", "version_1", "checkpoints", "last.ckpt")
    assert torch.load(continued, weights_only=True)["global_step"] == 6


def test_prepare_encodes_a_text_once_and_prints_its_path(txl, text_file):
    text_file.write_text("ab cd\n" * 100)
    command = ("prepare", text_file, "--vocab=words", "--data_dir=there", "--document_unit=lines")
    code, output = txl(*command)
    assert (code, "4 words in the vocabulary" in output.out) == (0, True)
    assert "train            270 tokens            540 bytes         90 documents" in output.out
    assert Path(output.out.splitlines()[0].split(": ")[1]).is_relative_to("there")
    assert txl(*command)[1].out == output.out
