"""P10: every small change of a small index is refused, or is one that only a digest can see."""

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest

from faults.controls import assert_only_reader
from support import plain_datasets
from tokshard.dataset.layout import IndexTable
from tokshard.errors import IntegrityError


@dataclass(frozen=True)
class Sample:
    code: int
    lengths: tuple[int, ...]
    sequences_per_document: tuple[int, ...]
    modes: tuple[int, ...] | None = None

    @property
    def index(self):
        return plain_datasets.idx_bytes(self.code, self.lengths, self.sequences_per_document, self.modes)

    @property
    def bin_bytes(self):
        return sum(self.lengths) * plain_datasets.ITEM_BYTES[self.code]


SAMPLES = {
    "uint16": Sample(8, (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7), (1,) * 14),
    "int32 documents of several or no sequences": Sample(
        4, (7, 0, 2, 2, 8, 0, 1, 4, 260), (0, 3, 0, 2, 3, 1)
    ),
    "float32 multimodal": Sample(7, (5, 3, 300, 1, 2, 2, 4), (1, 2, 3, 1), (0, 1, -1, 127, -128, 3, 0)),
    "uint8 without a document": Sample(1, (), ()),
    "int64 with one document": Sample(5, (17,), (1,)),
    "int8 with large pointers": Sample(2, (2**31 - 1,) * 10, (2,) * 5),
}


@dataclass(frozen=True)
class Reading:
    """What a reader makes of the files: of each sequence the bytes, or its place in a ``.bin`` too large."""

    dtype: str
    sequences: tuple
    documents: tuple[int, ...]
    modes: tuple[int, ...] | None


def checked_reading(sample, index):
    table = IndexTable.from_buffer(
        index, bin_bytes=sample.bin_bytes, multimodal=sample.modes is not None, path="x.idx"
    )
    extents = zip(table.sequence_pointers.tolist(), table.sequence_lengths.tolist(), strict=True)
    modes = table.sequence_modes
    return Reading(
        dtype=table.dtype.str,
        sequences=tuple((pointer, length * table.dtype.itemsize) for pointer, length in extents),
        documents=tuple(table.document_indices.tolist()),
        modes=None if modes is None else tuple(modes.tolist()),
    )


def trusting_reading(sample, index):
    tokens = bytes(i * 37 % 251 for i in range(sample.bin_bytes))
    dtype, sequences, documents = assert_only_reader.read(index, tokens)
    return Reading(dtype, tuple(sequences), tuple(documents), None)


def only_a_digest_sees(old, new):
    """Tell whether the difference is one that the documentation of from_buffer excepts."""
    if old.sequences != new.sequences:
        return False
    moved = [i for i, (a, b) in enumerate(zip(old.documents, new.documents, strict=False)) if a != b]
    differences = [
        old.dtype != new.dtype,  # the places in bytes are equal, so the width is too, or nothing is there
        len(old.documents) == len(new.documents)
        and len(moved) == 1
        and moved[0] not in {0, len(old.documents) - 1}
        and list(new.documents) == sorted(new.documents),
        old.modes != new.modes,
    ]
    unchanged = [old.dtype == new.dtype, old.documents == new.documents, old.modes == new.modes]
    return sum(differences) == 1 and sum(unchanged) == 2


def check_refusal(error, largest_offset):
    """Every refusal says where, and what to do."""
    assert error.path == "x.idx"
    assert str(error).startswith("x.idx")
    assert error.field is not None
    assert error.hint
    assert 0 <= error.offset <= largest_offset


def judge(read, sample, mutants, refusals):
    """Read all mutants and count: refused, same, digest, WRONG (other data), CRASHED (another exception)."""
    original = read(sample, sample.index)
    counts = Counter()
    for mutant in mutants:
        try:
            reading = read(sample, mutant)
        except refusals as error:
            counts["refused"] += 1
            if isinstance(error, IntegrityError):
                check_refusal(error, largest_offset=max(len(mutant), len(sample.index)))
        except Exception:
            counts["CRASHED"] += 1
        else:
            if reading == original:
                counts["same"] += 1
            else:
                counts["digest" if only_a_digest_sees(original, reading) else "WRONG"] += 1
    return counts


def single_byte_mutants(index):
    """Change each byte to each other value. It is one buffer, changed in place: compare, do not keep."""
    buffer = bytearray(index)
    for position, original in enumerate(index):
        for value in range(256):
            if value != original:
                buffer[position] = value
                yield buffer
        buffer[position] = original


def longer_and_shorter(index):
    yield from (index[:size] for size in range(len(index)))
    yield from (index + bytes([value]) for value in range(256))
    yield from (index + bytes(count) for count in range(2, 300))
    yield from (index + index[-count:] for count in range(1, len(index) + 1))
    yield from (index[count:] for count in range(1, len(index)))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_single_byte_mutant_is_refused_or_known(name, record_property):
    sample = SAMPLES[name]
    counts = judge(checked_reading, sample, single_byte_mutants(sample.index), IntegrityError)
    record_property("mutants", counts.total())
    print(f"{name}: {counts.total()} single-byte mutants: {dict(counts)}")
    assert counts.total() == 255 * len(sample.index)
    assert counts["CRASHED"] == counts["WRONG"] == counts["same"] == 0
    boundaries = [0]
    for count in sample.sequences_per_document:
        boundaries.append(boundaries[-1] + count)
    inner = zip(boundaries, boundaries[1:], boundaries[2:], strict=False)
    movable = sum(following - previous for previous, _, following in inner)
    # Each width has two codes; without tokens the width says nothing and all eight are sound.
    codes = 1 if sample.lengths else 7
    assert counts["digest"] == movable + codes + 255 * len(sample.modes or ())


@pytest.mark.parametrize("name", SAMPLES)
def test_every_truncated_or_extended_index_is_refused(name):
    sample = SAMPLES[name]
    counts = judge(checked_reading, sample, longer_and_shorter(sample.index), IntegrityError)
    print(f"{name}: {counts.total()} truncated or extended: {dict(counts)}")
    assert counts == {"refused": counts.total()}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_other_size_of_the_bin_is_refused(name):
    sample = SAMPLES[name]
    right = sample.bin_bytes
    sizes = {*range(300), *range(max(0, right - 300), right + 300), 2**31, 2**32, 2**63 - 1, 2**63, 2**64}
    for bin_bytes in sizes - {right}:
        with pytest.raises(IntegrityError, match=r"\.bin"):
            IndexTable.from_buffer(
                sample.index, bin_bytes=bin_bytes, multimodal=sample.modes is not None, path="x.idx"
            )


def test_the_samples_make_a_quarter_of_a_million_mutants():
    assert sum(255 * len(sample.index) for sample in SAMPLES.values()) >= 250_000


@pytest.mark.parametrize("refusals", [AssertionError, (AssertionError, Exception)], ids=["strict", "lenient"])
def test_the_suite_catches_a_reader_with_asserts_only(refusals):
    """The control: even when every exception is forgiven, the suite finds wrong data in a trusting reader."""
    sample = SAMPLES["uint16"]
    # Some of the changes of each byte: this reader copies the tokens for each of them.
    some = itertools.islice(single_byte_mutants(sample.index), 0, None, 7)
    counts = judge(trusting_reading, sample, some, refusals)
    print(f"assert-only control: {dict(counts)}")
    assert counts["WRONG"] > 1000
    if refusals is AssertionError:
        assert counts["CRASHED"] > 1000
    assert judge(trusting_reading, sample, [sample.index + b"x"], refusals)["same"] == 1
