"""An S3 server, and a proxy before it that can fail in the ways that networks and stores do.

The server is moto's, in a process of its own. The proxy speaks HTTP to both sides, notes every request,
and asks the test what to do with it. Nothing but this process talks to the server directly.
"""

from __future__ import annotations

import http.client
import os
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
PATIENCE_SECONDS = 120
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


@dataclass(frozen=True)
class Request:
    """One request as it came, before its body was looked at."""

    method: str
    path: str
    query: dict[str, list[str]]
    range: tuple[int, int] | None
    body_bytes: int

    @property
    def key(self) -> str:
        """The object's key, without the bucket."""
        return self.path.lstrip("/").partition("/")[2]

    @property
    def is_read(self) -> bool:
        """Whether it reads the content of an object."""
        return self.method == "GET" and bool(self.key) and not self.query

    @property
    def is_write(self) -> bool:
        """Whether it changes what is stored."""
        return self.method in {"PUT", "POST", "DELETE"}


@dataclass(frozen=True)
class Fault:
    """What the proxy does with a request instead of passing it on and answering.

    Attributes:
        status: Answer with this status and ``code``, and do not pass the request on.
        code: The store's code of that answer.
        cut_at: Pass it on, but end the connection after so many bytes of the answer's body.
        drop: End the connection without an answer: ``"before"`` or ``"after"`` passing the request on.
        stall: Never answer, until the proxy is reset.
    """

    status: int = 0
    code: str = "SlowDown"
    cut_at: int | None = None
    drop: str = ""
    stall: bool = False


SLOW_DOWN = Fault(status=503)
DROPPED = Fault(drop="before")
UNHEARD = Fault(drop="after")
STALLED = Fault(stall=True)

Judge = Callable[[Request], Fault | None]


def first(count: int, fault: Fault, matches: Callable[[Request], bool] = lambda _: True) -> Judge:
    """Return a judge that gives ``fault`` to the first ``count`` requests that match."""
    lock = threading.Lock()
    left = [count]

    def judge(request: Request) -> Fault | None:
        if not matches(request):
            return None
        with lock:
            left[0] -= 1
            return fault if left[0] >= 0 else None

    return judge


def each(*judges: Judge) -> Judge:
    """Return a judge that asks several, until one gives a fault."""
    return lambda request: next((fault for judge in judges if (fault := judge(request)) is not None), None)


def always(fault: Fault, matches: Callable[[Request], bool] = lambda _: True) -> Judge:
    """Return a judge that gives ``fault`` to every request that matches."""
    return lambda request: fault if matches(request) else None


@dataclass
class Proxy:
    """The proxy: its log, and who judges each request."""

    backend_port: int
    log: list[Request] = field(default_factory=list)
    judge: Judge = lambda _: None
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    active: int = 0
    idle: threading.Condition = field(default_factory=threading.Condition)

    def reset(self) -> None:
        """Forget the log, judge nothing any more, and let go of what is stalled."""
        self.released.set()
        self.released = threading.Event()
        self.judge = lambda _: None
        self.log.clear()

    def settle(self) -> None:
        """Wait until every request is dealt with, those of processes that live no more included."""
        with self.idle:
            assert self.idle.wait_for(lambda: not self.active, PATIENCE_SECONDS)

    def reads(self, key: str = "") -> list[Request]:
        """Return the reads of objects whose keys end so."""
        return [request for request in list(self.log) if request.is_read and request.key.endswith(key)]

    def writes(self) -> list[Request]:
        """Return everything that changed what is stored, in order."""
        return [request for request in list(self.log) if request.is_write]


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def answer(self) -> None:
        proxy = self.server.proxy
        with proxy.idle:
            proxy.active += 1
        try:
            self.answer_one()
        finally:
            with proxy.idle:
                proxy.active -= 1
                proxy.idle.notify_all()

    def answer_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy = self.server.proxy
        request = _request(self.command, self.path, self.headers.get("Range"), len(body))
        proxy.log.append(request)
        fault = proxy.judge(request)
        released = proxy.released
        if fault is not None and fault.stall:
            released.wait(PATIENCE_SECONDS)
        if fault is not None and (fault.stall or fault.drop == "before"):
            self.close_connection = True
            return
        if fault is not None and fault.status:
            self.refuse(fault)
            return
        status, headers, content = self.forward(body)
        if fault is not None and fault.drop == "after":
            self.close_connection = True
            return
        cut_at = None if fault is None else fault.cut_at
        self.reply(status, headers, content, cut_at)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - http.server's names

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        backend = http.client.HTTPConnection(
            "127.0.0.1", self.server.proxy.backend_port, timeout=PATIENCE_SECONDS
        )
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            if self.command in {"PUT", "POST"}:
                headers["Content-Length"] = str(len(body))
            backend.request(self.command, self.path, body=body or None, headers=headers)
            answer = backend.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            backend.close()

    def reply(self, status: int, headers: list[tuple[str, str]], content: bytes, cut_at: int | None) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content if cut_at is None else content[:cut_at])
        self.wfile.flush()
        self.close_connection = self.close_connection or cut_at is not None

    def refuse(self, fault: Fault) -> None:
        content = b"" if self.command == "HEAD" else _error_body(fault.code)
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _error_body(code: str) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>the test says {code}</Message><RequestId>1</RequestId></Error>"
    ).encode()


def _request(method: str, target: str, wanted: str | None, body_bytes: int) -> Request:
    parts = urlsplit(target)
    span = None
    if wanted:
        begin, _, end = wanted.partition("=")[2].partition("-")
        span = (int(begin), int(end) + 1)
    query = parse_qs(parts.query, keep_blank_values=True)
    return Request(method, unquote(parts.path), query, span, body_bytes)


@contextmanager
def running_server() -> Iterator[int]:
    """Run moto's server in a process of its own; yield its port."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # The tests send small parts.
        env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1"},
    )
    try:
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], PATIENCE_SECONDS)
        assert ready, "moto's server did not start"
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate()


@contextmanager
def running_proxy(backend_port: int) -> Iterator[Proxy]:
    """Run a proxy in threads of this process."""
    proxy = Proxy(backend_port)
    listener = _Listener(proxy)
    proxy.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.reset()
        listener.shutdown()
        listener.server_close()
        thread.join()


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for one test, behind the proxy; the test itself goes past the proxy."""

    name: str
    proxy: Proxy

    @property
    def url(self) -> str:
        """The bucket's URL, without a slash at the end."""
        return f"s3://{self.name}"

    def put(self, key: str, content: bytes) -> str:
        """Store an object; return its URL."""
        status, _ = self._ask("PUT", f"/{self.name}/{key}", content)
        assert status == 200, status
        return f"{self.url}/{key}"

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        status, content = self._ask("GET", f"/{self.name}/{key}")
        assert status == 200, f"{key}: {status}"
        return content

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._ask("DELETE", f"/{self.name}/{key}")

    def keys(self) -> list[str]:
        """Return the keys of all objects, sorted."""
        import xml.etree.ElementTree as ET

        status, content = self._ask("GET", f"/{self.name}?list-type=2")
        assert status == 200
        tree = ET.fromstring(content)
        return sorted(
            element.text or "" for element in tree.iter() if element.tag.rpartition("}")[2] == "Key"
        )

    def contents(self) -> dict[str, bytes]:
        """Return all objects."""
        return {key: self.get(key) for key in self.keys()}

    def create(self) -> None:
        """Make the bucket."""
        status, _ = self._ask("PUT", f"/{self.name}")
        assert status == 200, status

    def _ask(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.proxy.backend_port, timeout=PATIENCE_SECONDS
        )
        try:
            headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"}
            connection.request(method, target, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def new_bucket(proxy: Proxy) -> Bucket:
    """Make a bucket with a name of its own."""
    bucket = Bucket(f"test-{uuid.uuid4().hex}", proxy)
    bucket.create()
    return bucket


def environment(port: int) -> dict[str, str]:
    """Return the variables by which S3 clients find the proxy, and nothing of this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
