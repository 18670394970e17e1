"""The index is sound for verify exactly where it is for readers, and every defect has its finding."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import CODES, ITEM_BYTES, Plain, idx_bytes, raw_idx
from tokshard.checks.verify import index as examination
from tokshard.checks.verify.context import CountingRunner
from tokshard.checks.verify.index import examine_index
from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset.layout import IndexTable
from tokshard.errors import IntegrityError


def examine(path, content, bin_bytes, multimodal=None):
    Path(path).write_bytes(content)
    findings = ProductFindings("dataset", "x")
    facts = examine_index(str(path), bin_bytes, findings, CountingRunner(2), multimodal=multimodal)
    return facts, findings.findings


def is_readable(content, bin_bytes, *, multimodal):
    try:
        IndexTable.from_buffer(content, bin_bytes=bin_bytes, multimodal=multimodal, path="x")
    except IntegrityError:
        return False
    return True


@pytest.fixture
def small_pieces(monkeypatch):
    """Cut an index into many ranges, and these into many chunks."""
    monkeypatch.setattr(examination.layout, "CHUNK_ENTRIES", 3)
    monkeypatch.setattr(examination, "_RANGE_ENTRIES", 7)
    monkeypatch.setattr("tokshard.checks.verify.context._WORTH_THREADS_BYTES", 0)


DOCUMENTS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(documents=DOCUMENTS, multimodal=st.booleans(), dtype=st.sampled_from(["uint16", "int32"]))
def test_sound_indexes_have_no_findings_and_their_counts(
    tmp_path, small_pieces, documents, multimodal, dtype
):
    lengths = [length for document in documents for length in document]
    modes = [1] * len(lengths) if multimodal else None
    content = idx_bytes(CODES[dtype], lengths, [len(document) for document in documents], modes)
    size = sum(lengths) * ITEM_BYTES[CODES[dtype]]
    facts, findings = examine(tmp_path / "x.idx", content, size)
    assert findings == []
    assert facts.sound
    assert facts.multimodal == (multimodal and bool(lengths))
    assert facts.tokens == sum(lengths)
    assert facts.header.document_count == len(documents)
    assert facts.empty_documents == sum(not document for document in documents)
    assert facts.longest_sequence == max(lengths, default=0)


def test_every_change_that_a_reader_refuses_is_found_and_no_other(tmp_path, small_pieces):
    lengths = [3, 0, 5, 2, 2, 7, 1, 1, 0, 4]
    good = idx_bytes(8, lengths, [2, 0, 3, 1, 4])
    size = 2 * sum(lengths)
    generator = random.Random(7)
    for offset in range(len(good)):
        for mask in (1, 0x80, generator.randrange(1, 256)):
            content = bytearray(good)
            content[offset] ^= mask
            facts, findings = examine(tmp_path / "x.idx", bytes(content), size, multimodal=False)
            sound = is_readable(bytes(content), size, multimodal=False)
            assert (not findings) == sound, (offset, mask)
            assert (facts is not None and facts.sound) == sound


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    lengths=st.lists(st.integers(-2, 4), max_size=9),
    pointers=st.data(),
    boundaries=st.lists(st.integers(-1, 10), min_size=1, max_size=6),
    size=st.integers(0, 40),
)
def test_arbitrary_columns_are_sound_exactly_where_a_reader_takes_them(
    tmp_path, small_pieces, lengths, pointers, boundaries, size
):
    right = [2 * sum(lengths[:place]) for place in range(len(lengths))]
    places = [
        pointers.draw(st.sampled_from([pointer, pointer, pointer, pointer + 2, 2**63 - 1, -(2**63)]))
        for pointer in right
    ]
    content = raw_idx(8, lengths, places, boundaries)
    _, findings = examine(tmp_path / "x.idx", content, size, multimodal=False)
    assert (not findings) == is_readable(content, size, multimodal=False)


def test_one_wrong_pointer_is_told_with_both_its_neighbours_and_no_others(tmp_path, small_pieces):
    content = bytearray(idx_bytes(8, [2] * 50, [1] * 50))
    struct.pack_into("<q", content, 34 + 4 * 50 + 8 * 30, 5)
    _, (finding,) = examine(tmp_path / "x.idx", bytes(content), 200, multimodal=False)
    assert finding.code == "idx-pointer"
    assert finding.offset == 34 + 4 * 50 + 8 * 30
    assert "sequence 29 (2 tokens from byte 116) ends at byte 120, but the next one begins at 5" in (
        finding.message
    )
    assert "1 more" in finding.message


def test_counts_do_not_drive_memory(tmp_path):
    for sequences, boundaries in ((2**62, 1), (2**63, 2**63), (0, 2**64 - 1)):
        content = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, sequences, boundaries)
        facts, (finding,) = examine(tmp_path / "x.idx", content, 0)
        assert (facts, finding.code) == (None, "idx-size")


def test_floating_point_datasets_are_not_sound(tmp_path):
    from tokshard.checks.commands.verify import verify
    from tokshard.checks.verify.options import VerifyOptions

    Plain("float32", [[[1.0, 2.0]], [[3.0]]]).write(str(tmp_path / "x"))
    report = verify(VerifyOptions(path=tmp_path / "x", level="deep"))
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["token-dtype"]
