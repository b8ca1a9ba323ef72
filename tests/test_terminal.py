"""Commands go on when the terminal that they write to is closed."""

import fcntl
import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.runs.listing import load_run
from txl_lightning.terminal import drop_unwritten, open_output


@pytest.fixture
def terminal():
    """A stream to a terminal, and a function that closes the terminal."""
    primary, secondary = pty.openpty()
    with open(secondary, "w") as stream:
        yield stream, lambda: os.close(primary)


def test_what_is_written_after_a_terminal_is_gone_is_dropped(terminal):
    stream, close = terminal
    new = open_output(stream, "standard output")
    print("seen", file=new)
    close()
    for _ in range(3):
        print("lost", file=new, flush=True)
    # Also by those that write to the number of the file.
    assert os.write(stream.fileno(), b"lost") == 4
    assert not new.isatty()


def test_a_terminal_that_is_gone_before_the_start_is_none(terminal):
    stream, close = terminal
    close()
    print("lost", file=open_output(stream, "standard output"), flush=True)
    # The number of the file is that of the null device from then on.
    assert os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))


def test_a_stream_in_memory_stays_as_it_is():
    stream = io.StringIO()
    assert open_output(stream, "standard output") is stream


@pytest.mark.parametrize("buffering", [-1, 1])
def test_files_and_pipes_get_what_is_written_as_before(tmp_path, buffering):
    path = tmp_path / "log"
    with path.open("w", buffering, encoding="latin-1") as file:
        new = open_output(file, "standard output")
        assert (new.encoding, new.line_buffering) == ("latin-1", buffering == 1)
        print("\u00e9", file=new)
        assert path.read_bytes() == (b"" if buffering == -1 else b"\xe9\n")
        new.flush()
    assert path.read_bytes() == b"\xe9\n"
    reader, writer = os.pipe()
    with open(writer, "w") as pipe:
        print("seen", file=open_output(pipe, "standard output"), flush=True)
        assert os.read(reader, 99) == b"seen\n"
        os.close(reader)
        with pytest.raises(BrokenPipeError, match="standard output"):
            print("lost", file=open_output(pipe, "standard output"), flush=True)


def test_a_stream_that_is_replaced_is_kept_as_it_would_close_its_number():
    with open(os.devnull, "w") as stream:
        assert open_output(stream, "standard output").buffer.raw.stream is stream


def test_what_a_full_disk_did_not_take_is_not_tried_again():
    with open("/dev/full", "w") as full:
        full.write("lost")
        drop_unwritten(full, io.StringIO())


FULL = "error: standard output: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "words", "code", "shown"),
    [
        (">&-", "--version", 0, ""),
        (">&- 2>&-", "--version", 0, ""),
        (">/dev/full", "--version", 6, FULL),
        (">/dev/full", "", 6, FULL),
        (">/dev/full", "fit --help", 6, FULL),
        (">/dev/full", "generate --help", 6, FULL),
        (">/dev/full", "fit --config smoke --print_config", 6, FULL),
        (">/dev/full", "configs", 6, FULL),
        (">/dev/full", "runs RUN", 6, FULL),
        (">/dev/full", "evaluate RUN --split val", 6, FULL),
        (">/dev/full", "generate RUN --max_new_tokens 3", 6, FULL),
        (">/dev/full 2>&1", "--version", 6, ""),
        ("2>/dev/full", "unknown", 2, ""),
        ("2>/dev/full", "generate RUN --max_new_tokens 3", 0, ""),
        ("| true", "fit --help", 141, ""),
    ],
)
def test_a_stream_that_takes_nothing_leaves_the_documented_exit_code(
    run_folder, tmp_path, redirected, words, code, shown
):
    words = words.replace("RUN", str(run_folder))
    command = f"set -o pipefail; {sys.executable} -m txl_lightning {words} {redirected}"
    shell = ["bash", "-c", command]
    ended = subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.endswith(shown)) == (code, True), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("label", ["standard output", "standard error"])
def test_other_errors_of_writing_name_the_stream(label):
    with open("/dev/full", "w") as file, pytest.raises(OSError, match="No space") as caught:
        print("a", file=open_output(file, label), flush=True)
    assert caught.value.filename == label


@pytest.fixture
def close_terminal(processes, tmp_path):
    """Run a command in a terminal, close it after a word; return the exit code."""

    def run(words: list, word: str, handler: signal.Handlers) -> int:
        def prepare():
            signal.signal(signal.SIGHUP, handler)
            # Otherwise it would get no SIGHUP.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        primary, secondary = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), secondary)
        command = [sys.executable, "-m", "txl_lightning", *words]
        process = processes.start(command, cwd=tmp_path, preexec_fn=prepare, **streams)
        os.close(secondary)
        seen = b""
        stop = time.monotonic() + 120
        while word.encode() not in seen and time.monotonic() < stop:
            if select.select([primary], [], [], 0.1)[0]:
                seen += os.read(primary, 65536)
        os.close(primary)
        assert word.encode() in seen, seen
        return process.wait(timeout=120)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("word", ["", "data:", "step "])
def test_training_goes_on_without_its_terminal(close_terminal, small, tmp_path, word):
    steps = ["--trainer.max_steps=80", "--trainer.val_check_interval=40"]
    assert close_terminal(["fit", *small, *steps, "--report.html=true"], word, signal.SIG_IGN) == 0
    run = load_run(tmp_path / "runs" / "version_0")
    assert (run.state, run.status["step"]) == ("finished", 80)
    assert (run.folder / "report.html").is_file()


@pytest.mark.slow
def test_training_that_its_terminal_hangs_up_is_saved(close_terminal, small, tmp_path):
    steps = ["--trainer.max_steps=100000", "--trainer.val_check_interval=50000"]
    assert close_terminal(["fit", *small, *steps], "step ", signal.SIG_DFL) == 143
    run = load_run(tmp_path / "runs" / "version_0")
    assert run.state == "stopped"
    last = load_checkpoint(run.folder / "checkpoints" / "last.ckpt")
    assert last.saved["global_step"] == run.status["step"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["evaluate", "RUN", "--split=val"], ["prepare", "TEXT", "--out=store"]]
)
def test_other_commands_go_on_without_their_terminal(
    close_terminal, run_folder, text_file, tmp_path, command
):
    places = {"RUN": str(run_folder), "TEXT": str(text_file)}
    words = [places.get(word, word) for word in command]
    assert close_terminal(words, "", signal.SIG_IGN) == 0
