"""A download ends with the right file or with one line that says what to do."""

import hashlib
import http.server
import os
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from txl_lightning.data import download
from txl_lightning.data.download import RemoteFile, download_file
from txl_lightning.errors import DataError, StorageError

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
PATIENCE = 10


class Handler(http.server.BaseHTTPRequestHandler):
    """Note the headers of each request; answer by the script, whose last answer is repeated."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        script, headers = self.server.script, self.server.headers
        headers.append(self.headers)
        script[min(len(headers), len(script)) - 1](self)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, part):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.headers, self.part = [send_rest()], [], part
        self.released = threading.Event()

    @property
    def requested(self):
        return [headers.get("Range") for headers in self.headers]

    def handle_error(self, *_):
        """Clients that hang up are what is tested."""


def send(body=b"", code=200, end=lambda _: None, **fields):
    """Send a response, and end the connection in some way."""

    def answer(handler):
        handler.send_response(code)
        for name, value in fields.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)
        end(handler)

    return answer


def fail(code, **fields):
    return send(b"", code, Content_Length=0, **fields)


def send_rest(size=300_000, end=lambda _: None):
    """Send so much of the range that is requested."""

    def answer(handler):
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        fields = {"Content_Range": f"bytes {start}-299999/300000"} if start else {}
        code = 206 if start else 200
        body = BODY[start : start + size]
        send(body, code, end, Content_Length=len(BODY) - start, **fields)(handler)

    return answer


def reset(handler):
    wait_until(lambda: handler.server.part.stat().st_size)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())


def wait(handler):
    handler.server.released.wait(PATIENCE)


def wait_until(ready):
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


INTERRUPTIONS = {
    "truncated": send_rest(100_000),
    "truncated without a length": send(BODY[:100_000]),
    "stalled": send_rest(100_000, wait),
    "reset": send_rest(100_000, reset),
}
# The answer that is repeated, its error, and how often it is asked for.
FAILURES = {
    "404": (fail(404), "HTTP 404", 1),
    "early end": (send(BODY[:100_000]), "it broke off at 100,000 of 300,000 bytes", 5),
} | {str(code): (fail(code), f"HTTP {code}", 5) for code in (408, 416, 429, 500, 503)}
SOME = BODY[:123_456]
NEXT = "bytes=123456-"
OTHER_RANGE = send(b"", 206, Content_Range="bytes 9-299999/300000")
CONTINUATIONS = {
    "part": (SOME, [send_rest()], [NEXT]),
    "whole": (BODY, [send_rest()], []),
    "too long": (BODY + b"more", [send_rest()], [None]),
    "no ranges": (SOME, [send(BODY)], [NEXT]),
    "past the end": (SOME, [fail(416), send_rest()], [NEXT, None]),
    "other range": (SOME, [OTHER_RANGE, send_rest()], [NEXT, None]),
    "redirect": (SOME, [fail(302, Location="/b"), send_rest()], [NEXT, NEXT]),
    "called an encoding": (b"", [send(BODY, Content_Encoding="gzip")], [None]),
}


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


@pytest.mark.parametrize("failure", FAILURES)
def test_failing_server_is_named_after_retries_where_these_may_help(
    server, remote, target, monkeypatch, failure
):
    answer, message, n_request = FAILURES[failure]
    server.script, waits = [answer], []
    monkeypatch.setattr(download, "DELAYS", (1, 2, 4, 8))
    monkeypatch.setattr(download.time, "sleep", waits.append)
    where = r"a\.bin: missing, and http.*/a cannot be read \("
    with pytest.raises(DataError, match=where + message + r"\); put the file there"):
        download_file(remote, target)
    assert (len(server.requested), waits) == (n_request, [1, 2, 4, 8][: n_request - 1])
    server.script = [send_rest()]
    assert download_file(remote, target).read_bytes() == BODY


def test_refused_connection_is_explained_in_few_words(remote, target):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nowhere = RemoteFile(f"http://127.0.0.1:{port}/a", len(BODY), remote.checksum)
    with pytest.raises(DataError, match=r"cannot be read \(Connection refused\)"):
        download_file(nowhere, target)


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_interrupted_body_is_resumed(server, remote, target, monkeypatch, interruption):
    monkeypatch.setattr(download, "TIMEOUT", (0.4, 0.4))
    server.script = [INTERRUPTIONS[interruption], send_rest()]
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


def test_wrong_body_is_kept_aside_and_never_used(server, remote, part, target):
    server.script = [send(b"<html>", Content_Length=6), send_rest()]
    found = hashlib.sha256(b"<html>").hexdigest()
    with pytest.raises(DataError, match=rf"{found}.*{SHA256}; kept as .*a\.bin\.wrong"):
        download_file(remote, target)
    assert target.with_name("a.bin.wrong").read_bytes() == b"<html>"
    assert not target.exists()
    assert not part.exists()
    assert download_file(remote, target).read_bytes() == BODY


def test_of_two_downloads_of_a_file_one_waits_for_the_other(server, remote, target):
    server.script = [send(BODY, end=wait, Content_Length=len(BODY))]
    with ThreadPoolExecutor(2) as pool:
        downloads = [pool.submit(download_file, remote, target) for _ in range(2)]
        wait_until(lambda: server.requested)
        server.released.set()
        assert [done.result(PATIENCE) for done in downloads] == [target, target]
    assert len(server.requested) == 1


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
    server.script = [fail(503), send_rest()]
    download_file(remote, target)
    assert capsys.readouterr() == (
        "",
        f"downloading {remote.url} to {target}\n"
        f"{remote.url}: HTTP 503; again in 0 s\n"
        f"downloaded {target} (300,000 bytes)\n",
    )
