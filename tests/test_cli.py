"""The command line: what it does, and what it says about a mistake."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from txl_lightning import __main__ as door


@pytest.fixture
def again(tmp_path) -> str:
    """Keep what follows of a finished run somewhere else."""
    return "--trainer.default_root_dir=again"


def complaint(output) -> str:
    """The one line on stderr that is ours."""
    lines = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def test_fit_keeps_all_that_a_run_needs(run_folder):
    files = {path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*.*")}
    kept = {"config.yaml", "vocab.json", "metrics.csv", "hparams.yaml", "curve.png"}
    kept |= {"report.html", "attention.png"}
    assert kept | {"checkpoints/best.ckpt", "checkpoints/last.ckpt"} <= files
    hparams = yaml.safe_load((run_folder / "hparams.yaml").read_text())
    assert len(hparams["data"]["fingerprint"]) == 16
    columns = (run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/nats", "train/bits_per_byte", "val/nats", "val/bits_per_byte"} <= set(columns)
    assert {"train/tokens_per_second", "train/lr", "train/tokens_seen"} <= set(columns)
    assert {"val/perplexity", "val/memory_gain", "val/tokens_seen"} <= set(columns)


def test_the_saved_config_gives_the_same_run(txl, run_folder, again):
    assert txl("fit", "--config", run_folder / "config.yaml", again)[0] == 0
    first, second = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        for folder in (run_folder, Path("again", "version_0"))
    )
    for name, weight in first["state_dict"].items():
        assert torch.equal(weight, second["state_dict"][name])


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    """What a run logged under a name, and at which step."""
    with (folder / "metrics.csv").open() as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]]


def test_micro_batches_change_no_number_of_a_run(txl, run_folder, tmp_path):
    config = run_folder / "config.yaml"
    runs = "--trainer.default_root_dir=chunks"
    for chunks in ("--data.micro_batches=1", "--data.micro_batches=2"):
        given = (runs, chunks, "--model.net.dropout=0", "--data.ext_len=3")
        code, output = txl("fit", "--config", config, *given)
        assert code == 0, output.err
    assert txl("fit", "--config", "chunks/version_1/config.yaml")[0] == 0
    whole, chunked, again = (Path("chunks", f"version_{n}") for n in range(3))
    for name in ("train/nats", "train/tokens_seen", "train/lr", "val/nats"):
        (steps, values), (chunk_steps, chunk_values) = (
            zip(*logged(folder, name), strict=True) for folder in (whole, chunked)
        )
        assert chunk_steps == steps
        assert chunk_values == pytest.approx(values, rel=1e-5)
        assert logged(again, name) == logged(chunked, name)
    assert [step + 1 for step, _ in logged(chunked, "val/nats")] == [2, 4]
    first, second = (yaml.safe_load((f / "config.yaml").read_text()) for f in (whole, chunked))
    assert second["data"].pop("micro_batches") == 2
    assert first["data"].pop("micro_batches") == 1
    assert second == first
    assert first["data"]["ext_len"] == 3


def test_a_run_continues_from_its_last_checkpoint(txl, run_folder, again):
    checkpoint = run_folder / "checkpoints" / "last.ckpt"
    arguments = ("--config", run_folder / "config.yaml", "--ckpt_path", checkpoint, again)
    assert txl("fit", *arguments, "--trainer.max_steps=6")[0] == 0
    last = Path("again", "version_0", "checkpoints", "last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == 6


def test_test_and_validate_measure_a_checkpoint(txl, run_folder):
    arguments = ("--config", run_folder / "config.yaml", "--ckpt_path")
    for verb, name in (("test", "test/bits_per_byte"), ("validate", "val/bits_per_byte")):
        code, output = txl(verb, *arguments, run_folder / "checkpoints" / "best.ckpt")
        assert code == 0
        assert name in output.out


def test_predict_writes_a_file(txl, run_folder, again):
    arguments = ("--config", run_folder / "config.yaml", again, "--ckpt_path")
    code, output = txl("predict", *arguments, run_folder / "checkpoints" / "best.ckpt")
    assert code == 0
    path = Path("again", "version_0", "nats.npy")
    assert str(path) in output.out
    assert np.load(path).shape == (4, 300 // 4 - 1)


def test_generate_continues_a_prompt(txl, run_folder):
    arguments = ("--ckpt_path", run_folder / "checkpoints" / "last.ckpt", "--prompt", "abc")
    first, second = (txl("generate", *arguments, "--length=20", "--seed=1") for _ in range(2))
    assert first[0] == 0
    assert first[1].out.startswith("abc")
    assert first[1].out == second[1].out


def test_generate_puts_words_where_words_belong(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    code, output = txl("generate", "--ckpt_path", checkpoint, "--prompt=ab cd", "--length=9")
    assert code == 0
    assert set(output.out.split()) <= {"ab", "cd", "<unk>"}
    assert output.out.startswith("ab cd")


def test_what_the_terminal_cannot_show_is_no_reason_to_fail(txl, small, text_file, monkeypatch):
    text_file.write_text("é" * 3000, encoding="utf-8")
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    checkpoint = Path("runs", "version_0", "checkpoints", "last.ckpt")
    code, _ = txl("generate", "--ckpt_path", checkpoint, "--prompt=é", "--length=2")
    sys.stdout.flush()
    assert (code, shown.getvalue().split()[0]) == (0, rb"\xe9\xe9\xe9")


def test_lengths_given_at_evaluation_win_over_the_checkpoints(txl, run_folder, monkeypatch):
    from txl_lightning import LanguageModel

    seen = []
    kept = LanguageModel.on_test_epoch_end
    monkeypatch.setattr(
        LanguageModel,
        "on_test_epoch_end",
        lambda self: (seen.append(self.memory_bank.committed["test", 0].mem_len), kept(self))[1],
    )
    arguments = ["--ckpt_path", run_folder / "checkpoints" / "best.ckpt"]
    path = yaml.safe_load((run_folder / "config.yaml").read_text())["data"]["path"]
    arguments += ["--data.tgt_len=8", "--data.batch_size=4", f"--data.path={path}"]
    assert txl("test", *arguments)[0] == 0
    assert txl("test", *arguments, "--model.net.mem_len=128")[0] == 0
    assert txl("test", *arguments, "--model.eval_mem_len=3")[0] == 0
    assert seen == [8, 128, 3]


def test_a_part_that_shapes_weights_cannot_differ_from_the_checkpoint(txl, run_folder):
    checkpoint = run_folder / "checkpoints" / "best.ckpt"
    code, output = txl("test", "--ckpt_path", checkpoint, "--model.net.n_layer=3")
    assert code == 2
    assert "model.net.n_layer: 3 is not the 1 of the checkpoint" in complaint(output)


def test_a_checkpoint_of_another_vocabulary_is_refused(txl, run_folder):
    config, checkpoint = run_folder / "config.yaml", run_folder / "checkpoints" / "best.ckpt"
    arguments = ("test", "--config", config, "--ckpt_path", checkpoint)
    code, output = txl(*arguments, "--data.vocab=characters")
    assert code == 3
    assert "data.vocab: the checkpoint's is" in complaint(output)


@pytest.mark.parametrize("verb", ["fit", "test"])
def test_print_config_round_trips(txl, tmp_path, verb):
    first = txl(verb, "--model.net.n_layer=3", "--print_config")[1].out
    (tmp_path / "a.yaml").write_text(first)
    assert txl(verb, "--config", "a.yaml", "--print_config")[1].out == first
    assert yaml.safe_load(first)["model"]["net"]["n_layer"] == 3


def test_help_is_the_fields_own_words(txl):
    code, output = txl("fit", "--help")
    text = " ".join(output.out.split())
    assert code == 0
    assert "Hidden states M remembered per layer while training" in text
    assert "Peak learning rate, whatever the schedule" in text
    assert "Rows read in parallel, over all devices together" in text


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_door_lists_its_verbs(txl, arguments):
    code, output = txl(*arguments)
    assert code == 0
    assert all(verb in output.out for verb in door.VERBS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--model.net.n_layr=3", "model.net.n_layr: unknown key; did you mean model.net.n_layer?"),
        ("--n_layer=3", "n_layer: unknown key; did you mean model.net.n_layer?"),
        ("--model.net.n_layer=two", "model.net.n_layer: invalid two; expected a whole"),
        (
            "--model.net.norm=mid",
            "model.net.norm: invalid mid; expected one of post, pre",
        ),
        ("--model.net.d_model=9", "model.net.d_model: invalid 9; expected an even"),
        ("--model.net.n_head=3", "model.net.d_model: invalid 8; expected a multiple of"),
        ("--model.net.mem_len=-1", "model.net.mem_len: invalid -1"),
        ("--model.optim.lr=0", "model.optim.lr: invalid 0.0; expected greater than 0"),
        ("--data.tgt_len=-5", "data.tgt_len: invalid -5; expected at least 1"),
        ("--data.ext_len=-1", "data.ext_len: invalid -1; expected at least 0"),
        ("--data.eval_ext_len=-1", "data.eval_ext_len: invalid -1"),
        ("--data.micro_batches=0", "data.micro_batches: invalid 0; expected at least 1"),
        ("--data.split=[1,1,1]", "data.split: invalid [1.0, 1.0, 1.0]"),
        (
            "--data.corpus=none",
            "data.corpus: invalid none; expected one of python_source",
        ),
        ("--ckpt_path=none.ckpt", "ckpt_path: none.ckpt: no such file"),
        ("--config=none.yaml", "File does not exist"),
        (
            "--trainer.callbacks={class_path: WeightAverage, init_args: {decay: 2}}",
            "decay: invalid 2.0; expected at least 0 and less than 1, or null",
        ),
        ("--trainer.logger=os.system", "trainer.logger: a config may not import os.system"),
        ("--model.net.d_head=wide", "model.net.d_head: invalid wide; expected a whole"),
        ("--max-steps=5", "max_steps: unknown key; did you mean trainer.max_steps?"),
        ("--model.eval_mem_len=-1", "model.eval_mem_len: invalid -1"),
        (
            "--model.eval_same_length=foo",
            "model.eval_same_length: invalid foo; expected mem_len, mem_len+1, all or",
        ),
        (
            "--model.net.cutoffs=[10, 300]",
            "model.net.cutoffs: invalid [10, 300]; expected smaller than the vocabulary",
        ),
        (
            "--trainer.max_steps=-1",
            "trainer.max_steps: invalid -1; expected a number of steps, where",
        ),
        ("--trainer.accelerator=gpu", "No supported gpu backend found"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(txl, small, tmp_path, given, said):
    code, output = txl("fit", *small, given)
    assert code == 2
    assert said in complaint(output)


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_code_6(txl, small, text_file):
    code, output = txl("fit", *small, f"--trainer.default_root_dir={text_file}/runs")
    assert code == 6
    said = (
        f"error: trainer.default_root_dir: {text_file}/runs: cannot be written (Not a directory; "
    )
    assert complaint(output).startswith(said)


class Malicious:
    """What a pickle may hold: a call, made when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("canary"),)


@pytest.mark.parametrize("verb", ["fit", "validate", "generate"])
@pytest.mark.parametrize("forced", [False, True])
def test_a_checkpoint_can_run_no_code(txl, tmp_path, text_file, verb, forced, monkeypatch):
    if forced:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"hyper_parameters": {"net": {}}, "state_dict": Malicious()}, "bad.ckpt")
    data = [] if verb == "generate" else [f"--data.path={text_file}"]
    code, output = txl(verb, *data, "--ckpt_path=bad.ckpt")
    assert code == 4
    assert "bad.ckpt is not a checkpoint written by fit" in complaint(output)
    assert not Path("canary").exists()


@pytest.mark.parametrize("held", [{"hyper_parameters": {"layers": 3}}, [1, 2], None])
def test_a_foreign_file_is_no_checkpoint(txl, small, held):
    torch.save(held, "foreign.ckpt")
    code, output = txl("fit", *small, "--ckpt_path=foreign.ckpt")
    assert code == 4
    assert "foreign.ckpt is not a checkpoint written by fit" in complaint(output)


def test_a_checkpoint_is_no_address(txl, small):
    code, output = txl("fit", *small, "--ckpt_path=http://127.0.0.1:9/a.ckpt")
    assert code == 2
    assert "no such file" in complaint(output)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("model: {net: {n_layr: 3}}", "model.net.n_layr: unknown key; did you mean"),
        ("trainer: {callbacks: [{class_path: os.system}]}", "a config may not import os.system"),
        ("trainer: {callbacks: [{class_path: torch.hub.load}]}", "may not import torch.hub.load"),
        ("model: [", "Problems parsing config"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(txl, tmp_path, written, said):
    (tmp_path / "a.yaml").write_text(written)
    code, output = txl("fit", "--config=a.yaml")
    assert code == 2
    assert said in complaint(output)


def test_sizes_that_the_text_cannot_fill_are_one_line_and_exit_code_2(txl, sizes, tmp_path):
    (tmp_path / "own.txt").write_bytes(b"a" * 30)
    code, output = txl("fit", *sizes, "--data.path=own.txt")
    assert code == 2
    said = "own.txt, train: 27 tokens are too few for 4 rows of 8 + 1 (4 x 9 = 36)"
    assert said in complaint(output)


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (None, [], "own.txt: no such file"),
        (b"", [], "own.txt: the file is empty"),
        (b"abc\xff", ["--data.vocab=characters"], "own.txt: byte 3 is not UTF-8 text"),
        (b"abcz" * 99, ["--data.vocab=vocab.json"], "own.txt: 'z' is not among the vocabulary's 3"),
        (b"abc" * 99, ["--data.vocab=wrds"], "data.vocab: invalid wrds ("),
    ],
)
def test_wrong_data_is_one_line_and_exit_code_3(txl, sizes, tmp_path, content, options, said):
    (tmp_path / "vocab.json").write_text('{"kind": "characters", "alphabet": "abc"}')
    if content is not None:
        (tmp_path / "own.txt").write_bytes(content)
    code, output = txl("fit", *sizes, "--data.path=own.txt", *options)
    assert code == 3
    assert said in complaint(output)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "ckpt_path"),
        (["--ckpt_path=none.ckpt"], "ckpt_path: none.ckpt: no such file"),
        (["--ckpt_path=none.ckpt", "--lenght=3"], "lenght: unknown key; did you mean length?"),
        (["--ckpt_path=none.ckpt", "--top_k=many"], "top_k: invalid many; expected a"),
    ],
)
def test_a_wrong_option_of_generate_is_one_line_and_exit_code_2(txl, given, said):
    code, output = txl("generate", *given)
    assert code == 2
    assert said in complaint(output)


@pytest.mark.parametrize(
    "given",
    [
        ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"],
        ["--trainer.fast_dev_run=true"],
        ["--trainer.log_every_n_steps=0", "--trainer.limit_val_batches=0"],
        ["--trainer.logger=false", "--trainer.accumulate_grad_batches=2"],
        ["--trainer.precision=bf16-mixed", "--model.optim.name=muon"],
        ["--trainer.overfit_batches=2"],
    ],
)
def test_lightnings_own_flags_work(txl, small, given):
    code, output = txl("fit", *small, *given)
    assert code == 0, output.err


def test_a_run_is_a_folder_whatever_else_logs_it(txl, small):
    code, output = txl(
        "fit", *small, "--trainer.logger=WandbLogger", "--trainer.logger.offline=true"
    )
    assert code == 0, output.err
    run = Path("runs", "version_0")
    assert logged(run, "val/nats")
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert list(Path("runs", "wandb").glob("offline-run-*"))


def test_without_a_logger_each_run_still_has_a_folder(txl, small):
    for number in range(2):
        given = ["--trainer.logger=false", "--report.html=true"]
        code, output = txl("fit", *small, *given)
        assert code == 0, output.err
        folder = Path("runs", f"version_{number}")
        files = {path.name for path in folder.iterdir()}
        assert files >= {"config.yaml", "vocab.json", "report.html", "checkpoints"}
        assert f"run folder: {folder.resolve()}" in output.out
    assert {path.name for path in Path("runs").iterdir()} == {"version_0", "version_1"}


def test_a_run_shorter_than_a_validation_interval_is_saved(txl, small, tmp_path):
    assert txl("fit", *small, "--trainer.val_check_interval=50")[0] == 0
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 4


def test_two_processes_take_the_steps_of_one(small, tmp_path, repository, text_file):
    """Also where the rows of one have more to predict than those of the other, and in chunks."""
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text_file.write_bytes(text)

    def losses(folder: str, *options: str) -> list[list[str]]:
        command = [sys.executable, "-m", "txl_lightning", "fit", *small, *options]
        command += ["--model.net.dropout=0", "--data.document_unit=lines", "--data.order=shuffled"]
        # So exact, and learning so fast, that a wrong memory is seen.
        command += ["--trainer.precision=64-true", "--model.optim.lr=0.1"]
        command += [f"--trainer.default_root_dir={tmp_path / folder}"]
        subprocess.run(command, cwd=repository, capture_output=True, check=True, timeout=240)
        with (tmp_path / folder / "version_0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = ("train/nats", "val/nats", "train/tokens_seen")
        return [float(row[name]) for row in rows for name in names if row[name]]

    one = losses("one")
    devices = ("--trainer.devices=2", "--trainer.strategy=ddp")
    two = losses("two", *devices)
    chunked = losses("chunked", *devices, "--data.micro_batches=2")
    assert two == pytest.approx(one, rel=1e-6)
    assert chunked == pytest.approx(one, rel=1e-6)
    assert len(one) == 4 + 4 + 2


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_a_reader_that_has_enough_is_no_mistake(run_folder, sizes, tmp_path, repository, verb):
    """Or none at all: | head -0."""
    given = [*sizes, "--trainer.max_steps=100000", f"--data.path={run_folder.parent}/letters.txt"]
    if verb == "validate":
        given = ["--config", run_folder / "config.yaml", "--ckpt_path"]
        given += [run_folder / "checkpoints" / "best.ckpt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "txl_lightning", verb, *map(str, given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repository), "PYTHONUNBUFFERED": "1"},
    )
    process.stdout.close()
    assert process.wait(timeout=120) == 141


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_nothing_is_measured_without_a_checkpoint(txl, small, verb):
    code, output = txl(verb, *small)
    assert code == 2
    assert "ckpt_path: missing" in complaint(output)


def test_a_run_cannot_continue_to_where_it_has_been(txl, run_folder):
    arguments = ("--config", run_folder / "config.yaml", "--ckpt_path")
    code, output = txl("fit", *arguments, run_folder / "checkpoints" / "last.ckpt")
    assert code == 2
    assert "trainer.max_steps: invalid 4; expected more than the 4" in complaint(output)


@pytest.mark.parametrize("name", ["lamb", "muon", "sgd", "adagrad"])
def test_another_optimiser_does_not_go_on_from_what_one_has_kept(txl, run_folder, again, name):
    arguments = ("--config", run_folder / "config.yaml", again, "--trainer.max_steps=6")
    arguments = (*arguments, "--ckpt_path", run_folder / "checkpoints" / "last.ckpt")
    code, output = txl("fit", *arguments, f"--model.optim.name={name}")
    assert code == 2
    assert f"model.optim.name: {name} is not the adamw of the checkpoint" in complaint(output)


def test_another_optimiser_begins_anew_from_converted_weights(txl, run_folder, again):
    last = run_folder / "checkpoints" / "last.ckpt"
    arguments = ("fit", "--config", run_folder / "config.yaml", again, "--trainer.max_steps=6")
    assert txl("convert", last, "--out=weights")[0] == 0
    assert txl(*arguments, "--ckpt_path=weights", "--model.optim.name=lamb")[0] == 0
    assert txl(*arguments, "--ckpt_path", last, "--model.optim.name=adam")[0] == 0


def test_prepare_makes_a_text_ready_and_says_where_it_is(txl, text_file):
    text_file.write_text("ab cd\n" * 100)
    code, output = txl(
        "prepare", text_file, "--vocab=words", "--data_dir=there", "--document_unit=lines"
    )
    assert code == 0
    assert "4 words in the vocabulary" in output.out
    assert "train            270 tokens            540 bytes         90 documents" in output.out
    folder = Path(output.out.splitlines()[0].split(": ")[1])
    assert folder.is_dir()
    assert folder.is_relative_to("there")
    again = txl("prepare", text_file, "--vocab=words", "--data_dir=there", "--document_unit=lines")
    assert again[1].out == output.out


@pytest.mark.parametrize("option", ["subwords.n_token=9", "words.min_freq=-1", "task.length=0"])
def test_prepare_refuses_a_number_with_the_whole_key(txl, text_file, option):
    code, output = txl("prepare", text_file, f"--{option}")
    assert code == 2
    assert complaint(output).startswith(f"error: {option.replace('=', ': invalid ')}")


def test_prepare_knows_the_corpora(txl):
    code, output = txl("prepare", "enwik9")
    assert code == 3
    assert "enwik9: no such text; it must be a file, a folder, or one of" in complaint(output)
    assert txl("prepare", "sort")[0] == 0
    code, output = txl("prepare", "--vocab=bytes")
    assert code == 2
    assert "name" in complaint(output)


def test_a_model_is_not_measured_on_another_text_unless_it_is_said(txl, run_folder, text_file):
    text_file.write_bytes(text_file.read_bytes()[::-1])
    arguments = ("test", "--config", run_folder / "config.yaml", f"--data.path={text_file}")
    arguments = (*arguments, "--ckpt_path", run_folder / "checkpoints" / "best.ckpt")
    code, output = txl(*arguments)
    assert code == 3
    assert "the checkpoint's is" in complaint(output)
    with pytest.warns(UserWarning, match="allow_mismatch is true"):
        code, output = txl(*arguments, "--data.allow_mismatch=true")
    assert code == 0
    assert "test/bits_per_byte" in output.out


@pytest.mark.parametrize(
    "option",
    [
        "--data.split=[0.5,0.1,0.1]",
        "--data.task.length=0",
        "--data.subwords.n_token=9",
        "--trainer.val_check_interval=0.25",
        "--trainer.val_check_interval=1.0",
        "--trainer.limit_train_batches=0.5",
        "--weights_only=false",
    ],
)
def test_an_impossible_number_is_one_line_with_the_whole_key(txl, small, option):
    code, output = txl("fit", *small, option)
    assert code == 2
    assert option.removeprefix("--").split("=")[0] in complaint(output)


def test_an_unknown_verb_is_refused(txl):
    code, output = txl("trian")
    assert code == 2
    assert "trian: unknown verb; it must be one of fit, validate" in complaint(output)


def test_a_prompt_outside_the_vocabulary_is_refused(txl, small, tmp_path):
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    code, output = txl("generate", "--ckpt_path", checkpoint, "--prompt", "ABC")
    assert code == 3
    assert "prompt: 'A' is not among the vocabulary's 26 characters" in complaint(output)


def test_a_mistake_is_the_exit_code_of_the_process(tmp_path, repository):
    command = [sys.executable, "-m", "txl_lightning", "fit", "--data.path=none.txt"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.strip().splitlines()[-1].startswith("error: none.txt: no such file")
