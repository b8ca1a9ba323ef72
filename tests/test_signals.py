"""Signals end a process or are deferred; previous handlers are restored."""

import os
import signal
import sys
import time

import pytest

from txl_lightning import process

STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
KNOWN = (*process.EXIT, process.SAVE)


def send_to_self(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_a_stop_signal_is_deferred_and_a_later_one_exits_at_once(number, code, capfd, monkeypatch):
    pending = process.PendingSignals()
    ended = []
    pending.kill = lambda: ended.append("the processes that it started")
    monkeypatch.setattr(os, "_exit", ended.append)
    with process.handle_signals(pending.handlers()):
        # As forwarded by a launcher.
        send_to_self(number, number, number)
        assert ended == []
        assert pending.take() == (code, 0)
        assert f"{number.name}: this step is finished and saved" in capfd.readouterr().err
        monkeypatch.setattr(process, "PATIENCE", 0)
        send_to_self(signal.SIGINT)
    assert ended == ["the processes that it started", 130]
    assert "SIGINT again: stopped at once" in capfd.readouterr().err


def test_an_ignored_hangup_stays_ignored():
    pending = process.PendingSignals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with process.handle_signals(pending.handlers()):
        send_to_self(signal.SIGHUP)
    assert pending.take() == (0, 0)
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_a_signal_outside_training_exits_and_handlers_are_restored(number, code, capfd):
    before = [signal.getsignal(known) for known in KNOWN]
    with pytest.raises(SystemExit) as stop, process.exit_on_signals():
        send_to_self(process.SAVE, number)
    assert stop.value.code == code
    assert "nothing to save yet; training saves after its first" in capfd.readouterr().err
    assert [signal.getsignal(known) for known in KNOWN] == before


@pytest.mark.parametrize("when", ["before", "after", "at the very end of"])
def test_a_save_request_outside_training_does_not_end_a_process(when, processes):
    """A scheduler sends it while a run ends, or a sweep to a trial that is complete."""
    ask = "os.kill(os.getpid(), signal.SIGUSR1)"
    lines = ["import atexit, os, signal, sys", "from txl_lightning.__main__ import main"]
    lines += ["sys.argv = ['txl-lightning', '--version']", "main()"]
    others = {
        "before": ["import txl_lightning.__main__ as entry", f"entry.run = lambda _: {ask}"],
        "at the very end of": [f"atexit.register(lambda: {ask})"],
    }
    lines[2:2] = others.get(when, [])
    lines += [ask] * (when == "after")
    done = processes.run([sys.executable, "-c", "\n".join(lines)])
    assert done.returncode == 0, done.stderr


def test_a_save_request_before_training_is_taken_once_by_training():
    pending = process.PendingSignals()
    with process.exit_on_signals():
        pending.take_early_request()
        assert pending.take() == (0, 0)
        send_to_self(process.SAVE)
        pending.take_early_request()
        with process.handle_signals(pending.handlers()):
            assert [pending.take(), pending.take()] == [(0, 1), (0, 0)]
        pending.take_early_request()
        assert pending.take() == (0, 0)


def test_a_stop_that_follows_a_saved_request_is_no_news(capfd):
    pending = process.PendingSignals()
    with process.handle_signals(pending.handlers()):
        pending.expect_stop()
        send_to_self(signal.SIGTERM)
    assert capfd.readouterr().err == ""
    assert pending.take() == (143, 0)


def test_a_message_to_a_terminal_that_is_gone_is_dropped(monkeypatch):
    primary, secondary = os.openpty()
    saved = os.dup(2)
    os.dup2(secondary, 2)
    os.close(secondary)
    os.close(primary)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            os.write(2, b"a")
        process.print_message("saved")
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def test_a_save_request_is_consumed_once_and_a_stop_request_persists():
    pending = process.PendingSignals()
    assert pending.take() == (0, 0)
    with process.handle_signals(pending.handlers()):
        send_to_self(process.SAVE, signal.SIGTERM)
    assert [pending.take(), pending.take()] == [(143, 1), (143, 0)]
