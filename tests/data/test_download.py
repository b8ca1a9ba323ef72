"""A download ends with the right file or with one line that says what to do."""

import hashlib
import http.server
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from txl_lightning.data import download
from txl_lightning.data.download import RemoteFile, download_file
from txl_lightning.errors import DataError, StorageError

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
PATIENCE = 10

ANOTHER = """
import sys
from pathlib import Path
from txl_lightning.data.download import RemoteFile, download_file
print("ready", flush=True)
print(download_file(RemoteFile(sys.argv[1], int(sys.argv[2]), sys.argv[3]), Path(sys.argv[4])))
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """Note the headers of each request; answer by the script, whose last answer is repeated."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        script, headers = self.server.script, self.server.headers
        headers.append(self.headers)
        script[min(len(headers), len(script)) - 1](self)

    def log_message(self, *_):
        pass

    def start(self, code, **fields):
        self.send_response(code)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def start_at(self, first):
        extent = f"bytes {first}-{len(BODY) - 1}/{len(BODY)}"
        fields = {"Content_Range": extent} if first else {}
        self.start(206 if first else 200, Content_Length=len(BODY) - first, **fields)

    @property
    def first(self) -> int:
        return int(self.headers.get("Range", "bytes=0-")[6:-1])


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, part):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.headers, self.part = [send_rest], [], part
        self.released = threading.Event()

    @property
    def requested(self):
        return [headers.get("Range") for headers in self.headers]

    def handle_error(self, *_):
        """Clients that hang up are what is tested."""


def send_part(size, end=None):
    """Send that much of what is requested, and end the connection in some way."""

    def answer(handler):
        handler.start_at(handler.first)
        handler.wfile.write(BODY[handler.first : handler.first + size])
        if end:
            end(handler)
            handler.close_connection = True

    return answer


def send(body, **fields):
    def answer(handler):
        handler.start(200, **fields)
        handler.wfile.write(body)
        handler.close_connection = True

    return answer


def fail(code, **fields):
    return lambda handler: handler.start(code, Content_Length=0, **fields)


def reset(handler):
    wait_until(lambda: size(handler.server.part) > handler.first)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())


send_rest = send_part(len(BODY))
stall = send_part(100_000, lambda handler: handler.server.released.wait(PATIENCE))
INTERRUPTIONS = {
    "truncated": send_part(100_000, lambda _: None),
    "truncated without a length": send(BODY[:100_000]),
    "stalled": stall,
    "reset": send_part(100_000, reset),
}
SOME = BODY[:123_456]
NEXT = "bytes=123456-"
CONTINUATIONS = {
    "part": (SOME, [send_rest], [NEXT]),
    "whole": (BODY, [send_rest], []),
    "too long": (BODY + b"more", [send_rest], [None]),
    "no ranges": (SOME, [send(BODY)], [NEXT]),
    "past the end": (SOME, [fail(416), send_rest], [NEXT, None]),
    "other range": (SOME, [lambda handler: handler.start_at(9), send_rest], [NEXT, None]),
    "redirect": (SOME, [fail(302, Location="/b"), send_rest], [NEXT, NEXT]),
    "called an encoding": (b"", [send(BODY, Content_Encoding="gzip")], [None]),
}


def wait_until(ready):
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


def size(path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def server(monkeypatch, part):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "DELAYS", (0, 0, 0, 0))
    with Server(part) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def remote(server):
    return RemoteFile(f"http://127.0.0.1:{server.server_port}/a", len(BODY), f"sha256:{SHA256}")


@pytest.fixture
def target(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "a.bin"


@pytest.fixture
def part(target):
    return target.with_name("a.bin.part")


@contextmanager
def download_elsewhere(remote, target):
    """Another process that downloads, from when it is about to."""
    words = [remote.url, remote.n_byte, remote.checksum, target]
    command = [sys.executable, "-c", ANOTHER, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_downloaded_file_is_whole_and_used_again_without_network(server, remote, target):
    assert download_file(remote, target) == download_file(remote, target) == target
    assert target.read_bytes() == BODY
    assert {path.name for path in target.parent.iterdir()} <= {"a.bin", "a.bin.lock"}
    [sent] = server.headers
    assert (sent["Accept-Encoding"], sent["User-Agent"]) == ("identity", "txl-lightning")


def test_another_file_in_the_targets_place_is_refused_and_left_alone(server, remote, target):
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"a\.bin: another file \(sha256 .*, not {SHA256}"):
        download_file(remote, target)
    assert target.read_bytes() == b"mine"
    assert server.requested == []


def test_lasting_errors_are_explained_in_few_words(server, remote, target):
    server.script = [fail(404)]
    message = r"a\.bin: missing, and http.*/a cannot be read \(HTTP 404\); put the file there"
    with pytest.raises(DataError, match=message):
        download_file(remote, target)
    assert len(server.requested) == 1
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nowhere = RemoteFile(f"http://127.0.0.1:{port}/a", len(BODY), remote.checksum)
    with pytest.raises(DataError, match=r"cannot be read \(Connection refused\)"):
        download_file(nowhere, target)


@pytest.mark.parametrize("code", [408, 416, 429, 500, 503])
def test_temporary_error_is_retried_after_growing_delays(server, remote, target, monkeypatch, code):
    waits = []
    monkeypatch.setattr(download, "DELAYS", (1, 2, 4, 8))
    monkeypatch.setattr(download.time, "sleep", waits.append)
    server.script = [fail(code)]
    with pytest.raises(DataError, match=f"HTTP {code}"):
        download_file(remote, target)
    assert (len(server.requested), waits) == (5, [1, 2, 4, 8])
    server.script = [send_rest]
    assert download_file(remote, target).read_bytes() == BODY


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_interrupted_body_is_resumed(server, remote, target, monkeypatch, interruption):
    monkeypatch.setattr(download, "TIMEOUT", (0.4, 0.4))
    server.script = [INTERRUPTIONS[interruption], send_rest]
    assert download_file(remote, target).read_bytes() == BODY
    none, extent = server.requested
    assert none is None
    assert 0 < int(extent[6:-1]) <= 100_000


@pytest.mark.parametrize("case", CONTINUATIONS)
def test_next_run_continues_the_part(server, remote, part, target, case):
    content, server.script, requested = CONTINUATIONS[case]
    part.write_bytes(content)
    assert download_file(remote, target).read_bytes() == BODY
    assert server.requested == requested


def test_body_that_always_ends_early_is_an_error_and_the_part_is_kept(server, remote, part, target):
    server.script = [send(BODY[:100_000])]
    with pytest.raises(DataError, match="it broke off at 100,000 of 300,000 bytes"):
        download_file(remote, target)
    assert part.read_bytes() == BODY[:100_000]


def test_wrong_body_is_kept_aside_and_never_used(server, remote, part, target):
    server.script = [send(b"<html>", Content_Length=6), send_rest]
    found = hashlib.sha256(b"<html>").hexdigest()
    with pytest.raises(DataError, match=rf"{found}.*{SHA256}; kept as .*a\.bin\.wrong"):
        download_file(remote, target)
    assert target.with_name("a.bin.wrong").read_bytes() == b"<html>"
    assert not target.exists()
    assert not part.exists()
    assert download_file(remote, target).read_bytes() == BODY


@pytest.mark.slow
def test_killed_download_is_continued(server, remote, part, target):
    server.script = [stall, send_rest]
    with download_elsewhere(remote, target):
        wait_until(lambda: size(part) > 0)
    n_byte = size(part)
    assert download_file(remote, target).read_bytes() == BODY
    assert server.requested == [None, f"bytes={n_byte}-"]


@pytest.mark.slow
def test_two_processes_download_once(server, remote, target):
    server.script = [lambda handler: server.released.wait(PATIENCE) and send_rest(handler)]
    here = threading.Thread(target=download_file, args=(remote, target))
    here.start()
    wait_until(lambda: server.requested)
    with download_elsewhere(remote, target) as process:
        # Long enough for the other to come to the lock.
        time.sleep(0.3)
        server.released.set()
        assert process.communicate(timeout=PATIENCE) == (f"{target}\n".encode(), b"")
    here.join(PATIENCE)
    assert len(server.requested) == 1
    assert target.read_bytes() == BODY


def test_folder_that_cannot_be_written_is_named(remote, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/a\.bin: cannot be written \("):
        download_file(remote, tmp_path / "file" / "a.bin")


def test_full_disk_ends_the_download_and_keeps_the_part(
    server, remote, part, target, limit_file_size
):
    message = r"cannot be written \(File too large"
    with limit_file_size(100_000), pytest.raises(StorageError, match=message):
        download_file(remote, target)
    assert len(server.requested) == 1
    assert part.read_bytes() == BODY[:100_000]


def test_progress_is_plain_lines_without_a_terminal(server, remote, target, capsys):
    server.script = [fail(503), send_rest]
    download_file(remote, target)
    assert capsys.readouterr() == (
        "",
        f"downloading {remote.url} to {target}\n"
        f"{remote.url}: HTTP 503; again in 0 s\n"
        f"downloaded {target} (300,000 bytes)\n",
    )
