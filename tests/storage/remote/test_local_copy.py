"""Local copies of remote files: made once, of the version that is there, by one process of many."""

import errno
import fcntl
import os
import threading
import uuid

import pytest

from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.storage import fs
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import user_cache_directory
from tokshard.storage.remote import local_copy, objects, ranged_file
from tokshard.storage.small_files import read_json_object

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    # What a test has changed must not be remembered from a moment before.
    monkeypatch.setattr(objects, "RECENT_SECONDS", 0.0)
    monkeypatch.setattr(ranged_file, "_pools", {})
    return tmp_path / "cache"


def put(content, url=None):
    url = url or f"memory://{uuid.uuid4().hex}/data/web.idx"
    with fsspec.open(url, "wb") as file:
        file.write(content)
    return url


def content_of(url):
    with fs.open_file(url) as file:
        return file.read()


def files_in(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", [0, 1, 100_000, 9_000_001])
def test_a_copy_is_what_is_there_and_made_once(cache, size):
    url = put(os.urandom(size))
    with fsspec.open(url) as file:
        assert content_of(url) == file.read()
    [copy] = files_in(cache)
    before = copy.stat()
    assert content_of(url) == copy.read_bytes()
    assert files_in(cache) == [copy]
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_file_is_another_copy_and_the_old_one_goes(cache):
    url = put(b"old" * 1000)
    held = fs.open_file(url)
    put(b"new" * 1000, url)
    assert content_of(url) == b"new" * 1000
    assert [path.read_bytes() for path in files_in(cache)] == [b"new" * 1000]
    with held:
        assert held.read() == b"old" * 1000, "what is open stays readable"


@pytest.mark.parametrize("damage", ["cut", "grown", "gone"])
def test_a_copy_of_another_size_is_fetched_again(cache, damage):
    url = put(b"x" * 5000)
    assert content_of(url) == b"x" * 5000
    [copy] = files_in(cache)
    if damage == "gone":
        copy.unlink()
    else:
        copy.write_bytes(b"x" * (4999 if damage == "cut" else 5001))
    assert content_of(url) == b"x" * 5000


def test_a_link_in_the_place_of_a_copy_is_not_followed(cache, tmp_path):
    url = put(b"x" * 10)
    content_of(url)
    [copy] = files_in(cache)
    copy.unlink()
    (tmp_path / "other").write_bytes(b"y" * 10)
    copy.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        content_of(url)


@pytest.mark.parametrize("age", ["old", "young"])
def test_what_a_killed_process_has_left_is_swept_away_and_what_is_being_fetched_stays(cache, age):
    url = put(b"x" * 10)
    content_of(url)
    [copy] = files_in(cache)
    copy.unlink()
    half = copy.parent / f".{copy.name}.4711-0.tokshard-tmp"
    half.write_bytes(b"half")
    if age == "old":
        os.utime(half, (0, 0))
    assert content_of(url) == b"x" * 10
    assert sorted(files_in(cache)) == sorted([copy] if age == "old" else [copy, half])


def test_a_version_is_never_kept_under_the_name_of_another(cache, monkeypatch):
    url = put(b"x" * 1000)
    before = objects.recent_status(url)
    put(b"y" * 1000, url)
    objects._recent.clear()
    monkeypatch.setattr(local_copy, "recent_status", lambda url: before)
    with pytest.raises((InputError, IntegrityError)):
        content_of(url)
    assert files_in(cache) == []


def test_files_of_one_name_in_two_places_are_two_copies(cache):
    first, second = put(b"first"), put(b"second")
    assert (content_of(first), content_of(second)) == (b"first", b"second")
    assert (content_of(first), content_of(second)) == (b"first", b"second")
    assert len(files_in(cache)) == 2


def test_one_fetches_and_others_wait_for_it(cache, monkeypatch):
    url = put(b"x" * 1000)
    content_of(url)
    [copy] = files_in(cache)
    copy.rename(copy.parent.parent / "aside")
    found, waiting, look = [], threading.Event(), local_copy._open_whole

    def looking(path, size):
        if (descriptor := look(path, size)) is None:
            waiting.set()
        return descriptor

    monkeypatch.setattr(local_copy, "_open_whole", looking)
    thread = threading.Thread(target=lambda: found.append(content_of(url)))
    with WriterLock(str(copy.parent / "lock")):
        thread.start()
        assert waiting.wait(240)
        # Whoever fetched it does not do so again: what the waiting thread finds is this very file.
        (copy.parent.parent / "aside").rename(copy)
        inode = copy.stat().st_ino
        thread.join(0.2)
    thread.join()
    assert found == [b"x" * 1000]
    assert copy.stat().st_ino == inode


def test_whoever_waits_too_long_fetches_for_itself(cache, monkeypatch):
    monkeypatch.setattr(local_copy, "LOCK_WAIT_SECONDS", 0.0)
    url = put(b"x" * 1000)
    content_of(url)
    [copy] = files_in(cache)
    copy.unlink()
    with WriterLock(str(copy.parent / "lock")):
        assert content_of(url) == b"x" * 1000


def test_a_missing_file_is_said_to_be_missing_again_and_again(cache):
    url = f"memory://{uuid.uuid4().hex}/none.json"
    for _ in range(2):
        with pytest.raises(MissingFileError, match="object not found"):
            read_json_object(url)
        assert not fs.exists(url)
    put(b'{"a": 1}', url)
    assert read_json_object(url) == {"a": 1}
    assert not (cache / "remote").exists() or len(files_in(cache)) == 1


def test_what_a_store_has_said_a_moment_ago_is_not_asked_again(monkeypatch):
    url = put(b"x")
    asked = []
    real = objects.status
    monkeypatch.setattr(objects, "status", lambda path: asked.append(path) or real(path))
    monkeypatch.setattr(objects, "RECENT_SECONDS", 3600.0)
    assert [fs.exists(url), fs.isfile(url), fs.getsize(url)] == [True, True, 1]
    assert asked == [url]


def test_the_state_of_a_file_is_never_an_old_one(cache, monkeypatch):
    monkeypatch.setattr(objects, "RECENT_SECONDS", 3600.0)
    url = put(b"old")
    before = fs.state(url)
    assert before == fs.state(url) is not None
    put(b"new", url)
    assert fs.state(url) != before
    assert fs.state(f"{url}.none") is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TOKSHARD_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/tokshard"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tokshard"),
        ({"HOME": "/h"}, "/h/.cache/tokshard"),
    ],
)
def test_where_copies_go(monkeypatch, variables, expected):
    for name in ("TOKSHARD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert user_cache_directory() == expected


def test_without_a_home_the_place_must_be_named(monkeypatch):
    for name in ("TOKSHARD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match="cannot cache remote files: TOKSHARD_CACHE_DIR"):
        user_cache_directory()


def test_a_cache_directory_without_locks_is_used(cache, monkeypatch):
    """Copies appear whole under their names: without locks, two processes only fetch one twice."""

    def refused(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    url = put(b"x" * 1000)
    assert content_of(url) == b"x" * 1000
    assert len(files_in(cache)) == 1
