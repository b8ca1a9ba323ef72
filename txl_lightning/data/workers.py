"""Who encodes the units of a text: this process, processes on this machine, or a Ray cluster."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from ..errors import DataError, StorageError
from ..imports import ALLOWED, allow_imports
from ..progress import Advance
from .units import RECORD, Unit, build_part

ATTEMPTS = 3  # process pools that may be killed
Workers = Callable[[Path, Sequence[Unit], Advance], None]  # builds units' parts in a folder


def find_missing(folder: Path, units: Sequence[Unit]) -> list[Unit]:
    return [unit for unit in units if not (folder / f"{unit.name}{RECORD}").is_file()]


def build_here(folder: Path, units: Sequence[Unit], advance: Advance) -> None:
    for unit in units:
        build_part(folder, unit, advance)


def build_quietly(packages: Sequence[str], folder: Path, unit: Unit) -> int:
    """Build a part in another process, allowed to import packages; return its bytes of text."""
    allow_imports(packages)
    build_part(folder, unit, lambda _: None)
    return unit.n_byte


def build_in_processes(
    folder: Path, units: Sequence[Unit], advance: Advance, n_worker: int
) -> None:
    """Build parts in processes; what a killed one leaves is built again."""
    for _ in range(ATTEMPTS):
        # A fork would copy the locks of threads that it does not copy.
        pool = ProcessPoolExecutor(n_worker, multiprocessing.get_context("spawn"))
        try:
            build = partial(build_quietly, [*ALLOWED], folder)
            for n_byte in pool.map(build, find_missing(folder, units)):
                advance(n_byte)
            return
        except BrokenProcessPool:
            continue
        finally:
            # After a signal or an error, only the parts that are begun are ended.
            pool.shutdown(cancel_futures=True)
    left = len(find_missing(folder, units))
    problem = f"{ATTEMPTS} times a worker was killed, {left} parts are missing"
    raise StorageError(f"workers: {problem}; give more memory, or fewer workers")


def build_on_ray(folder: Path, units: Sequence[Unit], advance: Advance, address: str) -> None:
    """Build parts as tasks of a Ray cluster, all of whose nodes have the text and the folder."""
    import ray

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    try:
        # Tasks whose node has died run on another one; errors of ours are not retried.
        build = ray.remote(max_retries=-1)(build_quietly)
        left = [build.remote([*ALLOWED], folder.absolute(), unit) for unit in units]
        while left:
            [done], left = ray.wait(left)
            advance(ray.get(done))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DataError(f"ray: {error}") from error
    finally:
        ray.shutdown()
