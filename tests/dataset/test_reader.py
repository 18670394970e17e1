"""Reading datasets: values held against plain lists, and nothing foreign at any edge."""

import gc
import operator
import os
import pickle
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import plain_datasets
from support.file_faults import open_descriptors
from support.interleaving import interleaved
from support.plain_datasets import Plain, datasets
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError, UsageError

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
both_ways = pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "file"])


def tokens_of(item, plain):
    """The tokens of an item as a list, after a look at its dtype."""
    array = item if plain.modes is None else item[0]
    assert array.dtype.name == plain.dtype
    return array.tolist()


@both_ways
@in_one_folder
@given(plain=datasets())
def test_every_sequence_and_document_is_what_was_written(tmp_path, mmap, plain):
    plain.write(tmp_path / "set")
    dataset = IndexedDataset(tmp_path / "set", plain.modes is not None, mmap)
    sequences = plain.sequences
    assert len(dataset) == len(sequences)
    assert [tokens_of(item, plain) for item in dataset] == sequences
    assert [tokens_of(dataset[np.int64(i)], plain) for i in range(-len(sequences), 0)] == sequences
    if plain.modes is not None:
        assert [item[1] for item in dataset] == plain.modes == dataset.sequence_modes.tolist()
    assert dataset.document_count == len(plain.documents)
    for i, document in enumerate(plain.documents):
        joined = [token for sequence in document for token in sequence]
        assert dataset.document_tokens(i).tolist() == joined
        assert dataset.document_tokens(i - len(plain.documents)).tolist() == joined
    for block_bytes in (1, 16, 1 << 22):
        joined = b"".join(block.tobytes() for block in dataset.token_blocks(block_bytes))
        assert joined == plain.bin_bytes()
    assert dataset.sequence_lengths.tolist() == [len(sequence) for sequence in sequences]
    assert np.diff(dataset.document_indices).tolist() == [len(document) for document in plain.documents]
    assert dataset.get_document_indices() is dataset.document_indices


@both_ways
@pytest.mark.parametrize("same_size", [True, False])
def test_a_dataset_that_is_replaced_while_it_is_opened_is_the_old_one_or_the_new_one(
    tmp_path, mmap, same_size
):
    old = Plain("uint16", [[[1, 2, 3]], [[4]]])
    new = Plain("uint16", [[[9]], [[8, 7, 6]] if same_size else [[8, 7]]])
    new.write(tmp_path / "new")

    def publish():
        (tmp_path / "set.idx").unlink()
        for suffix in (".bin", ".idx"):
            shutil.copy(tmp_path / f"new{suffix}", tmp_path / "copy")
            (tmp_path / "copy").rename(tmp_path / f"set{suffix}")

    def read():
        dataset = IndexedDataset(tmp_path / "set", mmap=mmap)
        return [sequence.tolist() for sequence in dataset]

    found = [
        *interleaved(
            read,
            publish,
            inside=("dataset/reader.py", "dataset/source.py"),
            prepare=lambda: old.write(tmp_path / "set"),
        )
    ]
    assert len(found) > 30
    assert all(sequences in (old.sequences, new.sequences) for sequences in found)
    assert old.sequences in found
    assert new.sequences in found


@both_ways
@in_one_folder
@given(plain=datasets(), data=st.data())
def test_slices_are_those_of_a_list(tmp_path, mmap, plain, data):
    plain.write(tmp_path / "set")
    dataset = IndexedDataset(tmp_path / "set", plain.modes is not None, mmap)
    side = st.one_of(st.none(), st.integers(-25, 25))
    wanted = slice(data.draw(side), data.draw(side))
    found = dataset[wanted]
    if plain.modes is not None:
        found, modes = found
        assert modes.tolist() == plain.modes[wanted]
    assert isinstance(found, list)
    assert all(array.dtype.name == plain.dtype for array in found)
    assert [array.tolist() for array in found] == plain.sequences[wanted]


@both_ways
@in_one_folder
@given(plain=datasets(), offset=st.integers(-3, 8), length=st.one_of(st.none(), st.integers(-3, 8)))
def test_parts_are_exact_or_refused(tmp_path, mmap, plain, offset, length):
    plain.write(tmp_path / "set")
    dataset = IndexedDataset(tmp_path / "set", plain.modes is not None, mmap)
    for i, sequence in enumerate(plain.sequences):
        end = len(sequence) if length is None else offset + length
        if 0 <= offset <= end <= len(sequence):
            assert tokens_of(dataset.get(i, offset, length), plain) == sequence[offset:end]
        else:
            with pytest.raises(IndexError, match=f"exceed sequence {i}, which has {len(sequence)} tokens"):
                dataset.get(i, offset=offset, length=length)


@pytest.fixture
def three(tmp_path):
    """Three sequences in two documents."""
    plain = Plain("uint16", [[[5, 6], [7]], [[8, 9, 10]]])
    plain.write(tmp_path / "three")
    return str(tmp_path / "three")


@both_ways
def test_positions_outside_are_index_errors(three, mmap):
    dataset = IndexedDataset(three, mmap=mmap)
    for position in (3, -4, 2**63, np.int64(-4)):
        with pytest.raises(IndexError, match=r"sequence -?[0-9]+ not found \(the dataset has 3\)"):
            dataset[position]
        with pytest.raises(IndexError, match=r"sequence -?[0-9]+ not found \(the dataset has 3\)"):
            dataset.get(position)
    for position in (2, -3):
        with pytest.raises(IndexError, match=r"document -?[0-9]+ not found"):
            dataset.document_tokens(position)


def test_other_indices_are_type_errors_and_steps_value_errors(three):
    dataset = IndexedDataset(three)
    for index in (1.0, "1", None, [0], (0, 1)):
        with pytest.raises(TypeError):
            dataset[index]
    for step in (2, -1):
        with pytest.raises(UsageError, match=f"must be 1, got {step}") as caught:
            dataset[::step]
        assert isinstance(caught.value, ValueError)
    assert [array.tolist() for array in dataset[0:3:1]] == [[5, 6], [7], [8, 9, 10]]


@both_ways
@pytest.mark.parametrize("documents", [[], [[]], [[], []], [[[]]], [[[], []], []]])
def test_datasets_without_tokens_open(tmp_path, mmap, documents):
    Plain("int32", documents).write(tmp_path / "none")
    dataset = IndexedDataset(tmp_path / "none", mmap=mmap)
    assert [array.tolist() for array in dataset] == [[] for document in documents for _ in document]
    assert dataset[:] == [] or all(array.size == 0 for array in dataset[:])
    assert [dataset.document_tokens(i).size for i in range(len(documents))] == [0] * len(documents)
    assert list(dataset.token_blocks()) == []


def test_mapped_arrays_are_read_only_and_outlive_the_dataset(three):
    dataset = IndexedDataset(three)
    arrays = [
        *dataset[:],
        dataset[1],
        dataset.get(2, 1),
        dataset.document_tokens(0),
        dataset.sequence_lengths,
    ]
    expected = [array.copy() for array in arrays]
    assert not any(array.flags.writeable for array in arrays)
    del dataset
    gc.collect()
    for array, value in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, value)


@both_ways
def test_descriptors_and_maps_go_with_the_dataset(three, mmap):
    before = open_descriptors()
    for _ in range(20):
        IndexedDataset(three, mmap=mmap)[0]
    gc.collect()
    assert open_descriptors() <= before


@both_ways
def test_it_crosses_processes_as_plain_values_and_is_checked_again(three, mmap):
    dataset = IndexedDataset(three, mmap=mmap)
    assert dataset.__reduce__() == (IndexedDataset, (three, False, mmap))
    program = (
        "import pickle, sys; dataset = pickle.load(sys.stdin.buffer); "
        "print(dataset.mmap, dataset.multimodal, [array.tolist() for array in dataset])"
    )
    message = pickle.dumps(dataset)
    child = subprocess.run([sys.executable, "-c", program], input=message, capture_output=True, check=True)
    assert child.stdout.decode().strip() == f"{mmap} False [[5, 6], [7], [8, 9, 10]]"
    os.truncate(f"{three}.bin", 11)
    with pytest.raises(IntegrityError, match="sequence 2"):
        pickle.loads(message)


def test_a_file_cut_short_while_open_is_an_error_without_mmap(three):
    dataset = IndexedDataset(three, mmap=False)
    os.truncate(f"{three}.bin", 8)
    assert dataset[0].tolist() == [5, 6]
    with pytest.raises(IntegrityError, match=r"was truncated to 8 bytes \(it had 12 when opened\)") as caught:
        dataset[2]
    assert (caught.value.path, caught.value.offset) == (f"{three}.bin", 8)


@both_ways
@pytest.mark.parametrize("change", [-1, -2, 1, 2, -12])
def test_a_bin_of_another_size_does_not_open(three, mmap, change):
    os.truncate(f"{three}.bin", 12 + change)
    with pytest.raises(IntegrityError) as caught:
        IndexedDataset(three, mmap=mmap)
    assert caught.value.path == f"{three}.idx"
    assert caught.value.hint


@both_ways
def test_tokens_behind_four_gigabytes(tmp_path, mmap):
    """A sparse file: offsets must be 64 bits wide in every step."""
    lengths = [2**30 - 1, 2, 2**30, 3]
    (tmp_path / "far.idx").write_bytes(plain_datasets.idx_bytes(8, lengths, [2, 2]))
    with open(tmp_path / "far.bin", "wb") as file:
        file.seek(2 * (2**30 - 1))
        file.write(np.array([11, 12], "<u2").tobytes())
        file.seek(2 * (2**31 + 1))
        file.write(np.array([13, 14, 15], "<u2").tobytes())
    dataset = IndexedDataset(tmp_path / "far", mmap=mmap)
    assert dataset[1].tolist() == [11, 12]
    assert dataset[3].tolist() == dataset.get(3).tolist() == [13, 14, 15]
    assert dataset.get(2, offset=2**30 - 1).tolist() == [0]
    assert dataset.index.token_count == sum(lengths)


def test_existence_and_missing_files(three, tmp_path):
    assert IndexedDataset.exists(three)
    assert not IndexedDataset.exists(tmp_path / "nothing")
    with pytest.raises(MissingFileError, match=r"nothing\.idx and .*nothing\.bin missing") as caught:
        IndexedDataset(tmp_path / "nothing")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 3
    with pytest.raises(MissingFileError) as caught:
        IndexedDataset(f"{three}.bin")
    assert caught.value.hint == f"pass the path prefix: {three}"
    os.unlink(f"{three}.bin")
    assert not IndexedDataset.exists(three)
    with pytest.raises(MissingFileError, match=r"three\.bin missing") as caught:
        IndexedDataset(three)
    assert caught.value.filename == f"{three}.bin"
    assert "copy both files" in caught.value.hint


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_directories_and_pipes_are_not_datasets(three, suffix):
    os.unlink(three + suffix)
    os.mkdir(three + suffix)
    with pytest.raises(InputError, match="not a regular file"):
        IndexedDataset(three)
    os.rmdir(three + suffix)
    os.mkfifo(three + suffix)
    with pytest.raises(InputError, match="not a regular file"):
        IndexedDataset(three)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_storage_error(three):
    os.chmod(f"{three}.idx", 0)
    with pytest.raises(StorageError, match=r"three\.idx"):
        IndexedDataset(three)


def test_an_empty_index_is_refused(three):
    os.truncate(f"{three}.idx", 0)
    with pytest.raises(IntegrityError, match="must have at least 34 bytes, got 0"):
        IndexedDataset(three)


def test_its_text_says_what_it_is(three):
    assert repr(IndexedDataset(three)) == (
        f"IndexedDataset({three!r}: 6 uint16 tokens, 3 sequences, 2 documents)"
    )
    assert operator.length_hint(IndexedDataset(three)) == 3


def test_a_floating_point_dataset_can_be_read(tmp_path):
    plain = Plain("float32", [[[0.5, -2.0]], [[1.0]]])
    plain.write(tmp_path / "float")
    assert [array.tolist() for array in IndexedDataset(tmp_path / "float")] == plain.sequences


def test_a_file_whose_close_fails_when_it_is_dropped_says_nothing(three, monkeypatch):
    """Nothing was written, so nothing is lost; a finalizer would print a traceback."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    file = InputFile(f"{three}.bin")
    gone = weakref.ref(file)
    os.close(file.descriptor)  # so that it cannot be closed again
    del file
    gc.collect()
    assert gone() is None
    assert lost == []
