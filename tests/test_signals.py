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
    command = [sys.executable, "-c", STEP, how, str(seconds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


def send_to_self(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.05)


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 143)])
def test_a_signal_passed_on_again_at_once_waits_for_the_end_of_the_step(name, code):
    process = start_step(0.6)
    for _ in range(3):
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(0.05)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert f"SIG{name}: this step is finished and saved" in said
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


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 143)])
def test_a_signal_outside_training_exits_and_handlers_are_put_back(name, code, capfd):
    known = (*signals.EXIT, signals.SAVE)
    before = [signal.getsignal(number) for number in known]
    with pytest.raises(SystemExit) as stop, signals.exit_on_signals():
        send_to_self(signals.SAVE, getattr(signal, f"SIG{name}"))
    assert stop.value.code == code
    assert "nothing is saved" in capfd.readouterr().err
    assert [signal.getsignal(number) for number in known] == before


def test_a_request_to_save_is_taken_once_and_one_to_stop_stays(capfd):
    waiting = signals.PendingSignals()
    assert waiting.take() == (0, 0)
    with signals.handle_signals(waiting.handlers()):
        send_to_self(signals.SAVE, signal.SIGTERM)
    assert [waiting.take(), waiting.take()] == [(143, 1), (143, 0)]
    assert "SIGTERM: this step is finished" in capfd.readouterr().err
