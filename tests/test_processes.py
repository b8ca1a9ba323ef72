"""What a test starts ends with it, and says where it was."""

import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import os, threading
def wait_forever():
    print("child", os.getpid(), flush=True)
    threading.Event().wait()
wait_forever()
"""
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True).wait()
"""
WAITING = [sys.executable, "-c", PARENT, CHILD]
# In which both Pythons start, on a busy machine, too.
SECONDS = 10.0
FAILING = [sys.executable, "-c", "print('an accident'); raise SystemExit(3)"]


@pytest.fixture
def quick(processes, monkeypatch):
    monkeypatch.setattr(type(processes), "PATIENCE", SECONDS)
    return processes


@pytest.mark.parametrize(("commands", "limit"), [([WAITING], SECONDS), ([WAITING, FAILING], 600)])
def test_processes_that_do_not_end_are_killed_with_their_children_and_show_their_stacks(
    quick, commands, limit
):
    """At the limit, or soon after another one has failed."""
    with pytest.raises(AssertionError) as failure:
        quick.run_together(commands, limit=limit)
    shown = str(failure.value)
    assert "in wait_forever" in shown
    assert "subprocess.py" in shown
    assert ("an accident" in shown) == (FAILING in commands)
    # Nothing, or a zombie.
    left = Path("/proc", re.search(r"child (\d+)", shown)[1], "cmdline")
    assert not left.exists() or not left.read_bytes()


def test_process_that_a_test_leaves_is_killed_after_it(quick):
    process = quick.start(WAITING)
    quick.end()
    assert process.wait(0) < 0
    assert quick.alive() == []
