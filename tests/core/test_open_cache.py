import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core.open_cache import OpenCache


class Opened:
    def __init__(self, key):
        self.key = key


def test_each_key_is_opened_once_and_the_least_recently_used_is_dropped():
    asked = []
    cache = OpenCache(lambda key: asked.append(key) or Opened(key), 2)
    assert [cache.get(key).key for key in "abaca"] == list("abaca")
    assert asked == ["a", "b", "c"]
    assert len(cache) == 2
    assert "b" not in cache
    cache.get("b")
    assert asked == ["a", "b", "c", "b"]
    cache.clear()
    assert len(cache) == 0


def test_what_is_dropped_stays_open_for_whoever_holds_it():
    cache = OpenCache(Opened, 1)
    held = cache.get("a")
    watch = weakref.ref(held)
    cache.get("b")
    assert "a" not in cache
    assert watch() is held
    del held
    assert watch() is None


def test_a_failure_is_not_kept():
    failures = [OSError("once")]

    def opener(key):
        if failures:
            raise failures.pop()
        return Opened(key)

    cache = OpenCache(opener, 2)
    with pytest.raises(OSError, match="once"):
        cache.get("a")
    assert len(cache) == 0
    assert cache.get("a").key == "a"


def test_threads_wait_for_the_one_that_opens_and_for_no_other():
    begun, go = threading.Event(), threading.Event()
    asked = []

    def opener(key):
        asked.append(key)
        if key == "slow":
            begun.set()
            assert go.wait(60)
        return Opened(key)

    cache = OpenCache(opener, 3)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("slow"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert cache.get("quick").key == "quick"
    go.set()
    for thread in threads:
        thread.join(60)
    assert sorted(asked) == ["quick", "slow"]
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_a_cache_without_room_keeps_nothing():
    cache = OpenCache(Opened, 0)
    assert cache.get("a") is not cache.get("a")
    assert len(cache) == 0


def counting():
    """Return an opener of numbers, and the list of what it opened."""
    opened = []

    def opener(number):
        opened.append(number)
        return number

    return opener, opened


@given(uses=st.lists(st.integers(0, 5), max_size=60), capacity=st.integers(1, 4))
def test_the_least_recently_used_is_dropped(uses, capacity):
    opener, opened = counting()
    cache, recent, expected = OpenCache(opener, capacity), [], []
    for number in uses:
        assert cache.get(number) == number
        if number not in recent:
            expected.append(number)
        recent = [*(other for other in recent if other != number), number][-capacity:]
        assert len(cache) == len(recent)
    assert opened == expected


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    capacity=st.integers(1, 3),
    micro=st.integers(1, 5),
    ahead=st.integers(0, 3),
    data=st.data(),
)
def test_what_is_used_one_after_the_other_is_opened_once(sizes, capacity, micro, ahead, data):
    """Whenever a thread that opens ahead comes to its turn."""
    opener, opened = counting()
    cache = OpenCache(opener, capacity)
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    batches = [owners[first : first + micro] for first in range(0, len(owners), micro)]
    wanted = []
    for number, batch in enumerate(batches):
        wanted += range(
            max(number + 1, wanted[-1] + 1 if wanted else 0), min(number + 1 + ahead, len(batches))
        )
        for used in dict.fromkeys(batch):
            assert cache.get(used) == used
            assert len(cache) <= capacity
            while wanted and data.draw(st.booleans()):
                later = wanted.pop(0)
                for other in dict.fromkeys(batches[later]):
                    assert cache.get_ahead(other) in {other, None}
                assert len(cache) <= capacity
    assert sorted(opened) == sorted(set(owners))
