"""The index table: dtypes, headers, and validation held against the slow twin."""

import doctest
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import plain_datasets
from support.plain_datasets import datasets
from tokshard.dataset import builder, layout
from tokshard.dataset.layout import DType, IndexTable, read_header
from tokshard.errors import IntegrityError, UsageError


@pytest.mark.parametrize("module", [layout, builder])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(("name", "code"), plain_datasets.CODES.items())
def test_each_dtype_has_its_code_both_ways(name, code):
    kind = getattr(np, name)
    assert DType.code_from_dtype(name) == DType.code_from_dtype(np.dtype(name)) == code
    assert DType.code_from_dtype(kind) == DType[name].value == code
    assert DType.dtype_from_code(code) is kind
    assert DType.size(code) == DType.size(kind) == np.dtype(name).itemsize
    assert layout.DTYPES[code].name == name
    assert layout.DTYPES[code].itemsize == plain_datasets.ITEM_BYTES[code]


@pytest.mark.parametrize("name", ["uint32", "uint64", "float16", "bool", "complex64", "S3", ">i4", "object"])
def test_other_dtypes_are_refused(name):
    with pytest.raises(UsageError, match="dtype must be one of"):
        DType.code_from_dtype(name)
    with pytest.raises(UsageError, match="dtype must be one of"):
        DType.size(name)


@pytest.mark.parametrize("code", [0, 9, -1])
def test_other_codes_are_refused(code):
    for function in (DType.dtype_from_code, DType.size):
        with pytest.raises(ValueError, match=f"{code} is not a valid DType"):
            function(code)


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(None, "int32"), (0, "uint16"), (65499, "uint16"), (65500, "int32"), (65536, "int32"), (2**31, "int32")],
)
def test_optimal_dtype_is_that_of_megatron(vocab_size, name):
    assert DType.optimal_dtype(vocab_size) is getattr(np, name)


def test_a_known_index_byte_by_byte():
    """Two documents, of the sequences (3 and 1 tokens) and of none, in uint16, with modes."""
    index = bytes.fromhex(
        "4d4d49444944580000 0100000000000000 08 0200000000000000 0300000000000000"
        "03000000 01000000 0000000000000000 0600000000000000"
        "0000000000000000 0200000000000000 0200000000000000 07ff"
    )
    table = IndexTable.from_buffer(index, bin_bytes=8, multimodal=True, path="x.idx")
    assert table.sequence_lengths.tolist() == [3, 1]
    assert table.sequence_pointers.tolist() == [0, 6]
    assert table.document_indices.tolist() == [0, 2, 2]
    assert table.sequence_modes.tolist() == [7, -1]
    assert (table.dtype, table.sequence_count, table.document_count, table.token_count) == ("<u2", 2, 2, 4)
    assert [table.first_token(sequence) for sequence in range(3)] == [0, 3, 4]
    assert plain_datasets.idx_bytes(8, [3, 1], [2, 0], [7, -1]) == index
    header = read_header(index[:34])
    assert (header.dtype.name, header.sequence_count, header.document_count) == ("uint16", 2, 2)
    assert header.to_bytes() == index[:34]
    assert header.index_bytes(multimodal=True) == len(index) == header.index_bytes(multimodal=False) + 2


@given(datasets(), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_sound_index_gives_its_own_values(plain, kind):
    index = kind(plain.idx_bytes())
    bin_bytes = len(plain.bin_bytes())
    table = IndexTable.from_buffer(
        index, bin_bytes=bin_bytes, multimodal=plain.modes is not None, path="x.idx"
    )
    assert table.dtype.name == plain.dtype
    assert table.sequence_lengths.tolist() == [len(sequence) for sequence in plain.sequences]
    assert np.diff(table.document_indices).tolist() == [len(document) for document in plain.documents]
    assert (table.sequence_modes.tolist() if plain.modes is not None else None) == plain.modes
    assert table.token_count * table.dtype.itemsize == bin_bytes
    arrays = [table.sequence_lengths, table.sequence_pointers, table.document_indices]
    assert not any(array.flags.writeable for array in arrays)


def outcome(index, bin_bytes, *, multimodal):
    """The (field, offset) of the refusal, or None."""
    try:
        IndexTable.from_buffer(index, bin_bytes=bin_bytes, multimodal=multimodal, path="x.idx")
    except IntegrityError as error:
        return error.field, error.offset
    return None


@st.composite
def nearly_sound(draw):
    """An index with up to two fields overwritten, and the size of its .bin, mostly the right one."""
    plain = draw(datasets())
    index = bytearray(plain.idx_bytes())
    for _ in range(draw(st.integers(0, 2))):
        width = draw(st.sampled_from([1, 4, 8]))
        position = draw(st.integers(0, len(index) - width))
        small = st.integers(-3, 9)
        value = draw(st.one_of(small, st.integers(-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1)))
        index[position : position + width] = value.to_bytes(width, "little", signed=True)
    right = len(plain.bin_bytes())
    return bytes(index), draw(st.one_of(st.just(right), st.integers(0, right + 9))), plain.modes is not None


@settings(max_examples=600)
@given(nearly_sound(), st.sampled_from([1, 2, 3, 1 << 18]))
def test_the_first_defect_is_that_of_the_slow_twin(case, chunk_entries):
    index, bin_bytes, multimodal = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_ENTRIES", chunk_entries)
        found = outcome(index, bin_bytes, multimodal=multimodal)
    assert found == plain_datasets.first_defect(index, bin_bytes, multimodal=multimodal)


@given(st.binary(max_size=200), st.integers(0, 100), st.booleans())
def test_noise_is_refused(noise, bin_bytes, multimodal):
    assert outcome(noise, bin_bytes, multimodal=multimodal) is not None
    assert outcome(b"MMIDIDX\0\0" + noise, bin_bytes, multimodal=multimodal) == plain_datasets.first_defect(
        b"MMIDIDX\0\0" + noise, bin_bytes, multimodal=multimodal
    )


def test_a_defect_far_behind_is_found_in_its_chunk():
    lengths = [random.Random(i).randrange(4) for i in range(3000)]
    index = bytearray(plain_datasets.idx_bytes(4, lengths, [1] * 3000))
    total = 4 * sum(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_ENTRIES", 700)
        assert outcome(index, total, multimodal=False) is None
        for entry in (0, 699, 700, 701, 2099, 2100, 2999):
            for width, base in ((4, 34), (8, 34 + 4 * 3000), (8, 34 + 12 * 3000)):
                position = base + width * entry
                keep = index[position : position + width]
                index[position : position + width] = (-5).to_bytes(width, "little", signed=True)
                assert outcome(index, total, multimodal=False)[1] == position
                index[position : position + width] = keep


@pytest.mark.parametrize(("written", "opened", "word"), [(True, False, "pass"), (False, True, "omit")])
def test_the_wrong_kind_of_index_gets_the_right_hint(written, opened, word):
    index = plain_datasets.idx_bytes(8, [2, 3], [2], [0, 1] if written else None)
    with pytest.raises(IntegrityError) as caught:
        IndexTable.from_buffer(index, bin_bytes=10, multimodal=opened, path="x.idx")
    assert caught.value.hint.startswith(f"{word} --multimodal")
    assert "in Python the argument multimodal" in caught.value.hint
    assert caught.value.field == "size"


def test_messages_name_place_value_and_remedy():
    index = bytearray(plain_datasets.idx_bytes(8, [2, 3, 4], [2, 1]))
    struct.pack_into("<i", index, 38, -2)
    with pytest.raises(IntegrityError) as caught:
        IndexTable.from_buffer(index, bin_bytes=18, multimodal=False, path="data/web.idx")
    assert (
        str(caught.value) == "data/web.idx at byte 38: the length of sequence 1 must not be negative, got -2"
    )
    assert (caught.value.path, caught.value.field, caught.value.offset) == (
        "data/web.idx",
        "sequence_lengths",
        38,
    )
    with pytest.raises(IntegrityError) as caught:
        IndexTable.from_buffer(
            plain_datasets.idx_bytes(8, [2, 3, 4], [2, 1]), bin_bytes=9, multimodal=False, path="data/web.idx"
        )
    assert str(caught.value).endswith("sequence 1 (3 tokens) ends at byte 10 of the .bin, which has 9")
    assert "truncated" in caught.value.hint
