"""The only code that touches the network."""

import logging
from pathlib import Path

import pooch

from .errors import DataError


def fetch(url: str, sha256: str, target: Path) -> Path:
    """The file at `url` as `target`, which is used without network when it is already there.

    Raises:
        DataError: it cannot be downloaded, or what is there is another file.
    """
    pooch.get_logger().setLevel(logging.WARNING)
    if target.is_file():
        return _checked(target, sha256)
    store = pooch.create(
        path=target.parent,
        base_url="",
        registry={target.name: f"sha256:{sha256}"},
        urls={target.name: url},
        retry_if_failed=3,
    )
    try:
        return Path(store.fetch(target.name))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        message = f"{url}: not downloaded ({reason}); put the file at {target} yourself"
        raise DataError(message) from error


def _checked(target: Path, sha256: str) -> Path:
    found = pooch.file_hash(str(target), alg="sha256")
    if found != sha256:
        raise DataError(f"{target}: sha256 is {found}, not {sha256}; remove it, or pass data.path")
    return target
