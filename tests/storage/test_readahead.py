"""Reading ahead gives the bytes of what is read, and asks for little more than is used."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.core.background import Background, in_order
from tokshard.storage.readahead import ReadAhead

CONTENT = random.Random(5).randbytes(3000)
OVERHANG = 1 << 16


class Source:
    """Something to read, which notes what it is asked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self._changed = threading.Condition()

    def fetch(self, offset: int, count: int) -> bytes:
        with self._changed:
            self.asked.append((offset, offset + count))
            self._changed.notify_all()
        return self.content[offset : offset + count]

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, timeout=60)


@settings(deadline=None)
@given(
    size=st.integers(0, len(CONTENT)),
    start=st.integers(0, 2000),
    block=st.integers(1, 700),
    reads=st.lists(st.tuples(st.integers(0, 3100), st.integers(0, 1500)), max_size=12),
)
def test_any_reads_give_the_bytes_that_are_there(size, start, block, reads):
    source = Source(CONTENT[:size])
    window = ReadAhead(source.fetch, size, start=start, block_bytes=block)
    for offset, count in reads:
        assert window.read(offset, count) == CONTENT[:size][offset : offset + count]
    assert all(begin < end <= size for begin, end in source.asked), "nothing behind the end is asked for"


def test_the_next_block_comes_while_this_one_is_used_and_no_further():
    source = Source(CONTENT)
    window = ReadAhead(source.fetch, len(CONTENT), block_bytes=500)
    for block in range(6):
        assert window.read(500 * block, 10) == CONTENT[500 * block : 500 * block + 10]
        source.wait_for(min(block + 2, 6))
        assert len(source.asked) == min(block + 2, 6)
    assert sorted(source.asked) == [(500 * block, 500 * block + 500) for block in range(6)]


def test_jumps_fetch_nothing_ahead():
    source = Source(CONTENT)
    window = ReadAhead(source.fetch, len(CONTENT), block_bytes=100)
    for offset in (2950, 1200, 700):
        window.read(offset, 10)
    assert source.asked == [(2900, 3000), (1200, 1300), (700, 800)]


def test_little_is_read_beyond_the_expected_end():
    size = 10 * OVERHANG
    source = Source(bytes(size))
    window = ReadAhead(source.fetch, size, start=100, stop=2 * OVERHANG, block_bytes=OVERHANG)
    assert len(window.read(100, 2 * OVERHANG)) == 2 * OVERHANG
    assert max(end for _, end in source.asked) <= 3 * OVERHANG
    assert len(window.read(3 * OVERHANG, 10)) == 10, "but what is asked for is read"


def test_a_failure_ahead_is_raised_when_its_block_is_read():
    def fetch(offset: int, count: int) -> bytes:
        if offset == 500:
            raise OSError("broken")
        return CONTENT[offset : offset + count]

    window = ReadAhead(fetch, len(CONTENT), block_bytes=500)
    assert window.read(0, 500) == CONTENT[:500]
    with pytest.raises(OSError, match="broken"):
        window.read(500, 10)
    assert window.read(1000, 10) == CONTENT[1000:1010]


def test_calls_in_order_are_few_at_once_and_keep_their_order():
    lock, under_way, most = threading.Lock(), 0, 0
    gate = threading.Semaphore(0)

    def call(number: int) -> int:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        gate.release()
        with lock:
            under_way -= 1
        return number

    assert list(in_order(((lambda number=number: call(number)) for number in range(20)), 3)) == list(
        range(20)
    )
    assert most <= 3


def test_an_error_in_the_background_is_raised_by_who_waits():
    def fail() -> None:
        raise ValueError("in the thread")

    with pytest.raises(ValueError, match="in the thread"):
        Background(fail).result()
