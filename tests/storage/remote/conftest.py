"""One S3 server and one proxy for each worker of pytest, and a fresh bucket for each test."""

from collections.abc import Iterator

import pytest

from support.object_store import (
    Bucket,
    Proxy,
    environment,
    new_bucket,
    running_proxy,
    running_server,
)


@pytest.fixture(scope="session")
def s3_proxy() -> Iterator[Proxy]:
    """The proxy before the server; use ``bucket``, which resets it."""
    pytest.importorskip("moto.server", reason="needs moto")
    pytest.importorskip("s3fs", reason="needs the extra remote")
    with running_server() as port, running_proxy(port) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of its own; the environment of the test and its processes leads to the proxy."""
    for name, value in environment(s3_proxy.port).items():
        monkeypatch.setenv(name, value)
    s3_proxy.reset()
    yield new_bucket(s3_proxy)
    s3_proxy.reset()
