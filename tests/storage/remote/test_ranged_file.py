"""Remote files read through blocks: the same bytes as a local twin has, in bounded memory, few requests."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.errors import IntegrityError, StorageError, UsageError
from tokshard.storage.remote import ranged_file
from tokshard.storage.remote.ranged_file import BlockPool

BLOCK = 16
CONTENT = bytes(number * number % 251 for number in range(10 * BLOCK * BLOCK + 5))
PATIENCE_SECONDS = 60


class Noting:
    """A file in memory that notes each request; ``hold`` makes them wait."""

    def __init__(self, content=CONTENT):
        self.content = content
        self.size_bytes = len(content)
        self.version = "1"
        self.requests = []
        self.failures = 0
        self.hold = threading.Event()
        self.hold.set()

    def read(self, offset, count):
        assert self.hold.wait(PATIENCE_SECONDS)
        self.requests.append((offset, count))
        if self.failures:
            self.failures -= 1
            raise StorageError("read", "memory", OSError(5, "no answer"))
        assert offset + count <= self.size_bytes
        return self.content[offset : offset + count]


def small_pool(capacity=16 * BLOCK, request=4 * BLOCK, window=4 * BLOCK):
    return BlockPool(capacity, block_bytes=BLOCK, request_bytes=request, window_bytes=window, fetchers=2)


def opened(monkeypatch, source, pool):
    """Return a ranged file over a source and a pool that the test holds."""
    monkeypatch.setattr(ranged_file, "recent_status", lambda url: None)
    monkeypatch.setattr(ranged_file, "RemoteFile", lambda url, status: source)
    monkeypatch.setattr(ranged_file, "shared_pool", lambda: pool)
    return ranged_file.RangedFile("memory://file")


def read(file, offset, count):
    target = bytearray(count)
    file.read_into(memoryview(target), offset)
    return bytes(target)


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


RANGES = st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 9 * BLOCK)).map(
    lambda pair: (pair[0], min(pair[1], len(CONTENT) - pair[0]))
)


@given(
    steps=st.lists(st.tuples(st.booleans(), RANGES), max_size=30), capacity=st.sampled_from([1, 4, 16, 1000])
)
@settings(deadline=None, max_examples=150)
def test_any_reads_give_what_a_local_file_has_and_memory_stays_bounded(steps, capacity):
    with pytest.MonkeyPatch.context() as patch:
        pool = small_pool(capacity * BLOCK)
        file = opened(patch, Noting(), pool)
        for ahead, (offset, count) in steps:
            if ahead:
                file.prefetch(offset, count)
            else:
                assert read(file, offset, count) == CONTENT[offset : offset + count]
            # One request on top for the reader: what is being fetched is not pushed out.
            assert pool.held_bytes <= (capacity + pool.request_blocks) * BLOCK


def test_threads_share_a_file(monkeypatch):
    pool = small_pool()
    file = opened(monkeypatch, Noting(), pool)
    wrong = []

    def work(seed):
        for step in range(300):
            offset = (seed * 7919 + step * 104729) % (len(CONTENT) - 50)
            if read(file, offset, 50) != CONTENT[offset : offset + 50]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # Each of eight threads may have had a request under way when the last one ended.
    assert pool.held_bytes <= (16 + 8 * 4) * BLOCK


def test_what_is_read_again_is_not_fetched_again(monkeypatch):
    source = Noting()
    file = opened(monkeypatch, source, small_pool())
    assert read(file, 5, 40) == read(file, 5, 40) == CONTENT[5:45]
    assert read(file, 40, 5) == CONTENT[40:45]
    assert source.requests == [(0, 3 * BLOCK)]


def test_blocks_used_least_recently_go_first(monkeypatch):
    source = Noting()
    file = opened(monkeypatch, source, small_pool(capacity=4 * BLOCK, window=0))
    for block in (0, 10, 20, 30, 0, 40, 0, 10):
        read(file, block * BLOCK, 1)
    assert [offset // BLOCK for offset, _ in source.requests] == [0, 10, 20, 30, 40, 10]


def test_many_readers_of_a_block_make_one_request(monkeypatch):
    source = Noting()
    file = opened(monkeypatch, source, small_pool())
    source.hold.clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(read(file, 3, 5))) for _ in range(6)]
    for thread in threads:
        thread.start()
    source.hold.set()
    for thread in threads:
        thread.join()
    assert found == [CONTENT[3:8]] * 6
    assert source.requests == [(0, BLOCK)]


def test_a_failed_request_is_an_error_for_its_reader_and_the_next_read_tries_again(monkeypatch):
    source = Noting()
    source.failures = 1
    pool = small_pool()
    file = opened(monkeypatch, source, pool)
    with pytest.raises(StorageError, match="no answer"):
        read(file, 0, 10)
    assert pool.held_bytes == 0
    assert read(file, 0, 10) == CONTENT[:10]


def test_a_failed_prefetch_is_no_error(monkeypatch):
    source = Noting()
    source.failures = 1
    pool = small_pool()
    file = opened(monkeypatch, source, pool)
    file.prefetch(0, 10)
    eventually(lambda: source.requests and not pool.held_bytes)
    assert read(file, 0, 10) == CONTENT[:10]
    assert len(source.requests) == 2


def test_what_was_asked_for_ahead_is_there(monkeypatch):
    source = Noting()
    file = opened(monkeypatch, source, small_pool())
    file.prefetch(100, 5 * BLOCK)
    eventually(lambda: len(source.requests) == 2)
    assert sorted(source.requests) == [(96, 4 * BLOCK), (160, 2 * BLOCK)]
    assert read(file, 100, 5 * BLOCK) == CONTENT[100 : 100 + 5 * BLOCK]
    assert len(source.requests) == 2


def test_a_reader_does_not_wait_for_fetchers_that_are_busy(monkeypatch):
    source, stuck = Noting(), Noting()
    stuck.hold.clear()
    pool = small_pool()
    for number in (0, 10):
        pool.prefetch("stuck", stuck, [number])  # both fetchers wait
    file = opened(monkeypatch, source, pool)
    file.prefetch(0, BLOCK)
    assert read(file, 0, BLOCK) == CONTENT[:BLOCK]
    stuck.hold.set()


@pytest.mark.parametrize(("offset", "count"), [(-100, 50), (10**12, 50), (5, -3), (0, 10**18)])
def test_invalid_prefetch_ranges_are_harmless(monkeypatch, offset, count):
    source = Noting()
    pool = small_pool()
    file = opened(monkeypatch, source, pool)
    file.prefetch(offset, count)
    assert pool.held_bytes <= 8 * BLOCK
    assert read(file, 0, 10) == CONTENT[:10]


def test_a_sequential_reader_makes_few_large_requests(monkeypatch):
    source = Noting()
    pool = small_pool(capacity=1000 * BLOCK, request=8 * BLOCK, window=32 * BLOCK)
    file = opened(monkeypatch, source, pool)
    got = b"".join(read(file, offset, min(7, len(CONTENT) - offset)) for offset in range(0, len(CONTENT), 7))
    assert got == CONTENT
    whole = -(-len(CONTENT) // BLOCK)
    assert sum(-(-count // BLOCK) for _, count in source.requests) == whole, "no block twice"
    assert len(source.requests) < whole / 5


def test_reads_here_and_there_fetch_what_they_touch_and_no_more(monkeypatch):
    source = Noting()
    file = opened(monkeypatch, source, small_pool(capacity=1000 * BLOCK))
    for block in range(0, 160, 3):
        read(file, block * BLOCK + 2, 5)
    assert all(count == BLOCK for _, count in source.requests)


def test_a_range_beyond_the_end_is_an_error(monkeypatch):
    file = opened(monkeypatch, Noting(), small_pool())
    with pytest.raises(IntegrityError, match="must have at least"):
        read(file, len(CONTENT) - 3, 4)
    assert read(file, len(CONTENT), 0) == b""


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²"])
def test_a_cache_of_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(ranged_file.CACHE_VARIABLE, text)
    monkeypatch.setattr(ranged_file, "_pools", {})
    with pytest.raises(UsageError, match=ranged_file.CACHE_VARIABLE):
        ranged_file.shared_pool()


def test_the_size_of_the_cache_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv(ranged_file.CACHE_VARIABLE, "2")
    monkeypatch.setattr(ranged_file, "_pools", {})
    pool = ranged_file.shared_pool()
    assert pool is ranged_file.shared_pool()
    source = Noting(bytes(8 << 20))
    for first in range(0, 128, 8):
        list(pool.blocks("x", source, range(first, first + 8)))
    assert pool.held_bytes == 2 << 20
