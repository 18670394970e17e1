"""Objects read by ranges, from a server that fails in all the ways that pass, and in those that do not."""

import io
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.object_store import DROPPED, SLOW_DOWN, STALLED, UNHEARD, Bucket, Fault, always, first
from tokshard.errors import InputError, MissingFileError, StorageError, UsageError
from tokshard.storage import fs
from tokshard.storage.reading import read_json_object
from tokshard.storage.remote import client, objects
from tokshard.storage.remote.objects import RemoteFile

CONTENT = random.Random(7).randbytes(300_000)
PASSING = {
    "slow down": SLOW_DOWN,
    "internal error": Fault(status=500, code="InternalError"),
    "bad gateway": Fault(status=502, code=""),
    "too many requests": Fault(status=429, code="TooManyRequests"),
    "dropped": DROPPED,
    "unheard": UNHEARD,
    "cut at once": Fault(cut_at=0),
    "cut short": Fault(cut_at=777),
}


def test_an_object_is_read_by_ranges_and_no_further(bucket: Bucket):
    url = bucket.put("a/x.bin", CONTENT)
    file = RemoteFile(url)
    assert file.size_bytes == len(CONTENT)
    assert file.read(3, 4) == CONTENT[3:7]
    assert file.read(len(CONTENT) - 6, 100) == CONTENT[-6:]
    assert file.read(len(CONTENT), 1) == b""
    assert [read.range for read in bucket.proxy.reads()] == [(3, 7), (len(CONTENT) - 6, len(CONTENT))]


def test_what_the_store_says_of_an_object(bucket: Bucket):
    url = bucket.put("web.jsonl", b"{}\n")
    before = objects.status(url)
    assert before.size_bytes == 3
    assert before.mtime_ns is not None
    bucket.put("web.jsonl", b"[]\n")
    assert objects.status(url).version != before.version
    assert objects.exists(url)
    assert not objects.exists(url + ".gz")
    with pytest.raises(MissingFileError, match="object not found"):
        objects.status(url + ".gz")
    bucket.put("web/a.jsonl", b"")
    assert not objects.exists(bucket.url + "/web")
    assert objects.is_directory(bucket.url + "/web")
    assert not objects.is_directory(url)


def test_objects_are_found_by_pattern_and_below_a_prefix(bucket: Bucket):
    for key in ("web/b.jsonl", "web/a.jsonl", "web/deep/c.jsonl", "web.txt", "web/notes.txt"):
        bucket.put(key, b"x")
    names = {"a": f"{bucket.url}/web/a.jsonl", "b": f"{bucket.url}/web/b.jsonl"}
    assert objects.glob(bucket.url + "/web/*.jsonl") == [names["a"], names["b"]]
    assert f"{bucket.url}/web/deep/c.jsonl" in objects.glob(bucket.url + "/web/**/*.jsonl")
    assert len(objects.walk(bucket.url + "/web/")) == 4
    assert objects.glob(bucket.url + "/nothing/*") == []


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_failures_that_pass_cost_nothing_but_requests(bucket: Bucket, fault: Fault):
    url = bucket.put("x.bin", CONTENT)
    bucket.proxy.judge = first(3, fault)
    file = RemoteFile(url)
    bucket.proxy.judge = first(3, fault)
    assert file.read(1000, 200_000) == CONTENT[1000:201_000]
    assert len(bucket.proxy.reads()) == 4


def test_a_call_that_takes_long_is_repeated_when_it_fails(monkeypatch: pytest.MonkeyPatch):
    """An upload of hours fails once: the time for retries begins then."""
    monkeypatch.setattr(client, "_PATIENCE_SECONDS", 0.2)
    calls = []

    def upload() -> str:
        calls.append(time.monotonic())
        if len(calls) == 1:
            time.sleep(0.3)
            raise ConnectionError("reset by peer")
        return "done"

    assert client.retried("write", "s3://bucket/key", upload) == "done"
    assert len(calls) == 2


def test_a_store_that_stalls_is_asked_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKSHARD_REMOTE_TIMEOUT", "1")
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    bucket.proxy.judge = first(1, STALLED, lambda request: request.is_read)
    assert file.read(0, 10) == CONTENT[:10]


@pytest.mark.parametrize("fault", [SLOW_DOWN, Fault(cut_at=3)], ids=["slow down", "cut"])
def test_a_store_that_keeps_failing_is_an_error_with_the_url_and_the_attempts(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, fault: Fault
):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "2")
    url = bucket.put("x.bin", CONTENT)
    file = RemoteFile(url)
    bucket.proxy.judge = always(fault)
    with pytest.raises(
        StorageError, match=f"cannot read {url}: failed 3 times, most recently with: .+"
    ) as caught:
        file.read(0, 10)
    assert caught.value.exit_code == 7
    assert len(bucket.proxy.reads()) == 3


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault(status=403, code="AccessDenied"), StorageError, "access denied"),
        (Fault(status=404, code="NoSuchBucket"), InputError, "bucket not found"),
        (Fault(status=400, code="InvalidArgument"), StorageError, "the test says InvalidArgument"),
    ],
    ids=["denied", "no bucket", "refused"],
)
def test_a_refusal_is_not_asked_for_twice(bucket: Bucket, fault: Fault, kind: type, words: str):
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    bucket.proxy.judge = always(fault)
    with pytest.raises(kind, match=words):
        file.read(0, 10)
    assert len(bucket.proxy.reads()) == 1


@pytest.mark.parametrize(
    "change", [b"other" * 60_000, CONTENT[:-1], CONTENT + b"x"], ids=["other", "less", "more"]
)
def test_an_object_that_changes_gives_no_bytes(bucket: Bucket, change: bytes):
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    assert file.read(0, 10) == CONTENT[:10]
    bucket.put("x.bin", change)
    with pytest.raises(InputError, match="changed while it was read"):
        file.read(10, 10)
    bucket.delete("x.bin")
    with pytest.raises(MissingFileError):
        file.read(10, 10)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(st.sampled_from(["read", "line", "seek", "end"]), st.integers(0, 320_000)), max_size=8)
)
def test_a_remote_object_reads_like_a_file(bucket: Bucket, steps: list[tuple[str, int]]):
    twin = io.BytesIO(CONTENT)
    if not bucket.keys():
        bucket.put("x.bin", CONTENT)
    with objects.open_binary(bucket.url + "/x.bin") as file:
        for step, number in steps:
            for stream in (file, twin):
                if step == "seek":
                    stream.seek(number)
                elif step == "end":
                    stream.seek(-min(number, len(CONTENT)), io.SEEK_END)
            if step == "read":
                assert file.read(number) == twin.read(number)
            elif step == "line":
                assert file.readline(number) == twin.readline(number)
            assert file.tell() == twin.tell()


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_an_object_is_read_whole_in_pieces(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(objects, "PART_BYTES", 70_000)
    url = bucket.put("x.bin", CONTENT[:size])
    known = objects.status(url)
    bucket.proxy.judge = first(2, Fault(cut_at=10), lambda request: request.is_read)
    assert objects.read_whole(url, known) == CONTENT[:size]


@pytest.mark.parametrize("others", [0, objects._MOST_AHEAD], ids=["some", "too many"])
def test_ranges_that_were_announced_are_read_once(bucket: Bucket, others: int):
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    for number in range(others):
        file.prefetch(1000 * number, 1)
    announced = [(10, 20), (5000, 100), (len(CONTENT) - 5, 100), (len(CONTENT), 5), (400_000, 5)]
    for offset, count in announced * 2:
        file.prefetch(offset, count)
    for offset, count in announced:
        assert file.read(offset, count) == CONTENT[offset : offset + count]
    for number in range(others):
        assert file.read(1000 * number, 1) == CONTENT[1000 * number : 1000 * number + 1]
    assert len(bucket.proxy.reads()) == others + 3
    assert not objects._ahead


def test_announced_ranges_that_are_never_read_make_room(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    for number in range(objects._MOST_AHEAD):
        file.prefetch(number, 1)
    monkeypatch.setattr(objects, "_AHEAD_SECONDS", -1.0)
    file.prefetch(7, 10)
    assert list(objects._ahead) == [(file.path, file.version, 7, 17)]
    assert file.read(7, 10) == CONTENT[7:17]


def test_an_announced_range_that_cannot_be_read_is_an_error_of_its_reader(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    file = RemoteFile(bucket.put("x.bin", CONTENT))
    bucket.proxy.judge = always(SLOW_DOWN)
    file.prefetch(0, 10)
    with pytest.raises(StorageError, match="failed once"):
        file.read(0, 10)
    bucket.proxy.reset()
    assert file.read(0, 10) == CONTENT[:10]


def test_a_file_of_a_store_may_appear_and_change_at_any_time(bucket: Bucket):
    url = f"{bucket.url}/x.json"
    for _ in range(2):
        with pytest.raises(MissingFileError, match="object not found"):
            read_json_object(url)
        assert not fs.exists(url)
        assert fs.state(url) is None
    bucket.put("x.json", b'{"a": 1}')
    before = fs.state(url)
    assert (fs.isfile(url), fs.getsize(url), before) == (True, 8, fs.state(url))
    assert read_json_object(url) == {"a": 1}
    bucket.put("x.json", b'{"a": 2}')
    assert read_json_object(url) == {"a": 2}
    assert fs.state(url) != before


def test_removing_what_is_not_there_is_fine(bucket: Bucket):
    url = bucket.put("x.bin", b"x")
    objects.remove(url)
    objects.remove(url)
    assert bucket.keys() == []


@pytest.mark.parametrize("url", ["nothing://bucket/x", "s3+nothing://bucket/x"])
def test_an_unknown_scheme_is_a_wrong_argument(url: str):
    with pytest.raises(UsageError, match="unknown URL scheme"):
        objects.status(url)


def test_a_store_whose_package_is_not_installed_names_it():
    pytest.importorskip("fsspec")
    try:
        import adlfs  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="requires the package adlfs") as caught:
            objects.status("az://container/x")
        assert caught.value.hint == "pip install adlfs"


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "\u0663"])
def test_wrong_settings_are_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, text: str):
    url = bucket.put("x.bin", b"x")
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", text)
    with pytest.raises(UsageError, match=r"TOKSHARD_REMOTE_RETRIES must be an integer, got"):
        objects.status(url)


def test_stores_without_conditions_are_asked_again_after_each_read():
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe_file("/changing/x.bin", b"abcdef")
    file = RemoteFile("memory://changing/x.bin")
    assert file.read(1, 3) == b"bcd"
    store.pipe_file("/changing/x.bin", b"uvwxyz!")
    with pytest.raises(InputError, match="changed while it was read"):
        file.read(1, 3)
    assert objects.walk("memory://changing/") == ["memory:///changing/x.bin"]
