import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.index_caches import saved
from tokshard.errors import InputError, IntegrityError, StorageError
from tokshard.samples.index.npy import (
    ArraySpec,
    Blocks,
    map_npy,
    read_spec,
    write_blocks,
    write_npy,
)
from tokshard.storage.digest import FileRecord, content_digest

DTYPES = ["<i2", "<i4", "<i8", "<u4"]
SHAPES = st.tuples(st.integers(0, 40)) | st.tuples(st.integers(0, 20), st.integers(0, 3))


@given(st.sampled_from(DTYPES), SHAPES, st.integers(0, 2**32 - 1))
def test_files_are_those_of_numpy_and_come_back(tmp_path_factory, dtype, shape, seed):
    path = str(tmp_path_factory.mktemp("npy") / "a.npy")
    array = np.random.RandomState(seed).randint(0, 30000, shape).astype(dtype)
    told = []
    record = write_npy(path, array, told.append)
    content = saved(array)
    with open(path, "rb") as file:
        assert file.read() == content
    assert record == FileRecord(len(content), content_digest(content))
    assert sum(told) == len(content)
    assert read_spec(path) == ArraySpec.of(array) == ArraySpec(np.dtype(dtype), shape)
    found = map_npy(path)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@given(st.sampled_from(DTYPES), st.integers(0, 10**17), st.none() | st.integers(0, 9))
def test_headers_of_any_size_are_those_of_numpy(dtype, rows, columns):
    shape = (rows,) if columns is None else (rows, columns)
    buffer = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    spec = ArraySpec(np.dtype(dtype), shape)
    assert spec.header() == buffer.getvalue()
    assert len(spec.header()) == 128
    assert spec.file_bytes == 128 + rows * (columns if columns is not None else 1) * np.dtype(dtype).itemsize


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 2**32 - 1))
def test_arrays_made_in_pieces_are_those_made_whole(tmp_path_factory, sizes, seed):
    draw, total = np.random.RandomState(seed), sum(sizes)
    whole = {"a": draw.randint(0, 99, total).astype("<i2"), "b": draw.randint(0, 99, total).astype("<i8")}
    room = {name: np.empty(9, array.dtype) for name, array in whole.items()}

    def pieces():
        first = 0
        for size in sizes:
            for name, array in whole.items():
                room[name][:size] = array[first : first + size]
            yield [array[:size] for array in room.values()]
            first += size

    directory = tmp_path_factory.mktemp("npy")
    blocks = Blocks({name: ArraySpec.of(array) for name, array in whole.items()}, pieces)
    records = write_blocks({name: str(directory / name) for name in whole}, blocks)
    for name, array in whole.items():
        assert (directory / name).read_bytes() == saved(array)
        assert records[name] == write_npy(str(directory / "again"), array)


@pytest.mark.parametrize("length", [4, 6])
def test_pieces_that_do_not_make_the_array_are_refused(tmp_path, length):
    specs = {name: ArraySpec(np.dtype("<i4"), (5,)) for name in "ab"}
    blocks = Blocks(specs, lambda: [[np.arange(5, dtype="<i4"), np.arange(length, dtype="<i4")]])
    with pytest.raises(IntegrityError, match=rf"b must have 148 bytes for .*, got {128 + 4 * length}"):
        write_blocks({name: str(tmp_path / name) for name in "ab"}, blocks)
    assert list(tmp_path.iterdir()) == []


def test_pieces_larger_than_one_write_are_told_of_one_by_one(tmp_path):
    told = []
    write_npy(str(tmp_path / "a.npy"), np.zeros(5_000_000, np.int64), told.append)
    assert told == [128, 1 << 24, 1 << 24, 40_000_000 - (1 << 25)]


def test_maps_cannot_be_written_to(tmp_path):
    path = str(tmp_path / "a.npy")
    write_npy(path, np.arange(5, dtype=np.int32))
    with pytest.raises(ValueError, match="read-only"):
        map_npy(path)[0] = 1


def test_every_truncation_and_every_appended_byte_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    content = saved(np.arange(20, dtype=np.int32).reshape(10, 2))
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(IntegrityError, match=r"a\.npy"):
            map_npy(str(path))
    path.write_bytes(content + b"\0")
    with pytest.raises(IntegrityError, match=r"must have 208 bytes by its header .*, got 209"):
        map_npy(str(path))


def test_every_changed_bit_of_a_header_is_refused_or_says_the_same_size(tmp_path):
    path = tmp_path / "a.npy"
    array = np.arange(20, dtype=np.int32).reshape(10, 2)
    content = saved(array)
    accepted = 0
    for place in range(128):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                found = read_spec(str(path))
            except IntegrityError:
                continue
            assert (found.dtype.itemsize, found.shape) == (4, array.shape)
            accepted += 1
    assert accepted == 0


def test_a_header_of_another_type_of_the_same_size_is_read_as_what_it_says(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(saved(np.arange(4, dtype=np.int32)).replace(b"<i4", b"<u4"))
    assert read_spec(str(path)) == ArraySpec(np.dtype("<u4"), (4,))


class Canary:
    def __reduce__(self):
        return (pytest.fail, ("the canary was touched",))


@pytest.mark.parametrize(
    "array",
    [
        np.array([Canary()], dtype=object),
        np.zeros((3, 4), np.int32, order="F"),
        np.zeros(3, ">i4"),
        np.zeros(3, np.float64),
        np.zeros((2, 2, 2), np.int32),
        np.zeros((), np.int32),
        np.zeros(3, [("a", "<i4")]),
    ],
    ids=["pickle", "fortran", "big-endian", "float", "3-D", "0-D", "fields"],
)
def test_other_arrays_of_numpy_are_refused(array, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(saved(array))
    with pytest.raises(IntegrityError, match=r"does not begin with the \.npy header"):
        map_npy(str(path))


def test_claimed_sizes_allocate_nothing(tmp_path):
    path = tmp_path / "a.npy"
    for shape in ((65536, 65536), (2**62,), (10**17, 10**17), (0, 2**60)):
        header = ArraySpec(np.dtype("<i8"), shape).header()
        path.write_bytes(header + b"\0" * 8)
        with pytest.raises(IntegrityError):
            map_npy(str(path))
    path.write_bytes(pickle.dumps([Canary()]))
    with pytest.raises(IntegrityError):
        map_npy(str(path))


def test_what_is_no_file_is_a_named_error(tmp_path):
    with pytest.raises(StorageError, match=r"none\.npy"):
        map_npy(str(tmp_path / "none.npy"))
    with pytest.raises(InputError, match="not a regular file"):
        map_npy(str(tmp_path))
