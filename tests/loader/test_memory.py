import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.loader.memory import Memory


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.lists(st.integers(0, 40), max_size=4),
            st.sets(st.integers(0, 20), max_size=6),
        ),
        max_size=25,
    )
)
def test_arrays_that_somebody_holds_are_never_overwritten(steps):
    memory, held = Memory(), []
    for number, (size, lengths, dropped) in enumerate(steps):
        arena = memory.arena(size)
        for length in lengths:
            array = arena.new((length,), np.int32)
            assert array.shape == (length,)
            assert array.dtype == np.int32
            assert array.flags.writeable
            array[:] = number
            # A part of an array holds its memory as well as the whole.
            held.append((number, array[1:-1].reshape(1, -1)))
        held = [pair for place, pair in enumerate(held) if place not in dropped]
        assert all((part == owner).all() for owner, part in held)


def test_what_nobody_holds_is_used_again():
    memory = Memory()

    def address():
        array = memory.arena(1 << 20).new((1000,), np.int64)
        return array.ctypes.data

    assert len({address() for _ in range(20)}) == 1


def test_arrays_outlive_the_memory_that_they_come_from():
    memory = Memory()
    array = memory.arena(1 << 16).new((1000,), np.int64)
    array[:] = 7
    del memory
    others = [np.zeros(1000, np.int64) for _ in range(50)]
    assert (array == 7).all()
    assert not any(map(np.any, others))
