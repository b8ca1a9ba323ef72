"""Downloads with resume and checksums."""

import time
from pathlib import Path

import requests
from filelock import FileLock

from ..errors import DataError, print_notice
from ..files import explain_write_errors, find_difference, verify_file
from ..terminal import show_progress

PACKET = 1 << 16  # bytes
DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt
TIMEOUT = (10.0, 30.0)  # seconds to wait for a connection, and for more data
# Some servers refuse scripts; sizes and ranges must refer to the unencoded file.
HEADERS = {"User-Agent": "txl-lightning", "Accept-Encoding": "identity"}
PAST_THE_END = 416
TEMPORARY = (408, PAST_THE_END, 429)
BROKEN = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


def download_file(target: Path, url: str, n_byte: int, checksum: str) -> Path:
    """Return `target`, downloaded from a URL unless it exists.

    Received data is stored in `<target>.part`, which the next attempt and the next run continue.
    Of several processes one downloads and the others wait. DataError if it cannot be downloaded,
    or the existing file is a different one.
    """
    if not target.exists():
        with explain_write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{target}.lock"):
                if not target.exists():
                    return _download_missing(target, url, n_byte, checksum)
    verify_file(target, checksum)
    return target


def _download_missing(target: Path, url: str, n_byte: int, checksum: str) -> Path:
    part = target.with_name(f"{target.name}.part")
    if part.exists() and part.stat().st_size > n_byte:
        part.unlink()
    print_notice(f"downloading {url} to {target}")
    missing = f"{target}: missing, and {url}"
    advice = "put the file there yourself"
    try:
        _retry_download(url, n_byte, part)
    except requests.RequestException as error:
        reason = _describe_error(error)
        raise DataError(f"{missing} cannot be read ({reason}); {advice}") from error
    if difference := find_difference(part, checksum):
        wrong = part.replace(target.with_name(f"{target.name}.wrong"))
        problem = f"is a wrong file ({difference}; kept as {wrong})"
        raise DataError(f"{missing} {problem}; {advice}")
    part.replace(target)
    print_notice(f"downloaded {target} ({n_byte:,} bytes)")
    return target


def _retry_download(url: str, n_byte: int, part: Path) -> None:
    """Retry until the file is complete; raise the error of the last attempt."""
    for delay in (*DELAYS, None):
        try:
            return _append_rest(url, n_byte, part)
        except requests.RequestException as error:
            code = error.response.status_code if isinstance(error, requests.HTTPError) else 0
            is_temporary = code in TEMPORARY or code >= 500 or isinstance(error, BROKEN)
            if delay is None or not is_temporary:
                raise
            print_notice(f"{url}: {_describe_error(error)}; again in {delay:g} s")
        time.sleep(delay)


def _append_rest(url: str, n_byte: int, part: Path) -> None:
    with part.open("ab") as file:
        start = file.tell()
        if start == n_byte:
            return
        headers = HEADERS | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, timeout=TIMEOUT, stream=True) as response:
            extent = response.headers.get("Content-Range", "")
            if not extent.startswith(f"bytes {start}-"):
                if response.ok or response.status_code == PAST_THE_END:
                    start = file.truncate(0)
                if response.status_code == requests.codes.partial_content:
                    raise requests.ConnectionError(f"unexpected range {extent!r} from the server")
            response.raise_for_status()
            end = start + int(response.headers.get("Content-Length", n_byte - start))
            # Some servers declare a .gz as an encoding; decoded, it would be a different file.
            response.raw.headers.discard("Content-Encoding")
            with show_progress(part.stem, n_byte) as advance:
                advance(start)
                for chunk in response.iter_content(PACKET):
                    start += file.write(chunk)
                    advance(len(chunk))
    if start < end:
        raise requests.ConnectionError(f"connection closed at {start:,} of {end:,} bytes")


def _describe_error(error: BaseException) -> str:
    if isinstance(error, requests.HTTPError):
        return f"HTTP {error.response.status_code}"
    while error.__context__:
        error = error.__context__
    return getattr(error, "strerror", None) or " ".join(str(error).split())
