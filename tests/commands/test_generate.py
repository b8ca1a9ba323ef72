"""generate: what is printed, when, and what is kept."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import __main__ as door
from txl_lightning.checkpoints import save_folder
from txl_lightning.checkpoints.runs import read_tgt_len
from txl_lightning.commands.generate import Job, Printer, print_steps
from txl_lightning.commands.prompt import read_prompt
from txl_lightning.data.vocab import Characters
from txl_lightning.generation import start_decoding
from txl_lightning.signals import defer_signals, exit_on_signals


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, sizes) -> Path:
    """A small model of 26 letters and the line's end."""
    folder = tmp_path_factory.mktemp("letters")
    letters = np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8)
    letters[::9] = 10
    (folder / "letters.txt").write_bytes(letters.tobytes())
    where = [f"--data.path={folder / 'letters.txt'}", f"--data.data_dir={folder / 'data'}"]
    where += [f"--trainer.default_root_dir={folder}", "--data.vocab=characters"]
    door.run(["fit", *sizes, *where])
    return folder / "version_0" / "checkpoints" / "last.ckpt"


@pytest.fixture
def generate(txl, checkpoint):
    """What the verb prints."""

    def run(*options: str) -> str:
        code, output = txl("generate", "--ckpt_path", checkpoint, *options)
        assert code == 0, output.err
        return output.out

    run.checkpoint = checkpoint
    run.txl = txl
    return run


def complaint(generate, *options: str) -> tuple[int, str]:
    """The exit code, and the one line."""
    code, output = generate.txl("generate", "--ckpt_path", generate.checkpoint, *options)
    [line] = [line for line in output.err.splitlines() if line.startswith("error: ")]
    return code, line.removeprefix("error: ")


@pytest.fixture
def launch(repository, checkpoint, tmp_path):
    """Start the verb in a process of its own."""
    command = [sys.executable, "-m", "txl_lightning", "generate", "--seed=1", "--ckpt_path"]
    command += [str(checkpoint)]

    def start(*options: str, stdin=subprocess.DEVNULL) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": stdin}
        environment = os.environ | {"PYTHONPATH": str(repository)}
        return subprocess.Popen([*command, *options], **pipes, cwd=tmp_path, env=environment)

    return start


def test_text_ends_before_a_stop_string_inside_tokens(generate):
    options = ("--prompt=abc", "--max_new_tokens=60", "--seed=1")
    text = generate(*options)[3:]
    stop = text[20:23]
    expected = f"abc{text[: text.index(stop)]}\n"
    assert generate(*options, f"--stop={stop}") == expected
    assert generate(*options, f'--stop=["{stop}", "never"]') == expected
    assert generate(*options, "--stop=never") == f"abc{text}"


def test_each_sample_equals_a_single_run_with_its_seed(generate):
    options = ("--prompt=abc", "--max_new_tokens=12", "--top_p=0.9")
    alone = [generate(*options, f"--seed={seed}") for seed in (5, 6, 7)]
    together = generate(*options, "--seed=5", "--num_samples=3")
    assert together == "".join(f"--- {n} ---\n{text}\n" for n, text in enumerate(alone, 1))
    assert len(set(alone)) == 3


def test_each_prompt_of_a_file_is_continued_as_alone(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text("abc\na\n\nhijklmnop\n")
    options = ("--max_new_tokens=12", "--temperature=0")
    alone = [generate(f"--prompt={text}", *options) for text in ("abc", "a", "hijklmnop")]
    together = generate("--prompts=prompts.txt", *options)
    assert together == "".join(f"--- {n} ---\n{text}\n" for n, text in enumerate(alone, 1))
    twice = generate("--prompts=prompts.txt", "--num_samples=2", *options)
    assert twice.count("--- ") == 6
    for more in ("--prompt=a", "--num_beams=2", "--state_file=m"):
        code, said = complaint(generate, "--prompts=prompts.txt", more)
        assert (code, said) == (
            2,
            "prompts: invalid prompts.txt; expected null with prompt, prompt_file, num_beams or "
            "state_file",
        )


def test_texts_differ_without_a_seed(generate):
    torch.manual_seed(0)
    first = generate("--max_new_tokens=40")
    torch.manual_seed(0)
    assert generate("--max_new_tokens=40") != first


def test_beam_search_prints_the_likeliest_text_found(generate):
    first, second = (
        generate("--prompt=a", "--max_new_tokens=6", "--num_beams=3") for _ in range(2)
    )
    assert first == second
    greedy = generate("--prompt=a", "--max_new_tokens=6", "--temperature=0")
    assert generate("--prompt=a", "--max_new_tokens=6", "--num_beams=1") == greedy
    stop = first[3]
    assert (
        stop
        not in generate("--prompt=a", "--max_new_tokens=6", "--num_beams=3", f"--stop={stop}")[1:]
    )


def test_a_state_file_continues_a_text(generate, tmp_path):
    whole = generate("--prompt=abc", "--max_new_tokens=50", "--seed=3")
    first = generate("--prompt=abc", "--max_new_tokens=20", "--seed=3", "--state_file=a.memory")
    second = generate("--max_new_tokens=30", "--seed=3", "--state_file=a.memory")
    assert first.removesuffix("\n") + second == whole


def test_a_prompt_is_appended_to_the_text_of_a_state_file(generate):
    first = generate("--prompt=ab", "--max_new_tokens=9", "--seed=3", "--state_file=a.memory")
    second = generate(
        "--prompt=cde", "--max_new_tokens=9", "--temperature=0", "--state_file=a.memory"
    )
    together = first.removesuffix("\n") + "cde"
    expected = generate(f"--prompt={together}", "--max_new_tokens=9", "--temperature=0")
    assert second.startswith("cde")
    # Of a memory of eight, both see the same.
    assert together.removesuffix("cde") + second == expected


def test_words_of_a_prompt_are_appended_without_a_start_symbol(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words", "--data.words.line_end=double_eos")[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    options = (
        "generate",
        f"--ckpt_path={checkpoint}",
        "--max_new_tokens=0",
        "--state_file=a.memory",
    )
    assert txl(*options, "--prompt=ab cd")[1].out == "ab cd\n"
    assert txl(*options, "--prompt=cd\nab")[1].out == " cd\nab\n"


def test_a_state_file_of_another_checkpoint_is_refused(generate, tmp_path):
    generate("--max_new_tokens=3", "--state_file=a.memory")
    held = torch.load(generate.checkpoint, weights_only=True)
    held["state_dict"] = {name: weight + 1 for name, weight in held["state_dict"].items()}
    torch.save(held, tmp_path / "other.ckpt")
    generate.checkpoint = tmp_path / "other.ckpt"
    code, said = complaint(generate, "--state_file=a.memory")
    assert (code, said) == (3, "state_file: a.memory: written with another checkpoint")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--num_samples=0"], 2, "num_samples: invalid 0; expected at least 1"),
        (["--num_samples=2", "--num_beams=2"], 2, "num_samples: invalid 2; expected 1 with beams"),
        (["--num_samples=2", "--state_file=m"], 2, "num_samples: invalid 2; expected 1 with be"),
        (["--num_beams=0"], 2, "num_beams: invalid 0"),
        (["--max_new_tokens=-1"], 2, "max_new_tokens: invalid -1"),
        (["--top_p=2"], 2, "top_p: invalid 2.0; expected more than 0"),
        (["--ext_len=-1"], 2, "ext_len: invalid -1"),
        (["--prompt="], 2, "prompt: invalid an empty one"),
        (["--prompt=a", "--prompt_file=b"], 2, "prompt: invalid a; expected null with"),
        (["--prompt_file=none.txt"], 2, "none.txt: No such file or directory"),
        (["--prompt_file=latin.txt"], 3, "prompt: latin.txt: byte 3 is not UTF-8 text"),
        (["--state_file=latin.txt"], 3, "state_file: latin.txt: not written by generate"),
        (
            ["--max_new_tokens=1", "--state_file=none/m"],
            6,
            "state_file: none/m: there is no folder none",
        ),
    ],
)
def test_a_mistake_is_one_line(generate, tmp_path, options, code, said):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    found, line = complaint(generate, *options)
    assert (found, line[: len(said)]) == (code, said)


def test_a_prompt_is_read_from_a_file(generate, tmp_path):
    (tmp_path / "a.txt").write_text("abc\n")
    assert generate("--prompt_file=a.txt", "--max_new_tokens=0") == "abc\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--prompt_file=-"]])
def test_a_prompt_is_read_from_a_pipe(launch, options):
    process = launch("--max_new_tokens=0", *options, stdin=subprocess.PIPE)
    assert process.communicate(b"abc\n", timeout=60)[0] == b"abc\n\n"


def test_an_empty_pipe_is_no_prompt(monkeypatch, tmp_path):
    (tmp_path / "empty").touch()
    for name, expected in ((os.devnull, None), (tmp_path / "empty", None)):
        with open(name) as file:
            monkeypatch.setattr(sys, "stdin", file)
            monkeypatch.setattr(os, "fstat", lambda _, known=os.fstat, f=file: known(f.fileno()))
            assert read_prompt(None, None) is expected
            assert read_prompt("abc", None) == "abc"
            monkeypatch.undo()


@pytest.mark.slow
def test_text_is_printed_while_generated_and_kept_after_ctrl_c(launch, tmp_path):
    process = launch("--prompt=abc", "--max_new_tokens=1000000", "--state_file=a.memory")
    started = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, said, rest[-1:]) == (130, b"", b"\n")
    text = started + rest.removesuffix(b"\n")
    again = launch("--max_new_tokens=10", "--state_file=a.memory")
    further, _ = again.communicate(timeout=60)
    whole, _ = launch("--prompt=abc", f"--max_new_tokens={len(text) - 3 + 10}").communicate(
        timeout=120
    )
    assert text + further == whole


def test_samples_interrupted_by_a_signal_are_printed(make_net, capsys):
    net, vocab = make_net(n_token=3), Characters("abc")
    texts = start_decoding(net, [torch.tensor([1])])

    def steps():
        yield texts.select_rows(torch.tensor([0, 0])).append_tokens(torch.tensor([[0], [2]]))
        raise SystemExit(143)

    work = Job(net, vocab, texts, ext_len=0, stop=["cb"])
    with pytest.raises(SystemExit, match="143"):
        print_steps(work, steps(), num_samples=2, state_file=None)
    assert capsys.readouterr().out == "--- 1 ---\nba\n\n--- 2 ---\nbc\n\n"


def test_a_token_being_printed_when_a_signal_arrives_is_printed(make_net, capsys, monkeypatch):
    net, vocab, add = make_net(n_token=3), Characters("abc"), Printer.add_tokens
    texts = start_decoding(net, [torch.tensor([1])])

    def interrupted(page, tokens_B):
        os.kill(os.getpid(), signal.SIGINT)
        add(page, tokens_B)

    monkeypatch.setattr(Printer, "add_tokens", interrupted)
    steps = iter(
        [texts.append_tokens(torch.tensor([[0]])), texts.append_tokens(torch.tensor([[2]]))]
    )
    work = Job(net, vocab, texts, ext_len=0)
    with pytest.raises(SystemExit, match="130"), exit_on_signals():
        print_steps(work, steps, num_samples=1, state_file=None)
    assert capsys.readouterr().out == "ba\n"


def test_a_second_signal_is_not_deferred():
    done = []

    def interrupted():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            done.append("one more")

    with pytest.raises(SystemExit, match="130"), exit_on_signals(), defer_signals():
        interrupted()
    assert done == ["one more"]


@pytest.mark.slow
def test_a_closed_output_ends_generation_with_141(launch):
    process = launch("--prompt=abc", "--max_new_tokens=1000000")
    assert process.stdout.read(3) == b"abc"
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


@pytest.mark.parametrize(
    ("net", "options", "ext_len"),
    [
        (["--model.net.positions=absolute_sinusoidal"], [], 7),
        (["--model.net.mem_len=0"], [], 7),
        ([], ["--mem_len=0"], 7),
        ([], [], 0),
        (["--model.net.mem_len=0"], ["--ext_len=3"], 3),
    ],
)
def test_ext_len_defaults_to_the_training_segment_where_memory_is_not_enough(
    txl, small, tmp_path, net, options, ext_len
):
    assert txl("fit", *small, *net)[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    given = (
        "generate",
        f"--ckpt_path={checkpoint}",
        "--max_new_tokens=3",
        "--state_file=m",
        *options,
    )
    assert txl(*given)[0] == 0
    _, output = txl(*given, "--ext_len=99")
    assert f"ext_len: invalid 99; expected {ext_len}, as in m" in output.err


def test_trained_tgt_len_is_none_where_a_checkpoint_does_not_name_it(
    run_folder, make_net, tmp_path
):
    path = run_folder / "checkpoints" / "last.ckpt"
    assert read_tgt_len(path) == 8
    save_folder(make_net(), tmp_path / "folder")
    assert read_tgt_len(tmp_path / "folder") is None
    held = torch.load(path, weights_only=True)
    del held["datamodule_hyper_parameters"]
    torch.save(held, tmp_path / "a.ckpt")
    assert read_tgt_len(tmp_path / "a.ckpt") is None
