"""The streamed index: pieces of any size make the bytes of the slow twin, and never a wrong index."""

import io
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import plain_datasets
from tokshard.dataset import layout
from tokshard.dataset.index_file import write_index
from tokshard.errors import IntegrityError, UsageError


def pieces(values, cuts, dtype):
    """A callable that gives the values in pieces between the cuts, anew at each call."""
    array = np.array(values, dtype=dtype)
    bounds = [0, *sorted(min(cut, len(array)) for cut in cuts), len(array)]
    parts = [array[a:b] for a, b in pairwise(bounds)]
    return lambda: iter(parts)


def written(**arguments):
    file = io.BytesIO()
    tokens = write_index(file, **arguments)
    return file.getvalue(), tokens


cuts = st.lists(st.integers(0, 40), max_size=6)


@given(
    documents=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=12),
    name=st.sampled_from(sorted(plain_datasets.CODES)),
    cuts=st.tuples(cuts, cuts, cuts),
    kinds=st.tuples(st.sampled_from(["i4", "u4", "i8"]), st.sampled_from(["i4", "u4", "u1", "i8"])),
    with_modes=st.booleans(),
    chunk_entries=st.sampled_from([1, 2, 3, 1 << 18]),
)
def test_boundaries_of_pieces_never_change_bytes(documents, name, cuts, kinds, with_modes, chunk_entries):
    lengths = [length for document in documents for length in document]
    modes = [length % 256 - 128 for length in lengths] if with_modes else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_ENTRIES", chunk_entries)
        index, tokens = written(
            dtype=name,
            sequence_count=len(lengths),
            document_count=len(documents),
            lengths=pieces(lengths, cuts[0], kinds[0]),
            sequences_per_document=pieces([len(document) for document in documents], cuts[1], kinds[1]),
            modes=pieces(modes, cuts[2], "i1") if with_modes else None,
        )
    assert index == plain_datasets.idx_bytes(
        plain_datasets.CODES[name], lengths, [len(document) for document in documents], modes
    )
    assert tokens == sum(lengths)


SOUND = {
    "dtype": "uint16",
    "sequence_count": 4,
    "document_count": 3,
    "lengths": pieces([1, 2, 3, 4], [1], "i4"),
    "sequences_per_document": pieces([2, 0, 2], [2], "i4"),
    "modes": pieces([0, 1, 2, 3], [3], "i1"),
}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sequence_count": 3}, "lengths must have 3 entries, got 4"),
        ({"sequence_count": 5}, "lengths must have 5 entries, got 4"),
        ({"document_count": 2}, "sequences_per_document must have 2 entries, got 3"),
        ({"document_count": 4}, "sequences_per_document must have 4 entries, got 3"),
        ({"lengths": pieces([1, -2, 3, 4], [], "i4")}, "lengths[1] must be from 0 to 2147483647, got -2"),
        (
            {"lengths": pieces([1, 2, 3, 2**31], [2], "u4")},
            "lengths[3] must be from 0 to 2147483647, got 2147483648",
        ),
        (
            {"sequences_per_document": pieces([2, 0, 1], [], "i4")},
            "entries of sequences_per_document must sum to 4",
        ),
        (
            {"sequences_per_document": pieces([2, 1, 2], [], "i4")},
            "entries of sequences_per_document must sum to 4",
        ),
        (
            {"sequences_per_document": pieces([3, -1, 2], [], "i4")},
            "sequences_per_document[1] must be from 0 to 4, got -1",
        ),
        (
            {"sequences_per_document": pieces([5, 0, 0], [], "u4")},
            "sequences_per_document[0] must be from 0 to 4, got 5",
        ),
        ({"modes": pieces([0, 1, 2], [], "i1")}, "modes must have 4 entries, got 3"),
        ({"modes": pieces([0, 1, 2, 200], [], "i4")}, "modes[3] must be from -128 to 127, got 200"),
    ],
)
def test_contradictions_are_refused(change, match):
    assert written(**SOUND)[1] == 10
    with pytest.raises(IntegrityError, match=re.escape(match)):
        written(**{**SOUND, **change})


@pytest.mark.parametrize("second", [[1, 2, 3, 5], [1, 2, 3, 3], [2**31 - 1] * 4])
def test_columns_that_change_between_passes_are_refused(second):
    answers = [np.array([1, 2, 3, 4], "i4"), np.array(second, "i4")]
    with pytest.raises(IntegrityError, match="must sum to 10"):
        written(**{**SOUND, "lengths": lambda: [answers.pop(0)]})


class Nowhere:
    def write(self, buffer):
        pass


def test_pointers_do_not_overflow():
    """Sequences of 2**31 - 1 tokens of 8 bytes, enough of them to end behind 2**63: one piece many times."""
    longest = np.full(1 << 18, 2**31 - 1, "i4")
    count = 2**29 + 2**18
    with pytest.raises(IntegrityError, match="exceed the range of a pointer"):
        write_index(
            Nowhere(),
            dtype="int64",
            sequence_count=count,
            document_count=1,
            lengths=lambda: (longest for _ in range(count >> 18)),
            sequences_per_document=lambda: [np.array([count])],
        )


@pytest.mark.parametrize(
    "piece", [np.array([1.0, 2.0]), np.array([True, False]), np.array([[1, 2]]), np.array(["1", "2"])]
)
def test_pieces_of_other_kinds_are_refused(piece):
    with pytest.raises(UsageError, match="lengths must be 1-dimensional integer arrays"):
        written(**{**SOUND, "sequence_count": 2, "lengths": lambda: [piece]})


def test_dtypes_without_a_code_are_refused():
    with pytest.raises(UsageError, match="uint32"):
        written(**{**SOUND, "dtype": "uint32"})
