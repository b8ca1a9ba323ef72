"""Signals end a process, or wait; the handlers before them come back."""

import os
import signal
import subprocess
import sys
import time

import pytest

from txl_lightning import signals

STEP = """
import os, signal, sys, time
from txl_lightning import signals
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
waiting = signals.PendingSignals()
with signals.handle_signals(waiting.handlers()):
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        time.sleep(0.02)
sys.exit(waiting.exit_code)
"""


def start_step(seconds: float, how: str = "plain") -> subprocess.Popen:
    """Start a process that is in a step of this length."""
    command = [sys.executable, "-c", STEP, how, str(seconds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 143)])
def test_a_signal_waits_for_the_end_of_the_step(name, code):
    process = start_step(0.3)
    process.send_signal(getattr(signal, f"SIG{name}"))
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert f"SIG{name}: this step is finished and saved" in said


def test_a_signal_passed_on_again_at_once_waits_too():
    process = start_step(0.6)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "at once;" not in said


@pytest.mark.slow
def test_a_second_signal_after_a_while_stops_at_once():
    process = start_step(60)
    process.send_signal(signal.SIGTERM)
    time.sleep(signals.PATIENCE + 0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "SIGINT again: stopped at once" in said


def test_an_ignored_hangup_stays_ignored():
    process = start_step(0.3, "nohup")
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


def test_handlers_are_put_back():
    known = (*signals.EXIT, signals.SAVE)
    before = [signal.getsignal(number) for number in known]
    waiting = signals.PendingSignals()
    with signals.exit_on_signals(), signals.handle_signals(waiting.handlers()):
        assert signal.getsignal(signal.SIGTERM) == waiting.note_stop
    assert [signal.getsignal(number) for number in known] == before


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 143)])
def test_a_signal_outside_training_exits_after_cleanup(name, code):
    cleaned = []

    def work():
        try:
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
            time.sleep(1)
        finally:
            cleaned.append(name)

    with pytest.raises(SystemExit) as stop, signals.exit_on_signals():
        work()
    assert (stop.value.code, cleaned) == (code, [name])


def test_a_request_to_save_is_refused_outside_training(capfd):
    with signals.exit_on_signals():
        os.kill(os.getpid(), signals.SAVE)
        time.sleep(0.05)
    assert "nothing is saved" in capfd.readouterr().err


def test_a_request_to_save_is_taken_once_and_one_to_stop_stays(capfd):
    waiting = signals.PendingSignals()
    assert waiting.take() == (0, 0)
    with signals.handle_signals(waiting.handlers()):
        for number in (signals.SAVE, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.05)
    assert [waiting.take(), waiting.take()] == [(143, 1), (143, 0)]
    assert "SIGTERM: this step is finished" in capfd.readouterr().err
