"""An S3 server on this machine, behind a proxy that delays and damages its answers."""

import http.client
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "texts"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"


@dataclass
class Faults:
    """What the proxy does with requests of objects.

    Args:
        latency: seconds before each answer.
        share: part of the answers that are damaged, by one of `kinds`: cut, the connection ends
            amid the answer; truncated, the answer is whole but only half of the object; error, a
            status of 500; or denied, one of 403.
    """

    latency: float = 0.0
    share: float = 0.0
    kinds: tuple[str, ...] = ("cut", "truncated", "error")
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    counts: Counter = field(default_factory=Counter)

    def draw(self) -> str:
        kind = self.chance.choice(self.kinds) if self.chance.random() < self.share else "whole"
        self.counts[kind] += 1
        return kind


def make_handler(port: int, faults: Faults) -> type[BaseHTTPRequestHandler]:
    """Return the handler of a proxy for the server at a port."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as server:
                server.request(self.command, self.path, headers=dict(self.headers))
                answer = server.getresponse()
                body, status, kind = answer.read(), answer.status, faults.draw()
            time.sleep(faults.latency)
            if kind in ("error", "denied"):
                status, body = (500, b"") if kind == "error" else (403, DENIED)
            elif kind == "truncated":
                body = body[: len(body) // 2]
            self.send_response(status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            is_head = self.command == "HEAD"
            n_byte = answer.getheader("Content-Length") if is_head else len(body)
            self.send_header("Content-Length", str(n_byte))
            self.end_headers()
            if kind == "cut":
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(b"" if is_head else body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return Proxy


@contextmanager
def serve_s3(faults: Faults) -> Iterator[dict[str, str]]:
    """Yield the environment variables that S3 clients need for a server with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    names = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
    names |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(port, faults))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    direct = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    with mock.patch.dict(os.environ, names | direct):
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        try:
            url = f"http://127.0.0.1:{proxy.server_port}"
            yield names | {"AWS_ENDPOINT_URL": url, "DIRECT": direct["AWS_ENDPOINT_URL"]}
        finally:
            proxy.shutdown()
            proxy.server_close()
            server.stop()


def upload_folder(folder: Path, names: dict[str, str]) -> str:
    """Copy a folder to the bucket, without the proxy; return its URL."""
    client = boto3.client("s3", endpoint_url=names["DIRECT"])
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{folder.name}/{path.relative_to(folder)}")
    return f"s3://{BUCKET}/{folder.name}"
