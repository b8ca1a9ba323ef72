"""generate: the printed text, and when it is printed."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import __main__ as entry
from txl_lightning import generation
from txl_lightning.checkpoints import save_folder
from txl_lightning.commands.generate import Printer, print_steps
from txl_lightning.commands.inputs import read_prompt, read_prompt_lines
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import DataError
from txl_lightning.generation import start_decoding
from txl_lightning.process import defer_signals, exit_on_signals


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, sizes, write_letters) -> Path:
    """Train a small model of 26 letters and the line end."""
    folder = tmp_path_factory.mktemp("letters")
    where = [f"--data.path={write_letters(folder, 9)}", f"--data.data_dir={folder / 'data'}"]
    where += [f"--trainer.default_root_dir={folder}", "--data.vocab=characters"]
    entry.run(["fit", *sizes, *where])
    return folder / "version_0" / "checkpoints" / "last.ckpt"


@pytest.fixture
def generate(accepted, checkpoint):
    """Return the output of generate."""

    def run(*options: str) -> str:
        return accepted("generate", "--ckpt_path", checkpoint, *options).out

    return run


@pytest.fixture
def launch(checkpoint, tmp_path, processes):
    command = [sys.executable, "-m", "txl_lightning", "generate", "--seed=1", "--ckpt_path"]

    def start(*options: str) -> subprocess.Popen:
        pipes = dict.fromkeys(("stdout", "stderr", "stdin"), subprocess.PIPE)
        words = [*command, str(checkpoint), *options]
        # `communicate` would lose what a buffer holds.
        return processes.start(words, **pipes, bufsize=0, cwd=tmp_path)

    return start


def number_texts(texts: list[str]) -> str:
    return "".join(f"--- {n} ---\n{text}\n" for n, text in enumerate(texts, 1))


def test_a_cache_repeats_what_the_prompt_has(generate):
    prompt = "qzjxkvbwq" * 30
    words = ("--prompt", prompt, "--max_new_tokens=60", "--seed=1")
    static, cached = (
        generate(*words, *option)[len(prompt) :]
        for option in ([], ["--cache_len=500", "--cache_weight=0.9"])
    )

    def count_pairs(text: str) -> int:
        return sum(pair in prompt for pair in map("".join, pairwise(text)))

    assert count_pairs(cached) > 2 * count_pairs(static)


def test_text_ends_before_a_stop_string_inside_tokens(generate):
    options = ("--prompt=abc", "--max_new_tokens=60", "--seed=1")
    text = generate(*options)[3:]
    stop = text[20:23]
    expected = f"abc{text[: text.index(stop)]}\n"
    assert generate(*options, f"--stop={stop}") == expected
    assert generate(*options, f'--stop=["{stop}", "never"]') == expected
    assert generate(*options, "--stop=never") == f"abc{text}"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ([r"--stop=a\n"], "stop"),
        ([r'--stop=["x", "a\\n"]'], "stop"),
        (["--stop=a\n"], None),
        (['--stop=["a\\n"]'], None),
        ([r"--prompt=ab\nc"], "prompt"),
    ],
    ids=str,
)
def test_an_escape_that_stays_two_characters_is_said(accepted, tmp_path, make_net, options, key):
    save_folder(make_net(n_token=6), tmp_path / "six", Characters("\n\\abcn"))
    err = accepted("generate", tmp_path / "six", "--max_new_tokens=1", *options).err
    expected = rf"{key}: \n is a backslash and n, not a line end, which bash writes as $'\n'"
    assert err.strip() == (expected if key else "")


def test_a_setting_of_a_cache_without_one_is_refused(refused, checkpoint):
    message = "cache_weight: invalid 0.9; expected null without cache_len"
    assert refused("generate", checkpoint, "--cache_weight=0.9") == (2, message)


STEPS = ["rate", "decay", "rate_weights", "rms_tokens", "adapt_across_documents"]


@pytest.mark.parametrize("option", STEPS)
def test_generate_has_no_option_that_takes_steps(refused, checkpoint, option):
    code, message = refused("generate", checkpoint, f"--{option}=0.1")
    assert (code, message.split(";")[0]) == (2, f"unknown option --{option}")


def test_ids_are_those_of_the_printed_text(generate, tmp_path):
    options = ("--prompt=abc", "--max_new_tokens=60", "--seed=1", "--out_ids=new.npy")
    text = generate(*options)[3:-1]
    whole = np.load("new.npy")
    assert len(whole) == 60
    end = text.index(text[20:22])
    generate(*options, f"--stop={text[20:22]}")
    assert np.load("new.npy").tolist() == whole[:end].tolist()
    generate(*options, f"--stop={text[20:22]}", "--num_samples=2")
    first, second = np.load("new.npy")
    assert first[first >= 0].tolist() == whole[:end].tolist()
    assert max((first >= 0).sum(), (second >= 0).sum()) == len(first)


def test_each_sample_and_prompt_is_continued_as_if_alone(generate, tmp_path):
    prompts = ("abc", "a", "hijklmnop")
    (tmp_path / "prompts.txt").write_text("abc\na\n\nhijklmnop\n")
    options = ("--max_new_tokens=12", "--top_p=0.9")
    sample = ("--prompt=abc", "--seed=5", *options)
    three = generate(*sample, "--num_samples=3")
    assert three.startswith(generate(*sample, "--num_samples=2"))
    assert three.startswith(number_texts([generate(*sample)]))
    assert len(set(three.split("\n\n"))) == 4
    alone = [generate(f"--prompt={text}", "--temperature=0", *options) for text in prompts]
    together = generate("--prompts=prompts.txt", "--temperature=0", "--num_samples=2", *options)
    assert together == number_texts([text for text in alone for _ in range(2)])


def test_a_prompt_ends_with_its_line_not_at_other_separators_of_python(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        text = end.join(["a\fb\u0085c\u2028d", "", "e", ""])
        (tmp_path / "prompts.txt").write_bytes(text.encode())
        assert read_prompt_lines(str(tmp_path / "prompts.txt")) == ["a\fb\u0085c\u2028d", "e"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("\ufeffabc\n")
    assert read_prompt(None, str(path)) == "abc\n"
    path.write_bytes("\ufeffabc".encode() + b"\xe9")
    with pytest.raises(DataError, match=r"byte 6 is not UTF-8"):
        read_prompt(None, str(path))


def test_texts_differ_without_a_seed(generate):
    torch.manual_seed(0)
    first = generate("--max_new_tokens=40")
    torch.manual_seed(0)
    assert generate("--max_new_tokens=40") != first


def test_a_prompt_is_read_from_a_file_and_from_the_standard_input_if_asked_for(
    monkeypatch, tmp_path
):
    (tmp_path / "abc").write_text("abc\n")
    assert read_prompt(None, str(tmp_path / "abc")) == "abc\n"
    with (tmp_path / "abc").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read_prompt("a", None) == "a"
        # A loop of a shell keeps its list.
        assert read_prompt(None, None) is None
        assert read_prompt("-", None) == "abc\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--prompt=-"], ["--prompt_file=-"]])
def test_a_prompt_is_read_from_the_pipe_of_a_shell(launch, options):
    assert launch("--max_new_tokens=0", *options).communicate(b"abc\n")[0] == b"abc\n\n"


@pytest.mark.slow
def test_text_is_printed_while_generated_and_kept_after_ctrl_c(launch):
    process = launch("--prompt=abc", "--max_new_tokens=1000000")
    started = b""
    while len(started) < 20:
        started += process.stdout.read(20 - len(started))
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert (process.returncode, errors, rest[-1:]) == (130, b"", b"\n")
    text = started + rest.removesuffix(b"\n")
    whole, _ = launch("--prompt=abc", f"--max_new_tokens={len(text) - 3}").communicate()
    assert text + b"\n" == whole


@pytest.fixture
def start(make_net):
    """Return the state of the text "b" before it is read."""
    return start_decoding(make_net(n_token=3), [torch.tensor([1])])


def test_samples_interrupted_by_a_signal_are_printed(make_net, capsys):
    start = start_decoding(make_net(n_token=3), [torch.tensor([1])] * 2)

    def steps():
        yield (state := start.append_tokens(torch.tensor([[0], [2]])))
        # The end of one text does not end the other.
        yield state.append_tokens(torch.tensor([[2], [1]]))
        raise SystemExit(143)

    with pytest.raises(SystemExit, match="143"):
        print_steps(Printer(Characters("abc"), start, stop=["cb"]), steps())
    assert capsys.readouterr().out == "--- 1 ---\nbac\n\n--- 2 ---\nb\n\n"


def test_a_token_being_printed_when_a_signal_arrives_is_printed(start, capsys, monkeypatch):
    print_state = Printer.print_state

    def interrupted(printer, state):
        os.kill(os.getpid(), signal.SIGINT)
        print_state(printer, state)

    monkeypatch.setattr(Printer, "print_state", interrupted)
    steps = iter([start.append_tokens(torch.tensor([[token]])) for token in (0, 2)])
    with pytest.raises(SystemExit, match="130"), exit_on_signals():
        print_steps(Printer(Characters("abc"), start), steps)
    assert capsys.readouterr().out == "ba\n"


def test_a_second_signal_is_not_deferred():
    sent = iter(range(3))
    with pytest.raises(SystemExit, match="130"), exit_on_signals(), defer_signals():
        any(os.kill(os.getpid(), signal.SIGINT) for _ in sent)
    assert next(sent) == 2


@pytest.mark.parametrize(
    ("net", "options", "ext_len"),
    [
        (None, ["--mem_len=0"], 7),
        # A folder does not store the segment length of training.
        ({"positions": "absolute_sinusoidal"}, [], 127),
        ({"mem_len": 0}, [], 127),
        ({"mem_len": 8}, ["--mem_len=0"], 127),
        ({"mem_len": 8}, [], 0),
        ({"mem_len": 0}, ["--ext_len=3"], 3),
    ],
)
def test_ext_len_defaults_to_the_training_segment_where_memory_is_not_enough(
    txl, monkeypatch, checkpoint, make_net, net, options, ext_len
):
    if net is not None:
        checkpoint = "folder"
        save_folder(make_net(n_token=3, **net), Path("folder"), Characters("\nab"))
    states = []
    decode = generation.decode_steps
    monkeypatch.setattr(
        generation, "decode_steps", lambda *each: states.append(each[1]) or decode(*each)
    )
    assert txl("generate", checkpoint, "--max_new_tokens=3", *options)[0] == 0
    assert [state.ext_len for state in states] == [ext_len]


def test_a_graph_is_refused_without_a_gpu_before_the_prompt_is_printed(txl, checkpoint):
    code, output = txl("generate", checkpoint, "abc", "--cuda_graph=true")
    assert (code, output.out) == (2, "")
    assert "cuda_graph: invalid true; expected false on a device of type cpu" in output.err


def test_second_word_is_the_prompt(generate, txl, checkpoint):
    options = ("--max_new_tokens=20", "--seed=1")
    expected = generate("--prompt=abc", *options)
    assert generate("abc", *options) == expected
    code, output = txl("generate", checkpoint, "abc", *options)
    assert (code, output.out) == (0, expected)
