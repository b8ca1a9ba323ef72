"""Processes that tests start, and how they end."""

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import CompletedProcess

REPOSITORY = str(Path(__file__).parents[2])


class Processes:
    """Processes that are killed for good at the end, with all that they have started; a Python
    process first prints its stack."""

    # Seconds that commands may take, and that others have after a failure or a signal.
    LIMIT = 300.0
    PATIENCE = 10.0

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.started = []

    def start(self, words: list, env: Mapping[str, str] = os.environ, **how) -> subprocess.Popen:
        env = {"PYTHONPATH": REPOSITORY, **env, "STARTED_BY": self.mark, "PYTHONFAULTHANDLER": "1"}
        process = subprocess.Popen([*map(str, words)], env=env, start_new_session=True, **how)
        self.started.append(process)
        return process

    def alive(self) -> list[int]:
        """Return the running processes that were started here, then their children."""
        alive = [process.pid for process in self.started if process.poll() is None]
        # A launcher starts others in sessions of their own.
        for folder in sorted(Path("/proc").glob("[0-9]*")):
            with suppress(OSError):
                if f"STARTED_BY={self.mark}".encode() in (folder / "environ").read_bytes():
                    alive.append(int(folder.name))
        return list(dict.fromkeys(alive))

    def end(self) -> None:
        # SIGTERM does not end a wait in C++; the first of these makes Python print its stack.
        for number in (signal.SIGABRT, signal.SIGKILL) if self.started else ():
            stop = time.monotonic() + self.PATIENCE
            for pid in self.alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                # One after the other: stacks that two processes write at once are mixed.
                while pid in self.alive() and time.monotonic() < stop:
                    time.sleep(0.02)
        self.started.clear()

    def run_together(self, commands: list[list], limit=LIMIT, **how) -> list[CompletedProcess]:
        """Run commands that need each other; if one fails, the others have little time left."""
        group = type(self)()
        done = []
        stop = time.monotonic() + limit
        with ExitStack() as stack:
            # Not pipes, which children that are left would keep open.
            files = [
                [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
                for _ in commands
            ]
            stack.callback(group.end)
            for words, (out, err) in zip(commands, files, strict=True):
                group.start(words, stdout=out, stderr=err, **how)
            processes = [*group.started]
            while (codes := [each.poll() for each in processes]).count(None):
                if time.monotonic() > stop:
                    break
                if any(codes):
                    stop = min(stop, time.monotonic() + self.PATIENCE)
                time.sleep(0.02)
            group.end()
            for words, code, streams in zip(commands, codes, files, strict=True):
                texts = [(file.seek(0), file.read())[1] for file in streams]
                done.append(CompletedProcess(words, code, *texts))
        shown = "\n\n".join(f"{each.returncode}: {each.stdout}{each.stderr}" for each in done)
        assert None not in codes, f"not ended in time (exit codes {codes}):\n{shown}"
        return done

    def run(self, words: list, **how) -> CompletedProcess:
        return self.run_together([words], **how)[0]
