"""A download ends with the right file or with one line that says what to do."""

import hashlib
import http.server
import io
import os
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from txl_lightning.data import download as download_module
from txl_lightning.data.download import Remote, fetch, verify
from txl_lightning.errors import DataError, StorageError

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
WAITED = 10

# Another process, which imports the file under test alone: the package would bring torch.
ANOTHER = """
import sys, types
from pathlib import Path
for name, folder in (("txl_lightning", ""), ("txl_lightning.data", "/data")):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + "/txl_lightning" + folder]
from txl_lightning.data.download import Remote, fetch
print("ready", flush=True)
print(fetch(Remote(sys.argv[2], int(sys.argv[3]), sys.argv[4]), Path(sys.argv[5])))
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """Notes what is asked for and lets the script answer; its last answer is for all the rest."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        script, asked = self.server.script, self.server.asked
        asked.append(self.headers.get("Range"))
        script[min(len(asked), len(script)) - 1](self)

    def log_message(self, *_):
        pass

    def start(self, code, **fields):
        self.send_response(code)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def start_at(self, first):
        """Announce the whole body or, to who asked for it, the rest of it."""
        extent = f"bytes {first}-{len(BODY) - 1}/{len(BODY)}"
        fields = {"Content_Range": extent} if first else {}
        self.start(206 if first else 200, Content_Length=len(BODY) - first, **fields)

    @property
    def first(self) -> int:
        return int(self.headers.get("Range", "bytes=0-")[6:-1])


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.asked, self.released = [honest], [], threading.Event()

    def handle_error(self, *_):
        """Clients that hang up are what is tested."""


def honest(handler):
    handler.start_at(handler.first)
    handler.wfile.write(BODY[handler.first :])


def forgetful(handler):
    """No ranges."""
    handler.start_at(0)
    handler.wfile.write(BODY)


def says(code):
    return lambda handler: handler.start(code, Content_Length=0)


def sends(body, **fields):
    def answer(handler):
        handler.start(200, Content_Length=len(body), **fields)
        handler.wfile.write(body)

    return answer


def truncates(handler):
    handler.start_at(handler.first)
    handler.wfile.write(BODY[handler.first : handler.first + 100_000])
    handler.close_connection = True


def truncates_without_a_length(handler):
    handler.start(200, Connection="close")
    handler.wfile.write(BODY[:100_000])


def stalls(handler):
    handler.start_at(handler.first)
    handler.wfile.write(BODY[handler.first : handler.first + 100_000])
    handler.server.released.wait(WAITED)
    handler.close_connection = True


def is_silent(handler):
    handler.server.released.wait(WAITED)
    handler.close_connection = True


def resets(part):
    """Hang up the hard way once something has arrived."""

    def answer(handler):
        handler.start_at(handler.first)
        handler.wfile.write(BODY[handler.first : handler.first + 100_000])
        until(lambda: size(part) > handler.first)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(handler.connection.detach())
        handler.close_connection = True

    return answer


def until(ready):
    end = time.monotonic() + WAITED
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


def size(path) -> int:
    return path.stat().st_size if path.exists() else 0


def starts(asked) -> list[int]:
    """The first byte that each request asked for."""
    return [int(extent[6:-1]) if extent else 0 for extent in asked]


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def remote(server):
    return Remote(f"http://127.0.0.1:{server.server_port}/a", len(BODY), f"sha256:{SHA256}")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "a.bin"


@pytest.fixture
def part(target):
    target.parent.mkdir()
    return target.with_name("a.bin.part")


def quickly(remote, target, patience=5.0):
    return fetch(remote, target, delays=(0,) * 4, timeout=(patience, patience))


@contextmanager
def another(remote, target, repository):
    """Another process that fetches, from when it is about to."""
    words = [repository, remote.url, remote.size, remote.checksum, target]
    command = [sys.executable, "-c", ANOTHER, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_a_file_is_downloaded_and_nothing_else_is_left(server, remote, target):
    assert quickly(remote, target) == target
    assert target.read_bytes() == BODY
    assert {path.name for path in target.parent.iterdir()} <= {"a.bin", "a.bin.lock"}


def test_the_bytes_are_asked_for_as_they_are_and_under_our_name(server, remote, target):
    said = []
    server.script = [lambda handler: said.append(handler.headers) or honest(handler)]
    quickly(remote, target)
    names = ("Accept-Encoding", "User-Agent")
    assert [said[0][name] for name in names] == ["identity", "txl-lightning"]


def test_what_is_there_is_used_without_network(server, remote, part, target):
    target.write_bytes(BODY)
    assert quickly(remote, target) == target
    assert server.asked == []
    assert os.listdir(target.parent) == ["a.bin"]


def test_another_file_in_its_place_is_named_and_left_alone(server, remote, part, target):
    target.write_bytes(b"mine")
    message = (
        rf"a\.bin: another file \(4 bytes with sha256 .*, not 300000 bytes with sha256 {SHA256}"
    )
    with pytest.raises(DataError, match=rf"{message}\); remove it, or pass data\.path"):
        quickly(remote, target)
    assert target.read_bytes() == b"mine"
    assert server.asked == []


def test_a_file_of_the_right_size_and_a_wrong_checksum_is_another_file(remote, part):
    part.write_bytes(BODY[:-1] + b"?")
    with pytest.raises(DataError, match=r"300000 bytes with sha256 \w+, not 300000 bytes"):
        verify(part, remote)


def test_a_checksum_may_be_md5_and_in_capitals(remote, part):
    part.write_bytes(BODY)
    md5 = hashlib.md5(BODY).hexdigest().upper()
    assert verify(part, Remote(remote.url, None, f"md5:{md5}")) == part
    with pytest.raises(DataError, match=f"md5 {md5.lower()}, not md5 0000"):
        verify(part, Remote(remote.url, None, "md5:0000"))


def test_what_is_not_found_is_asked_for_once(server, remote, target):
    server.script = [says(404)]
    with pytest.raises(DataError, match=r"a\.bin: missing, and http.*/a cannot be read \(HTTP 404"):
        quickly(remote, target)
    assert len(server.asked) == 1


def test_an_error_is_one_line_that_ends_with_what_to_do(server, remote, target):
    server.script = [says(404)]
    with pytest.raises(DataError) as caught:
        quickly(remote, target)
    assert re.fullmatch(r".*; put the file there yourself", str(caught.value))


@pytest.mark.parametrize("code", [408, 429, 500, 503])
def test_a_server_in_trouble_is_asked_again(server, remote, target, code):
    server.script = [says(code), says(code), honest]
    assert quickly(remote, target).read_bytes() == BODY
    assert len(server.asked) == 3


def test_a_server_that_stays_in_trouble_is_asked_five_times(server, remote, target, monkeypatch):
    server.script = [says(500)]
    waits = []
    monkeypatch.setattr(download_module.time, "sleep", waits.append)
    with pytest.raises(DataError, match="HTTP 500"):
        fetch(remote, target)
    assert (len(server.asked), waits) == (5, [1, 2, 4, 8])


def test_no_server_at_all_is_said_in_few_words(remote, target):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nowhere = Remote(f"http://127.0.0.1:{port}/a", None, remote.checksum)
    with pytest.raises(DataError, match=r"cannot be read \(Connection refused\)"):
        quickly(nowhere, target)


def test_a_reset_in_mid_body_is_resumed(server, remote, part, target):
    server.script = [resets(part), resets(part), honest]
    assert quickly(remote, target).read_bytes() == BODY
    first, second, third = starts(server.asked)
    assert 0 == first < second < third < len(BODY)


def test_a_stall_is_resumed_and_silence_is_not_waited_for(server, remote, target):
    server.script = [is_silent, stalls, honest]
    began = time.monotonic()
    assert quickly(remote, target, patience=0.4).read_bytes() == BODY
    assert time.monotonic() - began < WAITED
    first, second, third = starts(server.asked)
    assert 0 == first == second < third <= 100_000


@pytest.mark.parametrize("breaks", [truncates, truncates_without_a_length])
def test_a_body_that_ends_early_is_resumed(server, remote, target, breaks):
    server.script = [breaks, honest]
    assert quickly(remote, target).read_bytes() == BODY
    first, second = starts(server.asked)
    assert 0 == first < second <= 100_000


def test_a_body_that_always_ends_early_is_an_error_and_is_kept(server, remote, part, target):
    server.script = [truncates_without_a_length]
    with pytest.raises(DataError, match="it broke off at 100,000 of 300,000 bytes"):
        quickly(remote, target)
    assert part.read_bytes() == BODY[:100_000]


def test_the_next_run_continues_where_the_last_one_ended(server, remote, part, target):
    part.write_bytes(BODY[:123_456])
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == ["bytes=123456-"]


def test_a_part_that_is_whole_asks_for_nothing(server, remote, part, target):
    part.write_bytes(BODY)
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == []


def test_a_part_longer_than_the_file_is_thrown_away(server, remote, part, target):
    part.write_bytes(BODY + b"more")
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == [None]


def test_a_refused_range_gives_the_whole_file_once(server, remote, part, target):
    part.write_bytes(BODY[:123_456])
    server.script = [forgetful]
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == ["bytes=123456-"]


def test_a_range_past_the_end_begins_again(server, remote, part, target):
    part.write_bytes(BODY)
    server.script = [says(416), honest]
    unsized = Remote(remote.url, None, remote.checksum)
    assert quickly(unsized, target).read_bytes() == BODY
    assert server.asked == ["bytes=300000-", None]


def test_another_range_than_was_asked_for_begins_again(server, remote, part, target):
    part.write_bytes(BODY[:123_456])
    server.script = [lambda handler: handler.start_at(123_457), honest]
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == ["bytes=123456-", None]


def test_a_redirect_keeps_the_part_and_the_range(server, remote, part, target):
    part.write_bytes(BODY[:123_456])
    server.script = [lambda handler: handler.start(302, Location="/b", Content_Length=0), honest]
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == ["bytes=123456-"] * 2


def test_an_archive_that_is_called_an_encoding_is_not_unpacked(server, remote, target):
    server.script = [sends(BODY, Content_Encoding="gzip")]
    assert quickly(remote, target).read_bytes() == BODY


def test_a_wrong_body_is_kept_aside_and_never_used(server, remote, part, target):
    server.script = [sends(b"<html>"), honest]
    found = hashlib.sha256(b"<html>").hexdigest()
    with pytest.raises(DataError, match=rf"{found}.*{SHA256}.*kept as .*a\.bin\.wrong") as caught:
        quickly(remote, target)
    assert str(caught.value).endswith("; put the file there yourself")
    assert target.with_name("a.bin.wrong").read_bytes() == b"<html>"
    assert not target.exists()
    assert not part.exists()
    assert quickly(remote, target).read_bytes() == BODY
    assert server.asked == [None, None]


def test_an_interruption_leaves_the_part(server, remote, part, target, monkeypatch):
    server.script = [truncates]
    monkeypatch.setattr(download_module.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(remote, target)
    assert 0 < size(part) <= 100_000
    assert BODY.startswith(part.read_bytes())


def interrupt(_):
    raise KeyboardInterrupt


def test_a_killed_process_is_continued(server, remote, part, target, repository):
    server.script = [stalls, honest]
    with another(remote, target, repository):
        until(lambda: size(part) > 0)
    held = size(part)
    assert quickly(remote, target).read_bytes() == BODY
    assert starts(server.asked) == [0, held]


def test_two_processes_download_once(server, remote, target, repository):
    server.script = [lambda handler: server.released.wait(WAITED) and honest(handler)]
    here = threading.Thread(target=fetch, args=(remote, target))
    here.start()
    until(lambda: server.asked)
    with another(remote, target, repository) as process:
        time.sleep(0.3)
        server.released.set()
        assert process.communicate(timeout=WAITED) == (f"{target}\n".encode(), b"")
    here.join(WAITED)
    assert len(server.asked) == 1
    assert target.read_bytes() == BODY


def test_a_folder_that_cannot_be_is_named(remote, tmp_path):
    (tmp_path / "file").touch()
    message = (
        r"file/a\.bin: missing, and cannot be written \(.*\): make room or set data\.data_dir;"
    )
    with pytest.raises(StorageError, match=message):
        quickly(remote, tmp_path / "file" / "a.bin")


def test_a_full_disk_is_said_once_and_the_part_is_kept(server, remote, part, target):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot be written \(File too large\)"):
            quickly(remote, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(server.asked) == 1
    assert part.read_bytes() == BODY[:100_000]


def test_plain_lines_where_there_is_no_terminal(server, remote, target, capsys):
    server.script = [says(503), honest]
    quickly(remote, target)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"downloading {remote.url} to {target}",
        f"{remote.url}: HTTP 503; again in 0 s",
        f"downloaded {target} (300,000 bytes)",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal_counts_what_was_there(server, remote, part, target, monkeypatch):
    part.write_bytes(BODY[:200_000])
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    quickly(remote, target)
    shown = sys.stderr.getvalue()
    assert "a.bin" in shown
    assert "300.0/300.0 kB" in shown
    assert "downloading" not in shown
