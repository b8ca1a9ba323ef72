"""Who encodes the pieces of a text: processes on this machine, or a Ray cluster."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from ..errors import DataError, StorageError
from ..imports import ALLOWED, allow_imports

ATTEMPTS = 3  # process pools that may be killed
AHEAD = 100  # tasks of a Ray cluster that are begun before the first one's result is taken
Workers = Callable[[Callable[[Any], Iterable], Sequence], Iterator]
"""As `map`: results of a function, in the order of its arguments."""


def call_in_worker(
    packages: Sequence[str], function: Callable[[Any], Iterable], piece: Any
) -> list:
    """Return a function's results in another process, which may import the same packages."""
    allow_imports(packages)
    return [*function(piece)]


def map_in_processes(
    function: Callable[[Any], Iterable], pieces: Sequence, n_worker: int
) -> Iterator[list]:
    """Yield results of processes; those that a killed one leaves out are computed again."""
    call, n_done = partial(call_in_worker, [*ALLOWED], function), 0
    for _ in range(ATTEMPTS):
        # A fork would copy the locks of threads that it does not copy.
        pool = ProcessPoolExecutor(n_worker, multiprocessing.get_context("spawn"))
        try:
            for results in pool.map(call, pieces[n_done:]):
                n_done += 1
                yield results
            return
        except BrokenProcessPool:
            continue
        finally:
            # After a signal or an error, only the pieces that are begun are ended.
            pool.shutdown(cancel_futures=True)
    problem = f"{ATTEMPTS} times a worker was killed, {len(pieces) - n_done} pieces are left"
    raise StorageError(f"workers: {problem}; give more memory, or fewer workers")


def map_on_ray(
    function: Callable[[Any], Iterable], pieces: Sequence, address: str
) -> Iterator[list]:
    """Yield results of a Ray cluster, all of whose nodes have the text and the folder."""
    import ray

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    try:
        # Tasks whose node has died run on another one; errors of ours are not retried.
        call = ray.remote(max_retries=-1)(call_in_worker)
        begun: deque = deque()
        for piece in pieces:
            begun.append(call.remote([*ALLOWED], function, piece))
            if len(begun) > AHEAD:
                yield ray.get(begun.popleft())
        yield from map(ray.get, begun)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DataError(f"ray: {error}") from error
    finally:
        ray.shutdown()
