"""A stand-in for the Hugging Face Hub: its protocol for datasets, with commits, redirects and faults."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_BYTES = 2000
"""Files of this size are stored outside of git: the Hub redirects their readers."""


def digest_of(content: bytes) -> str:
    """Return the ETag of a file: the SHA-256 of a large one, the git object id of a small one."""
    if len(content) >= LARGE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return git_id(content)


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """A dataset: its commits, and the branches and tags that name them."""

    name: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    token: str | None = None

    def commit(self, files: dict[str, bytes | str], branch: str = "main") -> str:
        """Make a commit of these files, and move a branch to it."""
        content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        # Not of the content: the bytes of a Parquet file depend on the version of pyarrow.
        text = json.dumps([self.name, branch, len(self.commits), sorted(content)])
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = content
        self.refs[branch] = sha
        return sha


@dataclass
class Fault:
    """An answer to the next requests whose path contains a text.

    Attributes:
        status: The status; 0 closes the connection in the middle of the body.
    """

    inside: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1


class HubServer:
    """The server: ``url`` is the value of ``HF_ENDPOINT``.

    Attributes:
        requests: The methods and paths of all requests, in order.
        on_request: Called with each of them before the answer.
        hostile: Functions that answer requests whose path contains a text, given the handler.
        page: The number of entries in a page of a listing.
        lifetime: How often the address of a large file can be read before it expires.
    """

    def __init__(self) -> None:
        self.datasets: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.on_request: Callable[[str], object] = lambda _: None
        self.hostile: dict[str, Callable[[_Handler], object]] = {}
        self.page = 3
        self.lifetime = 1000
        self._uses: dict[str, int] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.storage_url = f"http://localhost:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def dataset(self, name: str, files: dict[str, bytes | str] | None = None) -> Repository:
        """Add a dataset with a first commit."""
        self.datasets[name] = Repository(name)
        if files is not None:
            self.datasets[name].commit(files)
        return self.datasets[name]

    def count(self, inside: str) -> int:
        """Return how many requests contained a text."""
        return sum(inside in request for request in self.requests)

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            self.on_request(self.requests[-1])
            for fault in self.faults:
                if fault.inside in path and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def use(self, address: str) -> bool:
        """Count a use of the address of a large file; return whether it is still valid."""
        with self._lock:
            self._uses[address] = self._uses.get(address, 0) + 1
            return self._uses[address] <= self.lifetime

    def content(self, digest: str) -> bytes:
        return next(
            content
            for repository in self.datasets.values()
            for files in repository.commits.values()
            for content in files.values()
            if digest_of(content) == digest
        )


def parquet_of(texts: Sequence[str]) -> bytes:
    """Return a Parquet file with these texts, in row groups of 20."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": texts}), sink, row_group_size=20, compression="none")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def add_sample(server: HubServer, sample_data: Path) -> None:
    """Add the dataset acme/library, made of the sample data: that of docs/how-to/hub-datasets.md."""
    lines = (sample_data / "stories.jsonl").read_bytes().splitlines(keepends=True)
    texts = [json.loads(line)["text"] for line in lines]
    repository = server.dataset(
        "acme/library",
        {
            "README.md": "# Stories and manuals\n",
            "stories/train-00000-of-00002.jsonl": b"".join(lines[:200]),
            "stories/train-00001-of-00002.jsonl": b"".join(lines[200:400]),
            "stories/validation.jsonl": b"".join(lines[400:]),
            "manuals/part-0.jsonl.gz": (sample_data / "manuals.jsonl.gz").read_bytes(),
        },
    )
    repository.commit(
        {
            "manuals/train/0000.parquet": parquet_of(texts[:20]),
            "stories/train/0000.parquet": parquet_of(texts[:400]),
            "stories/validation/0000.parquet": parquet_of(texts[400:]),
        },
        branch="refs/convert/parquet",
    )


@contextmanager
def hub_server(home):
    """Run a server that this process and the commands that it starts use, with their cache in a directory."""
    import pytest
    from huggingface_hub import constants

    from tokshard.storage.remote import hub

    server = HubServer()
    cache = str(home / "hub")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"ENDPOINT": server.url, "HF_HUB_CACHE": cache}.items():
            patched.setattr(constants, name, value)
        for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_CACHE": cache}.items():
            patched.setenv(name, value)
        patched.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        patched.delenv("HF_TOKEN", raising=False)
        try:
            yield server
        finally:
            server.close()
            hub._commit.cache_clear()


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        fault = self.hub.take_fault(self.command, self.path)
        for inside, answer in self.hub.hostile.items():
            if inside in self.path:
                answer(self)
                return
        if fault is not None and fault.status:
            self.answer(fault.status, b"injected", fault.headers)
            return
        self._cut = fault is not None
        parts = urlsplit(self.path)
        try:
            prefix = next(name for name in self._routes() if parts.path.startswith(name))
            self._routes()[prefix](parts.path.removeprefix(prefix), parse_qs(parts.query))
        except _RefusedError as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message}
            self.answer(error.status, json.dumps({"error": error.message}).encode(), headers)

    def _routes(self) -> dict[str, Callable[[str, dict[str, list[str]]], None]]:
        return {
            "/api/datasets/": self._api,
            "/api/models/": self._api,
            "/datasets/": self._resolve,
            "/stored/": self._stored,
            "/": self._resolve,
        }

    def _repository(self, path: str) -> tuple[Repository, list[str]]:
        names = path.split("/")
        for count in (2, 1):
            name = "/".join(names[:count])
            name = self.hub.renamed.get(name, name)
            if name in self.hub.datasets:
                repository = self.hub.datasets[name]
                given = self.headers.get("Authorization", "").removeprefix("Bearer ")
                if repository.token is not None and given != repository.token:
                    raise _RefusedError(401, "RepoNotFound", "Invalid username or password.")
                return repository, names[count:]
        raise _RefusedError(401 if not self.headers.get("Authorization") else 404, "RepoNotFound")

    def _commit(self, repository: Repository, revision: str) -> str:
        name = unquote(revision)
        sha = repository.refs.get(name, name)
        if sha not in repository.commits:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {name}")
        return sha

    def _api(self, path: str, query: dict[str, list[str]]) -> None:
        repository, rest = self._repository(path)
        if not rest or rest[0] == "revision":
            sha = self._commit(repository, rest[1] if rest else "main")
            found = {
                "_id": "1",
                "id": repository.name,
                "sha": sha,
                "private": False,
                "tags": [],
                "downloads": 0,
            }
            self.answer_json(found)
        elif rest[0] == "tree":
            self._tree(repository, self._commit(repository, rest[1]), unquote("/".join(rest[2:])), query)
        else:
            raise _RefusedError(404, "NotFound")

    def _tree(self, repository: Repository, sha: str, directory: str, query: dict[str, list[str]]) -> None:
        base = f"{directory}/" if directory else ""
        files = repository.commits[sha]
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        entries = [_entry(name, content) for name, content in sorted(files.items()) if name.startswith(base)]
        if directory and not entries:
            raise _RefusedError(404, "EntryNotFound")
        folders = {
            "/".join(entry["path"].split("/")[:depth])
            for entry in entries
            for depth in range(1, entry["path"].count("/") + 1)
        }
        entries += [
            {"type": "directory", "oid": git_id(name.encode()), "size": 0, "path": name}
            for name in sorted(folders)
            if name.startswith(base)
        ]
        if not recursive:
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(base)]
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        if first + self.hub.page < len(entries):
            page = f"{urlsplit(self.path).path}?recursive={recursive}&cursor={first + self.hub.page}"
            headers["Link"] = f'<{self.hub.url}{page}>; rel="next"'
        self.answer_json(entries[first : first + self.hub.page], headers)

    def _resolve(self, path: str, query: dict[str, list[str]]) -> None:
        repository, rest = self._repository(path)
        if rest[:1] != ["resolve"]:
            raise _RefusedError(404, "NotFound")
        sha = self._commit(repository, rest[1])
        name = unquote("/".join(rest[2:]))
        if name not in repository.commits[sha]:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        if repository.gated:
            raise _RefusedError(403, "GatedRepo", f"Access to dataset {repository.name} is restricted.")
        content = repository.commits[sha][name]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{digest_of(content)}"'}
        if len(content) < LARGE_BYTES:
            self._content(content, headers)
            return
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{digest_of(content)}"'}
        address = f"/stored/{digest_of(content)}?signature={len(self.hub.requests)}"
        self.answer(302, b"Found", headers | {"Location": self.hub.storage_url + address})

    def _stored(self, digest: str, query: dict[str, list[str]]) -> None:
        if "Authorization" in self.headers:  # as object stores do with signed addresses
            raise _RefusedError(400, "InvalidArgument", "Only one auth mechanism allowed")
        if not self.hub.use(self.path):
            raise _RefusedError(403, "AccessDenied", "Request has expired")
        self._content(self.hub.content(digest), {"ETag": f'"{digest}"'})

    def _content(self, content: bytes, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, content, headers)
            return
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        place = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self.answer(206, part, headers | {"Content-Range": place})

    def answer_json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}))

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if getattr(self, "_cut", False):
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": git_id(content), "size": len(content), "path": name}
    if len(content) >= LARGE_BYTES:
        entry["lfs"] = {"oid": digest_of(content), "size": len(content), "pointerSize": 134}
    return entry
