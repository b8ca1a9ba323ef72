"""A mistake in a command is one line, with the exit code of its kind."""

import ctypes
import io
import os
import re
import shlex
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from txl_lightning.checkpoints import save_folder
from txl_lightning.data.vocab import Bytes

HUGE = 10**12
MISTAKES = [
    ("generate --num_samples=0", 2, "num_samples: invalid 0; expected at least 1"),
    ("generate --prompt=", 2, "prompt: invalid empty prompt"),
    ("generate --prompt=a --prompt_file=b", 2, "prompt: invalid a; expected null with"),
    ("generate --prompts=empty.txt", 2, "prompts: invalid empty.txt; expected a file with a"),
    ("generate --prompt_file=none.txt", 2, "none.txt: No such file or directory"),
    ("generate --prompt_file=latin.txt", 3, "prompt: latin.txt: byte 3 is not UTF-8 text"),
    ("generate --prompt_ids='1 2 999'", 2, "prompt_ids: invalid 999; expected ids from 0 to 255"),
    ("evaluate --protocol=papr", 2, "protocol: invalid papr; expected one of segments, "),
    ("evaluate letters.txt", 2, "unknown word letters.txt; did you mean --path letters.txt?"),
    ("evaluate --eval_mem_len=9", 2, "unknown option --eval_mem_len; did you mean --mem_len?"),
    ("evaluate --window=9 --mem_len=5", 2, "mem_len: invalid 5; expected 0 with window, which"),
    ("evaluate --tgt_len=0", 2, "tgt_len: invalid 0; expected at least 1"),
    ("evaluate --corpus=novels", 2, "corpus: invalid novels; expected one of python_sour"),
    ("prepare letters.txt --vocab=none.json", 3, "data.vocab: invalid none.json (No such file or"),
    ("evaluate --path=letters.txt --split=val", 3, "letters.txt: its val text is empty; give an"),
    ("evaluate --batch_size=151", 3, "the text has 300 tokens; batch_size 151 needs 2 in each"),
    ("evaluate --out=none/all.jsonl", 6, "out: none/all.jsonl: there is no folder none"),
    # Before a text is read, which may take hours.
    ("evaluate --per_token=pipe", 2, "per_token: invalid pipe; expected a file, not a pipe"),
    ("evaluate --document_unit=lines", 2, "document_unit: invalid lines; expected path or"),
    ("evaluate --device=cuda", 2, "device: invalid cuda; expected cpu, because torch fi"),
    ("recl --step=10 --max_context=19", 2, "max_context: invalid 19; expected at least 2 * step"),
    ("recl --r 0.5 1.5", 2, "r: invalid [0.5, 1.5]; expected each above 0 and at most 1"),
    # Longer than the text.
    (f"inspect --mem_lens={HUGE}", 3, "the text that is read has 300 tokens; batch_size 1"),
]


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES)
def test_a_mistake_is_one_line_with_its_exit_code(
    refused, checkpoint, tmp_path, monkeypatch, words, code, message
):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    command, *options = shlex.split(words)
    where = [] if command == "prepare" else [checkpoint]
    exit_code, line = refused(command, *where, *options)
    assert (exit_code, line[: len(message)]) == (code, message)


@contextmanager
def obey_file_modes():
    """Let root, too, be refused what a file's mode forbids: without two of its capabilities."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None)
    sets = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(0x20080522)
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("evaluate --path=locked.txt", 3, "locked.txt: cannot be read (Permission denied)"),
        ("evaluate --path=folder", 3, "folder/locked.txt: cannot be read (Permission denied)"),
        ("evaluate --path=tree", 3, "tree/closed: cannot be read (Permission denied)"),
        ("fit --data.path=locked.txt", 3, "locked.txt: cannot be read (Permission denied)"),
        ("fit --config=locked.yaml", 2, "locked.yaml: Permission denied"),
        ("generate --prompt_file=locked.txt", 2, "locked.txt: Permission denied"),
        ("convert locked.txt --out=o", 4, "locked.txt: cannot be read (Permission denied)"),
        ("test locked.ckpt", 4, "locked.ckpt: cannot be read (Permission denied)"),
        # Writing.
        ("evaluate --out=locked.txt", 6, "locked.txt: cannot be written (Permission denied; "),
        ("evaluate --per_token=sealed/nats.npy", 6, "per_token: sealed: cannot be written (Perm"),
    ],
)
def test_a_file_that_may_not_be_read_is_no_unwritable_one(txl, checkpoint, words, code, message):
    for name in ("folder", "sealed", "tree/closed"):
        Path(name).mkdir(parents=True)
    for name in ("locked.txt", "locked.yaml", "locked.ckpt", "folder/locked.txt"):
        Path(name).write_text("text")
        Path(name).chmod(0)
    Path("tree/letters.txt").write_text("text")
    Path("tree/closed").chmod(0)
    Path("sealed").chmod(0o555)
    command, *options = shlex.split(words)
    reads = command in ("evaluate", "inspect", "generate") or options[0] == "--out=o"
    with obey_file_modes():
        exit_code, output = txl(command, *[checkpoint][: int(reads)], *options)
    # evaluate prints its table first.
    line = output.err.splitlines()[-1].removeprefix("error: ").replace(f"{Path.cwd()}/", "")
    assert (exit_code, line[: len(message)]) == (code, message)


@pytest.mark.parametrize(
    ("words", "lower"),
    [
        ("evaluate there --path=letters.txt", "batch_size, tgt_len, mem_len or ext_len"),
        ("generate there", "mem_len, num_samples, or the length of the"),
        (f"generate there --mem_len=5 --num_samples={HUGE}", "mem_len, num_samples"),
        ("recl there --path=letters.txt --reading=trained", "max_context"),
    ],
)
def test_failed_allocation_is_exit_code_7_and_names_what_to_lower(
    refused, make_net, tmp_path, words, lower
):
    sizes = {"mem_len": HUGE, "memory_source": "same_layer"}
    save_folder(make_net(n_token=256, **sizes).float(), tmp_path / "there", Bytes())
    command, *options = words.split()
    code, line = refused(command, *options)
    assert (code, f"{command}: out of memory; lower {lower}" in line) == (7, True), line


def test_huge_mem_len_allocates_no_more_than_the_text_needs(txl, checkpoint):
    for words in ("evaluate --max_tokens=100", "generate --max_new_tokens=9"):
        command, *options = *words.split(), "--mem_len"
        code, output = txl(command, checkpoint, *options, HUGE)
        assert code == 0, output.err


@pytest.mark.parametrize("command", ["test", "evaluate"])
def test_folder_without_a_checkpoint_is_exit_code_4(refused, tmp_path, command):
    (tmp_path / "empty").mkdir()
    code, line = refused(command, "empty")
    assert (code, line[:36]) == (4, "empty: no checkpoint in this folder;")


@pytest.mark.parametrize("command", ["test", "evaluate", "generate", "inspect"])
@pytest.mark.parametrize("where", ["runs/version_2", "runs/quickstart/version_0"])
def test_folder_that_holds_runs_is_refused_with_one_of_them(refused, where, command):
    for name in ("version_1", Path(where).name):
        (Path(where).parent / name / "checkpoints").mkdir(parents=True, exist_ok=True)
    code, line = refused(command, "runs")
    assert (code, f"folder; expected a run's folder, such as {where}, or one" in line) == (4, True)


@pytest.mark.parametrize("words", ["generate --max_new_tokens=0 --prompt=ab", "evaluate"])
def test_checkpoint_is_the_first_word_or_named_and_a_run_is_its_best(
    txl, run_folder, checkpoint, words
):
    command, *options = words.split()
    given = ["--ckpt_path", checkpoint], [f"--ckpt_path={run_folder}"]
    spellings = [run_folder], [checkpoint], *given
    outputs = [txl(command, *spelling, *options) for spelling in spellings]
    assert [code for code, _ in outputs] == [0] * 4, outputs[0][1].err
    results = {re.sub(r"seconds.*|date.*", "", output.out) for _, output in outputs}
    assert len(results) == 1


def test_results_are_written_beside_the_checkpoint(txl, run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    before = {*tmp_path.iterdir()}
    few = {
        "inspect": ["--tokens=99", "--batch_size=1", "--mem_lens=4"],
        "recl": ["--step=4", "--max_context=8", "--positions=2"],
        "predict": [],
    }
    for command, options in few.items():
        assert txl(command, "run", *options)[0] == 0
    names = {"inspect/memory.csv", "recl/recl.csv", "nats.npy"}
    assert all((tmp_path / "run" / name).is_file() for name in names)
    assert {*tmp_path.iterdir()} == before
