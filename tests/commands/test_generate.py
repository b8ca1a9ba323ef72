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
from txl_lightning.commands.generate import Work, finish
from txl_lightning.commands.page import Page
from txl_lightning.commands.prompts import given
from txl_lightning.data.vocab import Characters
from txl_lightning.generation import begun
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


def test_the_text_ends_before_the_stop_string_wherever_it_is_in_the_samples(generate):
    options = ("--prompt=abc", "--length=60", "--seed=1")
    text = generate(*options)[3:]
    stop = text[20:23]
    expected = f"abc{text[: text.index(stop)]}\n"
    assert generate(*options, f"--stop={stop}") == expected
    assert generate(*options, f'--stop=["{stop}", "never"]') == expected
    assert generate(*options, "--stop=never") == f"abc{text}"


def test_each_sample_is_what_its_seed_gives_alone(generate):
    options = ("--prompt=abc", "--length=12", "--top_p=0.9")
    alone = [generate(*options, f"--seed={seed}") for seed in (5, 6, 7)]
    together = generate(*options, "--seed=5", "--samples=3")
    assert together == "".join(f"--- {n} ---\n{text}\n" for n, text in enumerate(alone, 1))
    assert len(set(alone)) == 3


def test_each_prompt_of_a_file_is_continued_as_it_is_alone(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text("abc\na\n\nhijklmnop\n")
    options = ("--length=12", "--temperature=0")
    alone = [generate(f"--prompt={text}", *options) for text in ("abc", "a", "hijklmnop")]
    together = generate("--prompts=prompts.txt", *options)
    assert together == "".join(f"--- {n} ---\n{text}\n" for n, text in enumerate(alone, 1))
    twice = generate("--prompts=prompts.txt", "--samples=2", *options)
    assert twice.count("--- ") == 6
    for more in ("--prompt=a", "--beams=2", "--memory=m"):
        code, said = complaint(generate, "--prompts=prompts.txt", more)
        assert (code, said) == (
            2,
            "prompts: invalid prompts.txt; expected null with prompt, prompt_file, beams or memory",
        )


def test_without_a_seed_every_text_is_another_one(generate):
    torch.manual_seed(0)
    first = generate("--length=40")
    torch.manual_seed(0)
    assert generate("--length=40") != first


def test_beams_print_the_likeliest_text_that_is_found(generate):
    first, second = (generate("--prompt=a", "--length=6", "--beams=3") for _ in range(2))
    assert first == second
    greedy = generate("--prompt=a", "--length=6", "--temperature=0")
    assert generate("--prompt=a", "--length=6", "--beams=1") == greedy
    stop = first[3]
    assert stop not in generate("--prompt=a", "--length=6", "--beams=3", f"--stop={stop}")[1:]


def test_a_text_is_continued_another_day(generate, tmp_path):
    whole = generate("--prompt=abc", "--length=50", "--seed=3")
    first = generate("--prompt=abc", "--length=20", "--seed=3", "--memory=a.memory")
    second = generate("--length=30", "--seed=3", "--memory=a.memory")
    assert first.removesuffix("\n") + second == whole


def test_a_prompt_goes_on_after_what_is_remembered(generate):
    first = generate("--prompt=ab", "--length=9", "--seed=3", "--memory=a.memory")
    second = generate("--prompt=cde", "--length=9", "--temperature=0", "--memory=a.memory")
    together = first.removesuffix("\n") + "cde"
    expected = generate(f"--prompt={together}", "--length=9", "--temperature=0")
    assert second.startswith("cde")
    # Of a memory of eight, both see the same.
    assert together.removesuffix("cde") + second == expected


def test_words_go_on_in_the_middle_of_a_text(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words", "--data.words.line_end=double_eos")[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    options = ("generate", f"--ckpt_path={checkpoint}", "--length=0", "--memory=a.memory")
    assert txl(*options, "--prompt=ab cd")[1].out == "ab cd\n"
    assert txl(*options, "--prompt=cd\nab")[1].out == " cd\nab\n"


def test_a_memory_of_another_checkpoint_is_one_line(generate, tmp_path):
    generate("--length=3", "--memory=a.memory")
    held = torch.load(generate.checkpoint, weights_only=True)
    held["state_dict"] = {name: weight + 1 for name, weight in held["state_dict"].items()}
    torch.save(held, tmp_path / "other.ckpt")
    generate.checkpoint = tmp_path / "other.ckpt"
    code, said = complaint(generate, "--memory=a.memory")
    assert (code, said[:32]) == (3, "memory: a.memory: of other weigh")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--samples=0"], 2, "samples: invalid 0; expected at least 1"),
        (["--samples=2", "--beams=2"], 2, "samples: invalid 2; expected 1 with beams"),
        (["--samples=2", "--memory=m"], 2, "samples: invalid 2; expected 1 with mem"),
        (["--beams=0"], 2, "beams: invalid 0"),
        (["--length=-1"], 2, "length: invalid -1"),
        (["--top_p=2"], 2, "top_p: invalid 2.0; expected more than 0"),
        (["--ext_len=-1"], 2, "ext_len: invalid -1"),
        (["--prompt="], 2, "prompt: invalid an empty one"),
        (["--prompt=a", "--prompt_file=b"], 2, "prompt: invalid a; expected null with"),
        (["--prompt_file=none.txt"], 2, "none.txt: No such file or directory"),
        (["--prompt_file=latin.txt"], 3, "prompt: latin.txt: byte 3 is not UTF-8 text"),
        (["--memory=latin.txt"], 3, "memory: latin.txt: not a memory that generate wrote"),
        (["--length=1", "--memory=none/m"], 6, "memory: none/m: there is no folder none"),
    ],
)
def test_a_mistake_is_one_line(generate, tmp_path, options, code, said):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    found, line = complaint(generate, *options)
    assert (found, line[: len(said)]) == (code, said)


def test_a_prompt_may_be_in_a_file(generate, tmp_path):
    (tmp_path / "a.txt").write_text("abc\n")
    assert generate("--prompt_file=a.txt", "--length=0") == "abc\n\n"


@pytest.mark.parametrize("options", [[], ["--prompt_file=-"]])
def test_a_prompt_may_be_piped_in(launch, options):
    process = launch("--length=0", *options, stdin=subprocess.PIPE)
    assert process.communicate(b"abc\n", timeout=60)[0] == b"abc\n\n"


def test_a_pipe_with_nothing_in_it_is_no_prompt(monkeypatch, tmp_path):
    (tmp_path / "empty").touch()
    for name, expected in ((os.devnull, None), (tmp_path / "empty", None)):
        with open(name) as file:
            monkeypatch.setattr(sys, "stdin", file)
            monkeypatch.setattr(os, "fstat", lambda _, known=os.fstat, f=file: known(f.fileno()))
            assert given(None, None) is expected
            assert given("abc", None) == "abc"
            monkeypatch.undo()


def test_text_comes_while_it_is_written_and_ctrl_c_keeps_what_has_come(launch, tmp_path):
    process = launch("--prompt=abc", "--length=1000000", "--memory=a.memory")
    started = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, said, rest[-1:]) == (130, b"", b"\n")
    text = started + rest.removesuffix(b"\n")
    again = launch("--length=10", "--memory=a.memory")
    further, _ = again.communicate(timeout=60)
    whole, _ = launch("--prompt=abc", f"--length={len(text) - 3 + 10}").communicate(timeout=120)
    assert text + further == whole


def test_samples_that_a_signal_stops_are_printed_as_far_as_they_are(make_net, capsys):
    net, vocab = make_net(n_token=3), Characters("abc")
    texts = begun(net, [torch.tensor([1])], None)

    def steps():
        yield texts.rows(torch.tensor([0, 0])).followed_by(torch.tensor([[0], [2]]))
        raise SystemExit(143)

    work = Work(net, vocab, texts, ext_len=0, shown=0, stops=["cb"])
    with pytest.raises(SystemExit, match="143"):
        finish(work, steps(), samples=2, memory=None)
    assert capsys.readouterr().out == "--- 1 ---\nba\n\n--- 2 ---\nbc\n\n"


def test_what_is_being_shown_when_a_signal_comes_is_shown(make_net, capsys, monkeypatch):
    net, vocab, add = make_net(n_token=3), Characters("abc"), Page.add
    texts = begun(net, [torch.tensor([1])], None)

    def interrupted(page, tokens_B):
        os.kill(os.getpid(), signal.SIGINT)
        add(page, tokens_B)

    monkeypatch.setattr(Page, "add", interrupted)
    steps = iter([texts.followed_by(torch.tensor([[0]])), texts.followed_by(torch.tensor([[2]]))])
    work = Work(net, vocab, texts, ext_len=0, shown=0, stops=[])
    with pytest.raises(SystemExit, match="130"), exit_on_signals():
        finish(work, steps, samples=1, memory=None)
    assert capsys.readouterr().out == "ba\n"


def test_one_more_signal_waits_for_nothing():
    done = []

    def interrupted():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            done.append("one more")

    with pytest.raises(SystemExit, match="130"), exit_on_signals(), defer_signals():
        interrupted()
    assert done == ["one more"]


def test_a_reader_that_has_enough_is_no_mistake(launch):
    process = launch("--prompt=abc", "--length=1000000")
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
def test_what_memory_does_not_do_is_read_again_as_in_training(
    txl, small, tmp_path, net, options, ext_len
):
    assert txl("fit", *small, *net)[0] == 0
    checkpoint = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    given = ("generate", f"--ckpt_path={checkpoint}", "--length=3", "--memory=m", *options)
    assert txl(*given)[0] == 0
    _, output = txl(*given, "--ext_len=99")
    assert f"ext_len: invalid 99; expected the {ext_len} of m" in output.err


def test_a_checkpoint_may_not_say_how_long_its_segments_were(run_folder, make_net, tmp_path):
    path = run_folder / "checkpoints" / "last.ckpt"
    assert read_tgt_len(path) == 8
    save_folder(make_net(), tmp_path / "folder")
    assert read_tgt_len(tmp_path / "folder") is None
    held = torch.load(path, weights_only=True)
    del held["datamodule_hyper_parameters"]
    torch.save(held, tmp_path / "a.ckpt")
    assert read_tgt_len(tmp_path / "a.ckpt") is None
