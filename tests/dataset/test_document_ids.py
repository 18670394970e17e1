"""Recorded ids: read and found as by a list of strings, for any ids and any limit of memory."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.dataset import id_staging
from tokshard.dataset.document_ids import DocumentIds, id_hash
from tokshard.dataset.id_staging import ConcatenatedIds, HashFile, stage_ids
from tokshard.errors import IntegrityError

IDS = st.one_of(
    st.sampled_from(["", "a", "b", "\0", "é" * 2048, "x" * 4096]),
    st.integers(0, 99).map(str),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def write(directory, ids):
    """Stage ids as a run does; return them opened."""
    directory = Path(directory)
    encoded = [own.encode() for own in ids]
    sidecars = directory / "web.tokshard"
    sidecars.mkdir()
    (directory / "hashes").write_bytes(struct.pack(f"<{len(ids)}Q", *map(id_hash, encoded)))
    hashes = HashFile(str(directory / "hashes"), len(ids))
    lengths = np.array([len(own) for own in encoded], np.uint32)
    publish(directory, sidecars, [b"".join(encoded)], [lengths[:3], lengths[3:]], hashes)
    return DocumentIds(str(directory / "web"), len(ids))


def publish(directory, sidecars, *staged):
    stage_ids(str(directory), 0, *staged)
    for name in ("ids.bin", "ids-index.bin"):
        os.replace(directory / f"0.{name}", sidecars / name)


def check(found, ids):
    """Compare with the slow twin: a list of strings."""
    assert len(found) == len(ids)
    assert found.slice(0, len(ids)) == ids == [found[document] for document in range(len(ids))]
    middle = len(ids) // 2
    assert found.slice(middle, len(ids)) == ids[middle:]
    for own in {*ids, "nowhere", "\ud800"}:
        assert found.find(own).tolist() == [place for place, other in enumerate(ids) if other == own]
    table = found.table.tolist()
    assert table == sorted([id_hash(own.encode()), place] for place, own in enumerate(ids))
    found.check_ends()


@given(
    ids=st.lists(IDS, max_size=40),
    limit=st.sampled_from([1, 2, 5, 1 << 22]),
    bucket_bits=st.sampled_from([1, 3, 7]),
)
def test_ids_are_those_of_a_list_of_strings(tmp_path_factory, ids, limit, bucket_bits):
    with pytest.MonkeyPatch.context() as patch:
        # The table is sorted in many ranges, as that of billions of documents.
        patch.setattr(id_staging, "_RANGE_DOCUMENTS", limit)
        patch.setattr(id_staging, "_MOST_RANGES", 1 << 60)
        patch.setattr(id_staging, "_BUCKET_BITS", bucket_bits)
        first = write(tmp_path_factory.mktemp("ids"), ids)
        check(first, ids)
        second = write(tmp_path_factory.mktemp("ids"), ids[::-1])
        merged = tmp_path_factory.mktemp("merged")
        (merged / "web.tokshard").mkdir()
        publish(
            merged,
            merged / "web.tokshard",
            (piece for each in (first, second) for piece, _ in each.pieces()),
            (lengths for each in (first, second) for _, lengths in each.pieces()),
            ConcatenatedIds([first, second]),
        )
        check(DocumentIds(str(merged / "web"), 2 * len(ids)), ids + ids[::-1])


def test_a_document_that_does_not_exist_is_an_index_error(tmp_path):
    found = write(tmp_path, ["a", "b"])
    for document in (-1, 2):
        with pytest.raises(IndexError):
            found[document]
    with pytest.raises(IndexError):
        found.slice(1, 3)


@pytest.mark.parametrize("name", ["ids.bin", "ids-index.bin"])
def test_every_damaged_byte_is_an_error_or_another_answer_but_no_crash(tmp_path, name):
    ids = ["a", "é", "", "é", "long id"]
    write(tmp_path, ids)
    path = tmp_path / "web.tokshard" / name
    content = path.read_bytes()
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x80]) + content[offset + 1 :])
        for read in (
            lambda found: found.slice(0, len(ids)),
            lambda found: [found[document] for document in range(len(ids))],
            lambda found: [found.find(own) for own in ids],
        ):
            with suppress(IntegrityError):
                read(DocumentIds(str(tmp_path / "web"), len(ids)))
    path.write_bytes(content[:-1])
    with pytest.raises(IntegrityError):
        DocumentIds(str(tmp_path / "web"), len(ids)).slice(0, len(ids))
