"""Contestants as processes, so that each has its own memory; they answer one after the other."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
# Imported once; a process that is forked before torch starts threads may start its own.
FORKS.set_forkserver_preload(["torch", "txl_lightning.model"])


class Worker:
    """A process that makes an object and calls its methods when it is asked to."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, tree: Path | None = None) -> None:
        # The functions of another tree are imported by a process that has imported nothing yet.
        context = multiprocessing.get_context("spawn") if tree else FORKS
        self.pipe, pipe = context.Pipe()
        self.process = context.Process(target=serve, args=(pipe, make, arguments), daemon=True)
        with import_first_from(tree):
            self.process.start()
        pipe.close()

    def ask(self, method: str, *arguments: Any) -> None:
        self.pipe.send((method, arguments))

    def answer(self) -> Any:
        """Return what was asked for, or the process's first answer: None, when it is ready.

        Raises:
            RuntimeError: the process failed; the message is the last line of its error.
        """
        try:
            failure, result = self.pipe.recv()
        except EOFError:
            failure, result = "the process ended", None
        if failure is not None:
            raise RuntimeError(failure)
        return result

    def call(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.pipe.close()
        self.process.join(5)
        self.process.terminate()


@contextmanager
def import_first_from(tree: Path | None) -> Iterator[None]:
    """Let processes that are started here import from a tree before all others."""
    path = sys.path.copy()
    sys.path[:0] = [str(tree.resolve())] if tree else []
    try:
        yield
    finally:
        sys.path[:] = path


def serve(pipe: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make the object, then call its methods until the pipe is closed."""
    try:
        made = make(*arguments)
        pipe.send((None, None))
        while True:
            method, arguments = pipe.recv()
            pipe.send((None, getattr(made, method)(*arguments)))
    except EOFError:
        return
    # Any error is sent on: the parent raises it, or leaves this contestant out.
    except Exception as error:
        pipe.send((f"{type(error).__name__}: {error}".splitlines()[0], None))


@contextmanager
def start_workers(
    makers: Mapping[str, tuple[Any, ...]],
    left_out: dict[str, str] | None = None,
    trees: Mapping[str, Path] | None = None,
) -> Iterator[dict[str, Worker]]:
    """Start a process for each function with arguments; one that fails is named in `left_out`.

    Those named in `trees` import another checkout of this project.
    """
    workers: dict[str, Worker] = {}
    try:
        for name, (make, *arguments) in makers.items():
            workers[name] = Worker(make, *arguments, tree=(trees or {}).get(name))
            try:
                workers[name].answer()
            except RuntimeError as error:
                if left_out is None:
                    raise
                left_out[name] = str(error)
                workers.pop(name).__exit__()
        yield workers
    finally:
        for worker in workers.values():
            worker.__exit__()
