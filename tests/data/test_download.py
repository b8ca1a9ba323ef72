"""A download ends with the right file, or with a one-line error that says what to do."""

import hashlib
import http.server
import os
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.waiting import wait_until
from txl_lightning.data import download
from txl_lightning.data.download import download_file
from txl_lightning.errors import DataError, StorageError

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
PATIENCE = 10


class Handler(http.server.BaseHTTPRequestHandler):
    """Record the headers of each request; answer by the script, whose last answer is repeated.

    An answer overrides parts of a correct one: code, body, end (of the connection) and headers.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        script = self.server.script
        headers = self.server.headers
        headers.append(self.headers)
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        code, ranges = (206, f"bytes {start}-299999/300000") if start else (200, None)
        right = {"Content-Length": len(BODY) - start, "Content-Range": ranges}
        answer = script[min(len(headers), len(script)) - 1]
        body = answer.get("body", BODY[start:])[: answer.get("size")]
        self.send_response(answer.get("code", code))
        for name, value in (right | answer.get("headers", {})).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        answer.get("end", lambda _: None)(self)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, part):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = [{}]
        self.headers = []
        self.part = part
        self.released = threading.Event()

    @property
    def requested(self):
        return [headers.get("Range") for headers in self.headers]

    def handle_error(self, *_):
        """Ignore clients that disconnect: tests do that."""


def fail(code, body=b"", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    only = {"Content-Length": len(body), "Content-Range": None}
    return {"code": code, "body": body, "headers": only | headers}


def reset(handler):
    wait_until(lambda: handler.server.part.stat().st_size)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())


def wait(handler):
    handler.server.released.wait(PATIENCE)


NO_LENGTH = {"Content-Length": None, "Content-Range": None}
INTERRUPTIONS = {
    "truncated": {"size": 100_000},
    "truncated without a length": {"size": 100_000, "headers": NO_LENGTH},
    "stalled": {"size": 100_000, "end": wait},
    "reset": {"size": 100_000, "end": reset},
}
EARLY = {"code": 200, "body": BODY[:100_000], "headers": NO_LENGTH}
# The repeated answer, its error, and the number of requests.
FAILURES = {
    "404": (fail(404), "HTTP 404", 1),
    "early end": (EARLY, "connection closed at 100,000 of 300,000 bytes", 5),
} | {str(code): (fail(code), f"HTTP {code}", 5) for code in (408, 416, 429, 500, 503)}
SOME = BODY[:123_456]
NEXT = "bytes=123456-"
WHOLE = fail(200, BODY)
# Bytes in the partial file, the answers of the server, and the requested ranges.
CONTINUATIONS = {
    "part": (SOME, [{}], [NEXT]),
    "whole": (BODY, [{}], []),
    "too long": (BODY + b"more", [{}], [None]),
    "no ranges": (SOME, [WHOLE | {"headers": NO_LENGTH}], [NEXT]),
    "past the end": (SOME, [fail(416), {}], [NEXT, None]),
    "other range": (SOME, [fail(206, Content_Range="bytes 9-299999/300000"), {}], [NEXT, None]),
    "redirect": (SOME, [fail(302, Location="/b"), {}], [NEXT, NEXT]),
    "called an encoding": (b"", [fail(200, BODY, Content_Encoding="gzip")], [None]),
}


@pytest.fixture
def part(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "a.bin.part"


@pytest.fixture
def target(part):
    return part.with_suffix("")


@pytest.fixture
def server(monkeypatch, part):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "DELAYS", (0, 0, 0, 0))
    with Server(part) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def remote(server):
    return f"http://127.0.0.1:{server.server_port}/a", len(BODY), f"sha256:{SHA256}"


def test_downloaded_file_is_whole_and_used_again_without_network(server, remote, target):
    assert download_file(target, *remote) == download_file(target, *remote) == target
    assert target.read_bytes() == BODY
    assert {path.name for path in target.parent.iterdir()} <= {"a.bin", "a.bin.lock"}
    [sent] = server.headers
    assert (sent["Accept-Encoding"], sent["User-Agent"]) == ("identity", "txl-lightning")


def test_different_file_at_the_target_path_is_refused_and_not_changed(server, remote, target):
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"a\.bin: wrong file \(sha256 .*, not {SHA256}"):
        download_file(target, *remote)
    assert target.read_bytes() == b"mine"
    assert server.requested == []


@pytest.mark.parametrize("failure", FAILURES)
def test_failing_server_is_named_after_retries_where_these_may_help(
    server, remote, target, monkeypatch, failure
):
    answer, message, n_request = FAILURES[failure]
    server.script = [answer]
    waits = []
    monkeypatch.setattr(download, "DELAYS", (1, 2, 4, 8))
    monkeypatch.setattr(download.time, "sleep", waits.append)
    where = r"a\.bin: missing, and http.*/a cannot be read \("
    with pytest.raises(DataError, match=where + message + r"\); put the file there"):
        download_file(target, *remote)
    assert (len(server.requested), waits) == (n_request, [1, 2, 4, 8][: n_request - 1])
    server.script = [{}]
    assert download_file(target, *remote).read_bytes() == BODY


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_interrupted_body_is_resumed(server, remote, target, monkeypatch, interruption):
    monkeypatch.setattr(download, "TIMEOUT", (0.4, 0.4))
    server.script = [INTERRUPTIONS[interruption], {}]
    assert download_file(target, *remote).read_bytes() == BODY
    none, extent = server.requested
    assert none is None
    assert 0 < int(extent[6:-1]) <= 100_000


@pytest.mark.parametrize("case", CONTINUATIONS)
def test_next_run_continues_the_partial_download(server, remote, part, target, case):
    content, server.script, requested = CONTINUATIONS[case]
    part.write_bytes(content)
    assert download_file(target, *remote).read_bytes() == BODY
    assert server.requested == requested


def test_download_with_a_wrong_checksum_is_set_aside_and_never_used(server, remote, part, target):
    server.script = [fail(200, b"<html>"), {}]
    wrong_sha256 = hashlib.sha256(b"<html>").hexdigest()
    with pytest.raises(DataError, match=rf"{wrong_sha256}.*{SHA256}; kept as .*a\.bin\.wrong"):
        download_file(target, *remote)
    assert target.with_name("a.bin.wrong").read_bytes() == b"<html>"
    assert not target.exists()
    assert not part.exists()
    assert download_file(target, *remote).read_bytes() == BODY


def test_one_of_two_downloads_of_a_file_waits_for_the_other(server, remote, target):
    server.script = [{"end": wait}]
    with ThreadPoolExecutor(2) as pool:
        downloads = [pool.submit(download_file, target, *remote) for _ in range(2)]
        wait_until(lambda: server.requested)
        server.released.set()
        assert [done.result(PATIENCE) for done in downloads] == [target, target]
    assert len(server.requested) == 1


def test_full_disk_or_a_folder_that_cannot_be_written_ends_the_download_and_keeps_the_part(
    server, remote, part, target, limit_file_size
):
    message = r"cannot be written \("
    with limit_file_size(100_000), pytest.raises(StorageError, match=f"{message}File too large"):
        download_file(target, *remote)
    assert len(server.requested) == 1
    assert part.read_bytes() == BODY[:100_000]
    with pytest.raises(StorageError, match=rf"part/a\.bin: {message}"):
        download_file(part / "a.bin", *remote)


def test_progress_is_plain_lines_without_a_terminal(server, remote, target, capsys):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}/a"
    with pytest.raises(DataError, match=r"cannot be read \(Connection refused\)"):
        download_file(target, url, *remote[1:])
    assert capsys.readouterr().err.count(f"{url}: Connection refused; again in 0 s\n") == 4
    server.script = [fail(503), {}]
    download_file(target, *remote)
    assert capsys.readouterr() == (
        "",
        f"downloading {remote[0]} to {target}\n"
        f"{remote[0]}: HTTP 503; again in 0 s\n"
        f"downloaded {target} (300,000 bytes)\n",
    )
