"""Answers of a Hub that is broken or hostile: each is one error in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from itertools import count

import pytest

from support.command_line import failure, installed
from support.hub_server import Fault, digest_of, git_id, hub_server
from tokshard.errors import MissingFileError, StorageError, TokshardError
from tokshard.storage.remote import hub, objects
from tokshard.storage.remote.objects import RemoteFile

pytest.importorskip("huggingface_hub")

CONTENT = bytes(range(250)) * 4
LARGE = CONTENT * 4
SHA = "a" * 40
URL = "hf://datasets/acme/web"
SECONDS = 30


@pytest.fixture
def server(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "1")
    # Others answer at once, but megabytes may take more than a second on a busy machine.
    is_slow = request.node.name.endswith(("[drip]", "[silence]"))
    monkeypatch.setenv("TOKSHARD_REMOTE_TIMEOUT", "1" if is_slow else "6")
    monkeypatch.setattr("tokshard.storage.remote.client._FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("tokshard.storage.remote.hub._TIMEOUTS_PER_ANSWER", 1)
    with hub_server(tmp_path / "home") as started:
        started.sent = 0
        started.dataset("acme/web", {"a.jsonl": CONTENT, "large.jsonl": LARGE, "d/b.jsonl": CONTENT})
        yield started


@pytest.fixture(autouse=True)
def in_time():
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SECONDS


def refusal(call) -> TokshardError:
    with pytest.raises(TokshardError) as refused:
        call()
    error = refused.value
    assert error.hint
    assert len(str(error)) < 1000
    return error


def write(handler, status, headers, pieces) -> None:
    """Answer with these headers only and with pieces of a body, until the client closes the connection."""
    handler.close_connection = True
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    try:
        for piece in pieces:
            handler.wfile.write(piece)
            handler.hub.sent += len(piece)
    except OSError:
        return


def endless():
    while True:
        yield b"\0" * (1 << 16)


def chunked(pieces):
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)


def dripping():
    while True:
        time.sleep(0.2)
        yield b"x"


def silence(handler):
    time.sleep(3)
    handler.close_connection = True


RANGE = {"Content-Range": "bytes 100-199/1000"}
CHUNKED = {"Transfer-Encoding": "chunked"}
BOMB = gzip.compress(bytes(50 << 20))


def answer(status, body, headers):
    return lambda handler: handler.answer(status, body, headers)


def raw(status, headers, pieces):
    return lambda handler: write(handler, status, headers, pieces())


RANGES = {
    "short": (answer(206, CONTENT[100:150], RANGE), "got 50 bytes instead of 100"),
    "empty": (answer(206, b"", RANGE), "got 0 bytes instead of 100"),
    "long": (answer(206, CONTENT[100:201], RANGE), "got more than 100 bytes"),
    "endless": (raw(206, RANGE, endless), "got more than 100 bytes"),
    "endless chunks": (raw(206, RANGE | CHUNKED, lambda: chunked(endless())), "got more than 100 bytes"),
    "endless length": (raw(206, RANGE | {"Content-Length": str(1 << 60)}, endless), "more than 100 bytes"),
    "whole file": (answer(200, CONTENT, {}), "got more than 100 bytes"),
    "endless whole file": (raw(200, {}, endless), "got more than 100 bytes"),
    "no range": (answer(206, CONTENT[:100], {}), "got no range instead of bytes 100-199/1000"),
    "whole answer": (answer(200, CONTENT[:100], {}), "got no range instead of bytes 100-199/1000"),
    "other start": (
        answer(206, CONTENT[:100], {"Content-Range": "bytes 0-99/1000"}),
        "got bytes 0-99/1000 instead of bytes 100-199/1000",
    ),
    "other size": (
        answer(206, CONTENT[100:200], {"Content-Range": "bytes 100-199/999"}),
        "got bytes 100-199/999 instead",
    ),
    "unknown size": (
        answer(206, CONTENT[100:200], {"Content-Range": "bytes 100-199/*"}),
        "got bytes 100-199/* instead",
    ),
    "several ranges": (
        answer(206, b"x" * 99, {"Content-Type": "multipart/byteranges; boundary=x"}),
        "got no range instead",
    ),
    "no such range": (answer(416, b"", {"Content-Range": "bytes */10"}), "status 416"),
    "compressed": (answer(206, BOMB, RANGE | {"Content-Encoding": "gzip"}), "got more than 100 bytes"),
    "compressed a little": (
        answer(206, zlib.compress(CONTENT[100:200] * 100)[:90], RANGE | {"Content-Encoding": "deflate"}),
        "instead of 100",
    ),
    "truncated": (raw(206, RANGE | {"Content-Length": "100"}, lambda: [b"x" * 40]), "failed 2 times"),
    "truncated chunk": (raw(206, RANGE | CHUNKED, lambda: [b"64\r\nxxx"]), "failed 2 times"),
    "bad chunk": (raw(206, RANGE | CHUNKED, lambda: [b"hello\r\n"]), "failed 2 times"),
    "drip": (raw(206, RANGE | {"Content-Length": "100"}, dripping), "bytes in 1 s"),
    "silence": (silence, "failed 2 times"),
    "no HTTP": (
        lambda handler: handler.wfile.write(b"hello\r\n\r\n") and handler.connection.close(),
        "failed",
    ),
    "loop": (lambda handler: handler.answer(302, b"", {"Location": handler.path}), "cannot be reached"),
    "ftp": (answer(302, b"", {"Location": "ftp://localhost/x"}), "cannot be reached"),
    "local file": (answer(302, b"", {"Location": "file:///etc/passwd"}), "cannot be reached"),
    "closed port": (answer(302, b"", {"Location": "http://127.0.0.1:1/x"}), "failed 2 times"),
    "redirect without target": (answer(302, b"", {}), "status 302"),
    "unauthorized": (answer(401, b"", {"X-Error-Message": "Invalid credentials in x"}), "access denied"),
    "forbidden": (answer(403, b"", {}), "access denied"),
    "gated": (answer(403, b"", {"X-Error-Code": "GatedRepo"}), "access to acme/web is restricted"),
    "disabled": (
        answer(403, b"", {"X-Error-Message": "Access to this resource is disabled."}),
        "the dataset acme/web is disabled",
    ),
    "missing": (answer(404, b"", {"X-Error-Code": "EntryNotFound"}), "file not found"),
    "missing without code": (answer(404, b"", {}), "object not found"),
    "many requests": (answer(429, b"", {"Retry-After": "3600"}), "failed 2 times"),
    "unavailable": (answer(503, b"", {"Retry-After": "Fri, 31 Dec 2199 23:59:59 GMT"}), "failed 2 times"),
    "endless error": (raw(500, CHUNKED, lambda: chunked(endless())), "failed 2 times"),
    "endless header": (raw(206, {"X": "x" * (1 << 21)}, lambda: [b""]), "failed 2 times"),
    "teapot": (answer(418, b"", {"X-Error-Message": "x" * 5000}), "status 418"),
}


@pytest.mark.parametrize("name", RANGES)
def test_an_odd_answer_to_a_range_request_is_an_error(server, name):
    respond, expected = RANGES[name]
    commit = server.datasets["acme/web"].refs["main"]
    file = RemoteFile(f"{URL}@{commit}/a.jsonl")
    server.hostile["/resolve/"] = respond
    error = refusal(lambda: file.read(100, 100))
    assert expected in str(error)
    assert isinstance(error, StorageError | MissingFileError)
    # Bounded: more is only in the buffers of the sockets.
    assert server.sent < 64 << 20
    del server.hostile["/resolve/"]
    assert file.read(100, 100) == CONTENT[100:200]


def test_a_server_without_ranges_can_send_a_whole_file(server):
    commit = server.datasets["acme/web"].refs["main"]
    server.hostile["/resolve/"] = answer(200, CONTENT, {})
    assert RemoteFile(f"{URL}@{commit}/a.jsonl").read(0, 5000) == CONTENT


def test_an_address_that_fails_is_asked_for_again(server):
    commit = server.datasets["acme/web"].refs["main"]
    file = RemoteFile(f"{URL}@{commit}/large.jsonl")
    assert file.read(0, 10) == LARGE[:10]
    for status in (401, 403, 404, 410, 500):
        server.faults = [Fault(f"/stored/{digest_of(LARGE)}", status)]
        assert file.read(5, 10) == LARGE[5:15]
        assert not server.faults[0].times
    assert server.count("/resolve/") == 6
    server.hostile["/stored/"] = answer(403, b"", {})
    assert "access denied by the Hugging Face Hub" in str(refusal(lambda: file.read(5, 10)))


def test_the_token_is_sent_to_the_hub_only(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    repository = server.dataset("acme/private", {"large.jsonl": LARGE})
    repository.token = "hf_secret"
    tokens = []
    server.hostile["/stored/"] = lambda handler: (
        tokens.append(handler.headers.get("Authorization")),
        handler.answer(206, LARGE[:10], {"Content-Range": f"bytes 0-9/{len(LARGE)}"}),
    )
    commit = hub.resolve("datasets", "acme/private", None, URL)
    file = RemoteFile(commit.url("large.jsonl"))
    assert [file.read(0, 10), file.read(0, 10)] == [LARGE[:10]] * 2
    assert tokens == [None, None]


def entry(path="a.jsonl", **changed):
    return {"type": "file", "oid": git_id(b""), "size": 5, "path": path} | changed


def page(*entries, **headers):
    return answer(200, json.dumps(entries).encode(), headers)


def pages(entries_of):
    """Answer with pages without an end: each names a next one."""
    numbers = count()

    def respond(handler):
        number = next(numbers)
        link = f'<{handler.hub.url}{handler.path.split("&cursor")[0]}&cursor={number}>; rel="next"'
        handler.answer(200, json.dumps(entries_of(number)).encode(), {"Link": link})

    return respond


IMPOSSIBLE = "the answer of the Hugging Face Hub contains a listing with impossible files"
NO_LISTING = "the answer of the Hugging Face Hub contains no listing"
NO_JSON = "the answer of the Hugging Face Hub contains no JSON"
REPEATED = "the answer of the Hugging Face Hub contains a listing that repeats itself"
LISTINGS = {
    "web page": (answer(200, b"<html>Log in</html>", {}), NO_JSON),
    "empty": (answer(200, b"", {}), NO_JSON),
    "truncated JSON": (answer(200, json.dumps([entry()]).encode()[:-5], {}), NO_JSON),
    "deep JSON": (answer(200, b"[" * 200_000, {}), NO_JSON),
    "no UTF-8": (answer(200, b'["\xff\xfe\xfd"]', {}), NO_JSON),
    "huge number": (answer(200, b"[" + b"9" * 10_000 + b"]", {}), NO_JSON),
    "object": (answer(200, b'{"error": "x"}', {}), NO_LISTING),
    "null": (answer(200, b"null", {}), NO_LISTING),
    "number": (answer(200, b"3", {}), NO_LISTING),
    "texts": (page("a.jsonl"), NO_LISTING),
    "lists": (page([1, 2]), NO_LISTING),
    "no path": (page({"type": "file", "size": 5, "oid": git_id(b"")}), NO_LISTING),
    "no size": (page({"type": "file", "path": "d/x", "oid": git_id(b"")}), NO_LISTING),
    "no digest": (page({"type": "file", "path": "d/x", "size": 5}), NO_LISTING),
    "other path": (page(entry(7)), NO_LISTING),
    "negative size": (page(entry("d/x", size=-1)), IMPOSSIBLE),
    "size of no number": (page(entry("d/x", size="5")), IMPOSSIBLE),
    "size of a truth": (page(entry("d/x", size=True)), IMPOSSIBLE),
    "fraction": (page(entry("d/x", size=1.5)), IMPOSSIBLE),
    "bad digest": (page(entry("d/x", oid="../../x")), IMPOSSIBLE),
    "digest of no text": (page(entry("d/x", oid=3)), NO_LISTING),
    "bad large file": (page(entry("d/x", lfs=[1])), NO_LISTING),
    "parent": (page(entry("d/../../x.jsonl")), IMPOSSIBLE),
    "parent first": (page(entry("../x.jsonl")), IMPOSSIBLE),
    "absolute": (page(entry("/etc/x.jsonl")), IMPOSSIBLE),
    "absolute inside": (page(entry("d//x.jsonl")), IMPOSSIBLE),
    "dot": (page(entry("d/./x.jsonl")), IMPOSSIBLE),
    "directory as a file": (page(entry("d/")), IMPOSSIBLE),
    "NUL": (page(entry("d/x\0.jsonl")), IMPOSSIBLE),
    "other directory": (page(entry("other/x.jsonl")), IMPOSSIBLE),
    "neighbor": (page(entry("dd/x.jsonl")), IMPOSSIBLE),
    "duplicate": (pages(lambda _: [entry("d/x"), entry("d/y")]), REPEATED),
    "duplicate in a page": (page(entry("d/x"), entry("d/x")), REPEATED),
    "link of no URL": (page(entry("d/x"), Link='<http://[x?cursor=1>; rel="next"'), "contains no JSON"),
    "empty pages": (pages(lambda _: []), REPEATED),
    "endless pages": (pages(lambda number: [entry(f"d/{number}")]), "has more than 200,000 files"),
    "large pages": (
        pages(lambda number: [entry(f"d/{number}-{index}") for index in range(40_000)]),
        "has more than 200,000 files",
    ),
    "endless page": (raw(200, CHUNKED, lambda: chunked(endless())), "got more than 16777216 bytes"),
    "drip": (raw(200, {"Content-Length": "100"}, dripping), "bytes in 1 s"),
    "silence": (silence, "failed 2 times"),
    "many requests": (answer(429, b"", {"Retry-After": "3600"}), "failed 2 times"),
    "loop": (lambda handler: handler.answer(302, b"", {"Location": handler.path}), "cannot be reached"),
    "gone": (answer(404, b"", {"X-Error-Code": "RevisionNotFound"}), "revision not found"),
    "gone directory": (answer(404, b"", {"X-Error-Code": "EntryNotFound"}), "file not found"),
    "moved": (
        answer(404, b"", {"X-Error-Code": "RepoNotFound"}),
        "dataset not found on the Hugging Face Hub",
    ),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_an_odd_listing_is_an_error(server, name, monkeypatch):
    monkeypatch.setattr("tokshard.storage.remote.hub._MAX_PAGES", 100)
    respond, expected = LISTINGS[name]
    commit = server.datasets["acme/web"].refs["main"]
    server.hostile["/tree/"] = respond
    error = refusal(lambda: objects.glob(f"{URL}@{commit}/d/*.jsonl"))
    assert expected in str(error)
    assert server.sent < 100 << 20
    assert server.count("/tree/") <= 101
    del server.hostile["/tree/"]
    assert objects.walk(f"{URL}@{commit}/d/") == [f"{URL}@{commit}/d/b.jsonl"]


def test_only_the_cursor_of_a_next_page_is_followed(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = server.datasets["acme/web"].refs["main"]
    numbers = count()

    def respond(handler):
        number = next(numbers)
        link = '<http://localhost:1/steal?cursor=a%26b>; rel="next"'
        handler.answer(200, json.dumps([entry(f"d/{number}")]).encode(), {} if number else {"Link": link})

    server.hostile["/tree/"] = respond
    assert objects.walk(f"{URL}@{commit}/d") == [f"{URL}@{commit}/d/{number}" for number in range(2)]
    assert server.requests[-1].endswith("/d?recursive=true&cursor=a%26b")


NO_COMMIT = "the answer of the Hugging Face Hub contains no commit"
REVISIONS = {
    "web page": (answer(200, b"<html>Log in</html>", {}), NO_JSON),
    "list": (answer(200, b"[]", {}), NO_COMMIT),
    "no commit": (answer(200, b'{"id": "acme/web"}', {}), NO_COMMIT),
    "null": (answer(200, b'{"id": "acme/web", "sha": null}', {}), NO_COMMIT),
    "short commit": (answer(200, b'{"id": "acme/web", "sha": "abc"}', {}), NO_COMMIT),
    "path as commit": (
        answer(200, json.dumps({"id": "acme/web", "sha": f"../{SHA}"}).encode(), {}),
        NO_COMMIT,
    ),
    "parent as name": (answer(200, json.dumps({"id": "../web", "sha": SHA}).encode(), {}), NO_COMMIT),
    "host as name": (answer(200, json.dumps({"id": "//evil/x", "sha": SHA}).encode(), {}), NO_COMMIT),
    "number as name": (answer(200, json.dumps({"id": 3, "sha": SHA}).encode(), {}), NO_COMMIT),
    "endless": (raw(200, CHUNKED, lambda: chunked(endless())), "got more than 16777216 bytes"),
    "drip": (raw(200, {"Content-Length": "100"}, dripping), "bytes in 1 s"),
    "silence": (silence, "failed 2 times"),
    "many requests": (answer(429, b"", {"Retry-After": "3600"}), "failed 2 times"),
    "loop": (lambda handler: handler.answer(307, b"", {"Location": handler.path}), "cannot be reached"),
    "closed port": (answer(302, b"", {"Location": "http://127.0.0.1:1/x"}), "cannot be reached"),
    "gated": (answer(403, b"", {"X-Error-Code": "GatedRepo"}), "access to acme/web is restricted"),
    "unauthorized": (answer(401, b"", {}), "dataset not found on the Hugging Face Hub: acme/web"),
}


@pytest.mark.parametrize("name", REVISIONS)
def test_an_odd_answer_about_a_revision_is_an_error(server, name):
    respond, expected = REVISIONS[name]
    server.hostile["/revision/"] = respond
    assert expected in str(refusal(lambda: hub.resolve("datasets", "acme/web", None, URL)))
    assert server.sent < 100 << 20


COMMANDS = {
    "endless range": ("/resolve/", raw(206, CHUNKED, lambda: chunked(endless())), 7, "got more than"),
    "endless listing": (
        "/tree/",
        pages(lambda number: [entry(f"d/{number}-{index}.jsonl") for index in range(20_000)]),
        3,
        "has more than 200,000 files",
    ),
    "endless revision": ("/revision/", raw(200, {}, endless), 7, "got more than 16777216 bytes"),
    "many requests": ("/revision/", answer(429, b"", {"Retry-After": "3600"}), 7, "failed 2 times"),
    "web page": ("/tree/", answer(200, b"<html>", {}), 7, NO_JSON),
    "parent": ("/tree/", page(entry("d/../../x.jsonl")), 7, IMPOSSIBLE),
    "drip": ("/resolve/", raw(206, {"Content-Length": "1000"}, dripping), 7, "bytes in 4 s"),
    "loop": (
        "/resolve/",
        lambda handler: handler.answer(302, b"", {"Location": handler.path}),
        7,
        "the Hugging Face Hub cannot be reached",
    ),
    "gated": ("/resolve/", answer(403, b"", {"X-Error-Code": "GatedRepo"}), 7, "is restricted"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_reports_a_hostile_hub(server, name):
    inside, respond, code, expected = COMMANDS[name]
    server.hostile[inside] = respond
    retries = {"TOKSHARD_REMOTE_RETRIES": "0" if name == "drip" else "1"}
    found = failure(installed("tokenize", f"{URL}/d/*.jsonl", "-o", "out", env=retries))
    assert found[0] == code
    assert expected in found[1]
    assert found[2]


DOWNLOAD = "download the dataset where the Hub can be reached (`hf download acme/web --repo-type dataset"


@pytest.mark.parametrize(
    ("environment", "code", "reason"),
    [
        ({"HF_HUB_OFFLINE": "1"}, 3, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, 7, "the Hugging Face Hub cannot be reached: "),
        ({"HF_ENDPOINT": "http://no-such-host.invalid"}, 7, "the Hugging Face Hub cannot be reached: "),
        ({"HF_ENDPOINT": "ftp://localhost"}, 7, "the Hugging Face Hub cannot be reached: "),
        ({"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": ""}, 7, "the Hugging Face Hub cannot be reached: "),
    ],
)
@pytest.mark.parametrize("path", ["", "/d/*.jsonl"])
def test_the_command_without_a_connection_ends_in_3_seconds(server, environment, code, reason, path):
    defaults = {"TOKSHARD_REMOTE_RETRIES": "10", "TOKSHARD_REMOTE_TIMEOUT": "30"}
    started = time.monotonic()
    done = installed("tokenize", URL + path, "-o", "out", env=defaults | environment, seconds=3)
    assert time.monotonic() - started < 9
    found = failure(done)
    assert found[0] == code
    assert f"cannot read {URL}{path}: {reason}" in found[1]
    assert DOWNLOAD in found[2]
    assert not server.count("acme/web")


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (["tokenize", "hf://acme/web/x.jsonl"], 2, "invalid URL of a dataset", "hf://datasets/ORG/NAME/GLOB"),
        (["tokenize", "hf://datasets//a/x"], 2, "invalid URL of a dataset", "hf://datasets/ORG/NAME/GLOB"),
        (
            ["tokenize", "hf://datasets/acme/web@"],
            2,
            "invalid URL of a dataset",
            "hf://datasets/ORG/NAME/GLOB",
        ),
        (["tokenize", "hf://datasets/"], 2, "invalid URL of a dataset", "hf://datasets/ORG/NAME/GLOB"),
        (["inspect", f"{URL}/d/x"], 3, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
        (["verify", f"{URL}/d/x"], 3, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
    ],
)
def test_other_hub_urls_end_at_once_without_a_connection(server, arguments, code, message, hint):
    environment = {"HF_HUB_OFFLINE": "1", "TOKSHARD_REMOTE_RETRIES": "10"}
    output = ["-o", "out"] if arguments[0] == "tokenize" else []
    found = failure(installed(*arguments, *output, env=environment, seconds=10))
    assert found[0] == code
    assert message in found[1]
    assert hint in found[2]
