"""The command line: what it does, and what it prints about a mistake."""

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from txl_lightning import LanguageModel
from txl_lightning import __main__ as door

AGAIN = "--trainer.default_root_dir=again"
"""Another folder for the runs that continue a finished one."""


def error_line(output) -> str:
    [line] = [line for line in output.err.splitlines() if line.startswith("error: ")]
    return line


def test_fit_writes_all_files_of_a_run(run_folder):
    files = {path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*.*")}
    expected = {"config.yaml", "vocab.json", "metrics.csv", "hparams.yaml", "curve.png"}
    expected |= {"report.html", "attention.png", "probe.json"}
    assert expected | {"checkpoints/best.ckpt", "checkpoints/last.ckpt"} <= files
    hparams = yaml.safe_load((run_folder / "hparams.yaml").read_text())
    assert len(hparams["data"]["fingerprint"]) == 16
    columns = (run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    for stage in ("train", "val"):
        names = ("loss", "nats", "bits_per_byte", "perplexity", "tokens_seen")
        assert {f"{stage}/{name}" for name in names} <= set(columns)
    assert {"train/tokens_per_second", "train/lr", "val/memory_gain"} <= set(columns)


def test_the_saved_config_gives_the_same_run(txl, run_folder):
    assert txl("fit", "--config", run_folder / "config.yaml", AGAIN)[0] == 0
    first, second = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        for folder in (run_folder, Path("again", "version_0"))
    )
    for name, weight in first["state_dict"].items():
        assert torch.equal(weight, second["state_dict"][name])


def test_test_and_validate_measure_a_checkpoint(txl, run_folder):
    arguments = ("--config", run_folder / "config.yaml", "--ckpt_path")
    for command, name in (("test", "test/bits_per_byte"), ("validate", "val/bits_per_byte")):
        code, output = txl(command, *arguments, run_folder / "checkpoints" / "best.ckpt")
        assert code == 0
        assert name in output.out


def test_predict_writes_nats_of_every_token(txl, run_folder):
    arguments = ("--config", run_folder / "config.yaml", AGAIN, "--ckpt_path")
    code, output = txl("predict", *arguments, run_folder / "checkpoints" / "best.ckpt")
    assert code == 0
    path = Path("again", "version_0", "nats.npy")
    assert str(path) in output.out
    assert np.load(path).shape == (4, 300 // 4 - 1)


def test_lengths_given_at_evaluation_win_over_the_checkpoints(txl, run_folder, monkeypatch):
    seen, on_test_epoch_end = [], LanguageModel.on_test_epoch_end
    monkeypatch.setattr(
        LanguageModel,
        "on_test_epoch_end",
        lambda self: (
            seen.append(self.memory_bank.committed["test", 0].mem_len),
            on_test_epoch_end(self),
        )[1],
    )
    path = yaml.safe_load((run_folder / "config.yaml").read_text())["data"]["path"]
    arguments = ["--ckpt_path", run_folder / "checkpoints" / "best.ckpt"]
    arguments += ["--data.tgt_len=8", "--data.batch_size=4", f"--data.path={path}"]
    assert txl("test", *arguments)[0] == 0
    assert txl("test", *arguments, "--model.net.mem_len=128")[0] == 0
    assert txl("test", *arguments, "--model.eval_mem_len=3")[0] == 0
    assert seen == [8, 128, 3]


def test_text_outside_the_terminals_encoding_is_escaped(txl, small, text_file, monkeypatch):
    text_file.write_text("é" * 3000, encoding="utf-8")
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    checkpoint = Path("runs", "version_0", "checkpoints", "last.ckpt")
    code, _ = txl("generate", "--ckpt_path", checkpoint, "--prompt=é", "--stop=é")
    sys.stdout.flush()
    assert code == 0
    assert shown.getvalue().startswith(rb"\xe9")


def test_print_config_round_trips(txl, tmp_path):
    first = txl("fit", "--model.net.n_layer=3", "--print_config")[1].out
    (tmp_path / "a.yaml").write_text(first)
    assert txl("fit", "--config", "a.yaml", "--print_config")[1].out == first
    assert yaml.safe_load(first)["model"]["net"]["n_layer"] == 3


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_command_the_commands_are_listed(txl, arguments):
    code, output = txl(*arguments)
    assert code == 0
    assert all(command in output.out for command in door.COMMANDS)


WRONG_SETTINGS = [
    ("--model.net.n_layr=3", "model.net.n_layr: unknown key; did you mean model.net.n_layer?"),
    ("--max_steps=5", "max_steps: unknown key; did you mean trainer.max_steps?"),
    ("--model.net.n_layer=two", "model.net.n_layer: invalid two; expected a whole"),
    ("--model.net.d_head=wide", "model.net.d_head: invalid wide; expected a whole"),
    ("--model.net.norm=mid", "model.net.norm: invalid mid; expected one of post, pre"),
    ("--model.net.d_model=9", "model.net.d_model: invalid 9; expected an even"),
    ("--model.eval_mem_len=-1", "model.eval_mem_len: invalid -1"),
    ("--model.eval_same_length=foo", "invalid foo; expected mem_len, mem_len+1, all or"),
    ("--model.optim.lr=0", "model.optim.lr: invalid 0.0; expected greater than 0"),
    ("--data.tgt_len=-5", "data.tgt_len: invalid -5; expected at least 1"),
    ("--data.split=[1,1,1]", "data.split: invalid [1.0, 1.0, 1.0]"),
    ("--data.task.length=0", "data.task.length: invalid 0"),
    ("--data.subwords.n_token=9", "data.subwords.n_token: invalid 9"),
    ("--data.corpus=none", "data.corpus: invalid none; expected one of python_source"),
    ("--trainer.logger=os.system", "trainer.logger: a config may not import os.system"),
    ("--trainer.max_steps=-1", "trainer.max_steps: "),
    ("--trainer.val_check_interval=0.25", "trainer.val_check_interval: "),
    ("--trainer.val_check_interval=1.0", "trainer.val_check_interval: "),
    ("--trainer.limit_train_batches=0.5", "trainer.limit_train_batches: "),
    ("--weights_only=false", "weights_only: invalid false"),
    ("--config=none.yaml", "File does not exist"),
    ("model: {net: {n_layr: 3}}", "model.net.n_layr: unknown key; did you mean"),
    ("trainer: {callbacks: [{class_path: torch.hub.load}]}", "may not import torch.hub.load"),
    ("model: [", "Problems parsing config"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_SETTINGS, ids=[w for w, _ in WRONG_SETTINGS])
def test_a_wrong_option_or_file_is_one_line(parse_fit, sizes, tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    argument = text if text.startswith("--") else f"--config={tmp_path / 'a.yaml'}"
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_fit(*sizes, argument)
    assert "\n" not in str(error.value)


CALLBACK = "--trainer.callbacks={class_path: WeightAverage, init_args: {decay: 2}}"


@pytest.mark.parametrize(
    ("argument", "exit_code", "message"),
    [
        ("--max-steps=5", 2, "max_steps: unknown key; did you mean trainer.max_steps?"),
        ("--ckpt_path=none.ckpt", 2, "ckpt_path: none.ckpt: no such file"),
        ("--ckpt_path=http://127.0.0.1:9/a.ckpt", 2, "no such file"),
        (CALLBACK, 2, "decay: invalid 2.0; expected at least 0 and less than 1, or null"),
        ("--model.net.cutoffs=[10, 300]", 2, "expected smaller than the vocabulary"),
        ("--trainer.accelerator=gpu", 2, "No supported gpu backend found"),
        ("--trainer.default_root_dir=letters.txt/runs", 6, "letters.txt/runs: cannot be written"),
    ],
)
def test_a_run_that_cannot_be_built_is_one_line(txl, small, argument, exit_code, message):
    code, output = txl("fit", *small, argument)
    assert code == exit_code
    assert message in error_line(output)


class Malicious:
    """A call, made when its pickle is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("canary"),)


MALICIOUS = {"hyper_parameters": {"net": {}}, "state_dict": Malicious()}
FOREIGN = [("fit", {"hyper_parameters": {"layers": 3}}), ("fit", [1, 2]), ("fit", None)]
FOREIGN += [(command, MALICIOUS) for command in ("fit", "validate", "generate")]


@pytest.mark.parametrize(("command", "content"), FOREIGN)
def test_a_foreign_file_is_no_checkpoint_and_runs_no_code(
    txl, text_file, command, content, monkeypatch
):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(content, "foreign.ckpt")
    data = [] if command == "generate" else [f"--data.path={text_file}"]
    code, output = txl(command, *data, "--ckpt_path=foreign.ckpt")
    assert code == 4
    assert "foreign.ckpt is not a checkpoint written by fit" in error_line(output)
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    ("content", "options", "exit_code", "message"),
    [
        (b"a" * 30, [], 2, "own.txt, train: 27 tokens are too few for 4 rows of 8 + 1"),
        (None, [], 3, "own.txt: no such file"),
        (b"", [], 3, "own.txt: there is no text in it"),
        (b"abc\xff", ["--data.vocab=characters"], 3, "own.txt: byte 3 is not UTF-8 text"),
        (b"abcz" * 99, ["--data.vocab=v.json"], 3, "'z' is not among the vocabulary's 3"),
        (b"abc" * 99, ["--data.vocab=wrds"], 3, "data.vocab: invalid wrds"),
    ],
)
def test_wrong_data_is_one_line_and_its_exit_code(txl, sizes, content, options, exit_code, message):
    Path("v.json").write_text('{"kind": "characters", "alphabet": "abc"}')
    if content is not None:
        Path("own.txt").write_bytes(content)
    code, output = txl("fit", *sizes, "--data.path=own.txt", *options)
    assert code == exit_code
    assert message in error_line(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "ckpt_path"),
        (["generate", "--ckpt_path=none.ckpt"], "ckpt_path: none.ckpt: no such file"),
        (["generate", "--ckpt_path=a", "--sed=3"], "sed: unknown key; did you mean seed?"),
        (["generate", "--ckpt_path=a", "--top_k=many"], "top_k: invalid many; expected a"),
        (["prepare", "a.txt", "--subwords.n_token=9"], "subwords.n_token: invalid 9"),
        (["prepare", "--vocab=bytes"], "name"),
        (["predict"], "ckpt_path: missing"),
        (["trian"], "trian: unknown command; expected one of fit, validate"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_of_a_command_is_exit_code_2(txl, arguments, message):
    code, output = txl(*arguments)
    assert code == 2
    assert message in error_line(output)


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"],
        ["--trainer.fast_dev_run=true"],
        ["--trainer.log_every_n_steps=0", "--trainer.limit_val_batches=0"],
        ["--trainer.logger=false", "--trainer.accumulate_grad_batches=2"],
        ["--trainer.precision=bf16-mixed", "--model.optim.name=muon"],
        ["--trainer.overfit_batches=2"],
    ],
)
def test_lightnings_own_flags_work(txl, small, options):
    code, output = txl("fit", *small, *options)
    assert code == 0, output.err


def test_without_a_logger_a_run_still_has_a_folder(txl, small):
    code, output = txl("fit", *small, "--trainer.logger=false", "--report.html=true")
    assert code == 0, output.err
    folder = Path("runs", "version_0")
    files = {path.name for path in folder.iterdir()}
    assert files >= {"config.yaml", "vocab.json", "report.html", "checkpoints"}
    assert f"run folder: {folder.resolve()}" in output.out


def test_a_run_shorter_than_a_validation_interval_is_saved(txl, small):
    assert txl("fit", *small, "--trainer.val_check_interval=50")[0] == 0
    last = Path("runs", "version_0", "checkpoints", "last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == 4


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(small, tmp_path, repository, text_file):
    """Also where the rows of one have more targets than those of the other."""
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text_file.write_bytes(text)

    def losses(folder: str, *options: str) -> list[float]:
        command = [sys.executable, "-m", "txl_lightning", "fit", *small, *options]
        command += ["--data.document_unit=lines", "--data.order=shuffled"]
        # So exact, and learning so fast, that a wrong memory is seen.
        command += ["--trainer.precision=64-true", "--model.optim.lr=0.1"]
        command += [f"--trainer.default_root_dir={tmp_path / folder}"]
        subprocess.run(command, cwd=repository, capture_output=True, check=True, timeout=240)
        with (tmp_path / folder / "version_0" / "metrics.csv").open() as file:
            names, rows = ("train/nats", "val/nats", "train/tokens_seen"), [*csv.DictReader(file)]
        return [float(row[name]) for name in names for row in rows if row[name]]

    one = losses("one")
    devices = ("--trainer.devices=2", "--trainer.strategy=ddp")
    assert losses("two", *devices) == pytest.approx(one, rel=1e-6)
    assert losses("parts", *devices, "--data.micro_batches=2") == pytest.approx(one, rel=1e-6)
    assert len(one) == 4 + 4 + 2


@pytest.mark.slow
def test_a_closed_output_is_exit_code_141(run_folder, sizes, tmp_path, repository):
    given = [*sizes, "--trainer.max_steps=100000", f"--data.path={run_folder.parent}/letters.txt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "txl_lightning", "fit", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repository), "PYTHONUNBUFFERED": "1"},
    )
    process.stdout.close()
    assert process.wait(timeout=120) == 141


def test_what_does_not_fit_the_checkpoint_is_refused(txl, run_folder, text_file):
    config, folder = run_folder / "config.yaml", run_folder / "checkpoints"
    fit = ("fit", "--config", config, "--ckpt_path", folder / "last.ckpt")
    test = ("test", "--config", config, "--ckpt_path", folder / "best.ckpt")
    text_file.write_bytes(text_file.read_bytes()[::-1])
    other_text = (*test, f"--data.path={text_file}")
    for arguments, exit_code, message in (
        ((*test, "--model.net.n_layer=3"), 2, "model.net.n_layer"),
        ((*test, "--data.vocab=characters"), 3, "data.vocab: the checkpoint's is"),
        (other_text, 3, "the checkpoint's is"),
        (fit, 2, "trainer.max_steps: invalid 4; expected more than the 4"),
        ((*fit, "--trainer.max_steps=6", "--model.optim.name=lamb"), 2, "model.optim.name"),
    ):
        code, output = txl(*arguments)
        assert (code, message in error_line(output)) == (exit_code, True), output.err
    with pytest.warns(UserWarning, match="allow_mismatch is true"):
        code, output = txl(*other_text, "--data.allow_mismatch=true")
    assert code == 0
    assert "test/bits_per_byte" in output.out


def test_another_optimizer_begins_anew_from_converted_weights(txl, run_folder):
    last = run_folder / "checkpoints" / "last.ckpt"
    arguments = ("fit", "--config", run_folder / "config.yaml", AGAIN, "--trainer.max_steps=6")
    assert txl("convert", last, "--out=weights")[0] == 0
    assert txl(*arguments, "--ckpt_path=weights", "--model.optim.name=lamb")[0] == 0
    assert txl(*arguments, "--ckpt_path", last, "--model.optim.name=adam")[0] == 0
    continued = Path("again", "version_1", "checkpoints", "last.ckpt")
    assert torch.load(continued, weights_only=True)["global_step"] == 6


def test_prepare_encodes_a_text_once_and_says_where_it_is(txl, text_file):
    text_file.write_text("ab cd\n" * 100)
    given = ("prepare", text_file, "--vocab=words", "--data_dir=there", "--document_unit=lines")
    code, output = txl(*given)
    assert code == 0
    assert "4 words in the vocabulary" in output.out
    assert "train            270 tokens            540 bytes         90 documents" in output.out
    assert Path(output.out.splitlines()[0].split(": ")[1]).is_relative_to("there")
    assert txl(*given)[1].out == output.out
    code, output = txl("prepare", "enwik9")
    assert (code, "name: invalid enwik9; expected a file" in error_line(output)) == (3, True)


@pytest.mark.slow
def test_a_mistake_is_the_exit_code_of_the_process(repository):
    command = [sys.executable, "-m", "txl_lightning", "fit", "--data.path=none.txt"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.strip().splitlines()[-1].startswith("error: none.txt: no such file")
