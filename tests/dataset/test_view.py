"""Views: pieces of the sequences of another dataset, read as a dataset; and what is no view."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import bad_datasets, bad_views
from support.blends import write_dataset
from support.file_changes import edit_manifest
from support.views import view_of
from tokshard import InspectOptions, VerifyOptions, inspect, merge, verify
from tokshard.dataset.fingerprint import FingerprintedIndex
from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.merge.options import MergeOptions
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer
from tokshard.dataset.view import data_prefix, read_view, view_path, viewed_prefix
from tokshard.errors import InputError, IntegrityError, TokshardError

LENGTHS = [5, 0, 9, 1, 12]


def write(directory, pieces, *, lengths=LENGTHS, name="view"):
    """Write a dataset and a view of some of its pieces: (first token in the .bin, tokens)."""
    return view_of(write_dataset(str(directory / "data"), lengths), directory / "views" / name, pieces)


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(
        st.integers(0, 26).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, 27 - at))), max_size=12
    ),
    block=st.integers(1, 9),
    mmap=st.booleans(),
)
def test_a_view_reads_the_tokens_of_its_pieces(tmp_path_factory, pieces, block, mmap):
    prefix = write(tmp_path_factory.mktemp("view"), pieces)
    dataset = IndexedDataset(prefix, mmap=mmap)
    expected = [list(range(first, first + count)) for first, count in pieces]
    assert [dataset[number].tolist() for number in range(len(dataset))] == expected
    assert [tokens.tolist() for tokens in dataset[:]] == expected
    assert [dataset.document_tokens(number).tolist() for number in range(len(dataset))] == expected
    assert dataset.document_count == len(pieces)
    blocks = [tokens.tolist() for tokens in dataset.token_blocks(2 * block)]
    assert list(chain(*blocks)) == list(chain(*expected))
    assert all(len(tokens) == block for tokens in blocks[:-1])
    assert dataset.index.token_count == sum(count for _, count in pieces)
    assert dataset.index.is_view
    opened = FingerprintedIndex.open(prefix)
    assert opened.fingerprint.bin_bytes == 2 * sum(LENGTHS)
    assert opened.tokenizer == read_dataset_tokenizer(prefix) == DatasetTokenizer()


def test_a_view_is_found_by_its_record_and_leads_to_the_dataset(tmp_path):
    prefix = write(tmp_path, [(3, 4), (0, 2)])
    view = read_view(prefix)
    assert (view.sequences, view.tokens) == (2, 6)
    assert data_prefix(prefix) == str(tmp_path / "data")
    assert data_prefix(str(tmp_path / "data")) == str(tmp_path / "data")
    assert read_view(str(tmp_path / "data")) is None
    assert read_view("s3://bucket/data") is None
    # Where the data has moved, the link leads to it; a copy without the link has what is recorded.
    Path(f"{prefix}.bin").unlink()
    os.symlink("../moved.bin", f"{prefix}.bin")
    assert os.path.normpath(viewed_prefix(prefix, view)) == str(tmp_path / "moved")
    Path(f"{prefix}.bin").unlink()
    Path(f"{prefix}.bin").write_bytes((tmp_path / "data.bin").read_bytes())
    assert viewed_prefix(prefix, view) == str(tmp_path / "data")
    assert IndexedDataset(prefix)[0].tolist() == [3, 4, 5, 6]


def test_without_its_record_a_view_is_no_dataset(tmp_path):
    prefix = write(tmp_path, [(3, 4), (0, 2)])
    os.unlink(view_path(prefix))
    with pytest.raises(IntegrityError, match="the pointer of sequence 0 must be 0"):
        IndexedDataset(prefix)


def damage_idx(prefix, offset, value):
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[offset : offset + len(value)] = value
    Path(f"{prefix}.idx").write_bytes(content)


def number(value, size=8):
    return int(value).to_bytes(size, "little", signed=True)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (34, number(0, 4), "sequence 0 of a view must have at least 1 token, got 0"),
        (38, number(-3, 4), "sequence 1 of a view must have at least 1 token, got -3"),
        (42, number(-2), "sequence 0 of a view .* must be whole tokens of the .bin"),
        (42, number(7), "sequence 0 of a view .* from byte 7"),
        (50, number(52), "sequence 1 of a view .* which has 54 bytes"),
        (50, number(2**63 - 2), "sequence 1 of a view .* which has 54 bytes"),
        (66, number(2), "document 0 of a view must have 1 sequence, got 2"),
    ],
)
def test_pieces_must_be_in_the_file_and_documents_of_their_own(tmp_path, offset, value, message):
    prefix = write(tmp_path, [(3, 4), (0, 2)])
    damage_idx(prefix, offset, value)
    for read in (IndexedDataset, FingerprintedIndex.open):
        with pytest.raises(IntegrityError, match=message):
            read(prefix)


def change_record(prefix, **changes):
    path = Path(view_path(prefix))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_record_that_was_changed_or_belongs_to_other_files_is_refused(tmp_path):
    prefix = write(tmp_path, [(3, 4), (0, 2)])
    change_record(prefix, tokens=7)
    with pytest.raises(IntegrityError, match="seal contradicts the other fields"):
        IndexedDataset(prefix)
    prefix = write(tmp_path, [(3, 4), (0, 2)])
    damage_idx(prefix, 42, number(8))
    assert IndexedDataset(prefix)[0].tolist() == [4, 5, 6, 7]
    with pytest.raises(IntegrityError, match="contradicts the digest in the record of the view"):
        FingerprintedIndex.open(prefix)
    write_dataset(str(tmp_path / "data"), [*LENGTHS, 1])
    with pytest.raises(IntegrityError, match=r"view.bin must have 54 bytes by .*view.json, got 56"):
        IndexedDataset(prefix)


def test_a_missing_dataset_is_reported_as_missing(tmp_path):
    prefix = write(tmp_path, [(3, 4)])
    (tmp_path / "data.bin").unlink()
    with pytest.raises(TokshardError, match=r"dataset not found: .*view \(.*view.bin missing\)"):
        IndexedDataset(prefix)


def test_a_view_has_the_tokenizer_of_its_dataset_and_is_not_merged(tmp_path):
    data = bad_datasets.sound(tmp_path)
    prefix = view_of(data, tmp_path / "view", [(2, 3)])
    known = read_dataset_tokenizer(data)
    assert known.identity is not None
    assert read_dataset_tokenizer(prefix) == FingerprintedIndex.open(prefix).tokenizer == known
    with pytest.raises(InputError, match=r"cannot merge .*view: it is a view of .*data/web"):
        merge(MergeOptions((prefix, data), str(tmp_path / "all")))


def test_a_dataset_that_is_adopted_gives_its_tokenizer_to_its_views(tmp_path):
    data = bad_datasets.foreign(tmp_path)
    prefix = view_of(data, tmp_path / "view", [(2, 3)])
    assert read_dataset_tokenizer(prefix).identity is None
    with pytest.raises(InputError, match=r"cannot adopt .*view: it is a view of .*data/web") as refused:
        verify(VerifyOptions(prefix, adopt=True))
    assert refused.value.hint == f"pass the dataset itself: {data}"
    verify(VerifyOptions(data, adopt=True, tokenizer=bad_datasets.TOKENIZER))
    known = read_dataset_tokenizer(data)
    assert known.identity is not None
    assert read_dataset_tokenizer(prefix) == FingerprintedIndex.open(prefix).tokenizer == known
    # A manifest of other files says nothing.
    edit_manifest(data, lambda value: value["files"]["idx"].update(xxh3_128="0" * 32))
    assert read_dataset_tokenizer(prefix).identity is None


def test_inspect_names_the_dataset_of_a_view(tmp_path):
    prefix = bad_views.sound_view(tmp_path)
    report = inspect(InspectOptions(prefix))
    assert (report.tokens, report.documents, report.viewed) == (9, 2, str(tmp_path / "data/web"))
    assert report.view.dataset.manifest_fingerprint is not None
