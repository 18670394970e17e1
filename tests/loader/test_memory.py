import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.loader.memory import Memory


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["i4", "i8"])), max_size=4),
            st.sets(st.integers(0, 20), max_size=6),
        ),
        max_size=25,
    ),
    kinds=st.lists(st.sampled_from(["part", "memoryview", "bytes"]), min_size=1),
)
def test_arrays_that_somebody_holds_are_never_overwritten(steps, kinds):
    memory, held = Memory(), []
    for number, (shapes, dropped) in enumerate(steps):
        layout = tuple(((length, 1), dtype) for length, dtype in shapes)
        for place, array in enumerate(memory.arrays(layout)):
            assert (array.shape, array.dtype.str[1:]) == ((shapes[place][0], 1), shapes[place][1])
            assert array.flags.writeable
            assert array.flags.c_contiguous
            array[:] = number
            # A part of an array, or a buffer over it, holds its memory as well as the whole.
            kind = kinds[place % len(kinds)]
            part = array[1:-1].reshape(1, -1)
            if kind == "memoryview":
                part = memoryview(part)
            elif kind == "bytes":
                part = np.frombuffer(array.data, array.dtype)
            held.append((number, part))
            del array, part
        held = [pair for place, pair in enumerate(held) if place not in dropped]
        assert all((np.asarray(part) == owner).all() for owner, part in held)


def test_arrays_of_one_group_do_not_overlap():
    arrays = Memory().arrays((((5,), np.int8), ((3, 2), np.int64), ((7,), np.float32)))
    for number, array in enumerate(arrays):
        array[:] = number
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, {1}, {2}]


def test_what_nobody_holds_is_used_again():
    memory = Memory()

    def address(size):
        (array,) = memory.arrays((((size,), np.int64),))
        return array.ctypes.data

    assert len({address(size) for size in (1000, 1000, 10, 1000, 999, 1000)}) == 1


def test_arrays_outlive_the_memory_that_they_come_from():
    memory = Memory()
    (array,) = memory.arrays((((1000,), np.int64),))
    array[:] = 7
    del memory
    others = [np.zeros(1000, np.int64) for _ in range(50)]
    assert (array == 7).all()
    assert not any(map(np.any, others))
