"""The builder: the bytes of the slow twin for what is legal, a clear refusal and no files for the rest."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import forked_commands
from support.plain_datasets import RANGES, Plain, datasets
from tokshard.dataset import builder as builder_module
from tokshard.dataset.builder import IndexedDatasetBuilder
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError, UsageError
from tokshard.storage import syscalls

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def add(builder, plain, ways):
    """Add the documents, each in one of two ways, in one of several container types."""
    modes = iter(plain.modes or [])
    for i, document in enumerate(plain.documents):
        way = ways[i % len(ways)]
        own = [next(modes) for _ in document] if plain.modes is not None else None
        if way == "items":
            for position, sequence in enumerate(document):
                builder.add_item(np.array(sequence, plain.dtype), *([own[position]] if own else []))
            builder.end_document()
        else:
            joined = [token for sequence in document for token in sequence]
            tokens = joined if way == "list" else np.array(joined, "i8")
            builder.add_document(tokens, [len(sequence) for sequence in document], own)


def files(prefix):
    return tuple(open(f"{prefix}{suffix}", "rb").read() for suffix in (".bin", ".idx"))


def build(prefix, plain, ways=("list",)):
    with IndexedDatasetBuilder(f"{prefix}.bin", plain.dtype, plain.modes is not None) as builder:
        add(builder, plain, ways)
        builder.finalize(f"{prefix}.idx")
    return files(prefix)


@in_one_folder
@given(
    plain=datasets(),
    ways=st.lists(st.sampled_from(["items", "list", "array"]), min_size=1, max_size=4),
    buffer_bytes=st.sampled_from([1, 7, 16, 1 << 20]),
)
def test_bytes_are_those_of_the_slow_twin_and_read_back(tmp_path, plain, ways, buffer_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder_module, "WRITE_BUFFER_BYTES", buffer_bytes)
        assert build(tmp_path / "set", plain, ways) == (plain.bin_bytes(), plain.idx_bytes())
    dataset = IndexedDataset(tmp_path / "set", plain.modes is not None)
    found = [item[0] if plain.modes is not None else item for item in dataset]
    assert [array.tolist() for array in found] == plain.sequences
    assert sorted(os.listdir(tmp_path)) == ["set.bin", "set.idx"]


@in_one_folder
@given(plain=datasets(), ways=st.lists(st.sampled_from(["items", "list"]), min_size=1, max_size=4))
def test_attributes_are_those_of_megatron(tmp_path, plain, ways):
    multimodal = plain.modes is not None
    builder = IndexedDatasetBuilder(tmp_path / "set.bin", plain.dtype, multimodal)
    assert (len(builder.sequence_lengths), list(builder.document_indices)) == (0, [0])
    add(builder, plain, ways)
    assert list(builder.sequence_lengths) == [len(sequence) for sequence in plain.sequences]
    ends = [0, *itertools.accumulate(map(len, plain.documents))]
    assert list(builder.document_indices) == ends
    assert builder.sequence_modes is None if not multimodal else list(builder.sequence_modes) == plain.modes
    builder.add_item([1])
    assert (builder.sequence_lengths[-1], builder.document_indices[-1]) == (1, ends[-1])
    builder.end_document()
    assert builder.document_indices[-1] == len(builder.sequence_lengths) == ends[-1] + 1
    builder.discard()


@in_one_folder
@given(data=st.data(), multimodal=st.booleans(), name=st.sampled_from(sorted(RANGES)))
def test_adding_an_index_is_concatenation(tmp_path, data, multimodal, name):
    first, second, third = (data.draw(datasets(name, multimodal)) for _ in range(3))
    for prefix, plain in (("first", first), ("third", third)):
        plain.write(tmp_path / prefix)
    with IndexedDatasetBuilder(tmp_path / "all.bin", name, multimodal) as builder:
        builder.add_index(tmp_path / "first")
        add(builder, second, ["list", "items"])
        builder.add_index(tmp_path / "third")
        builder.finalize(tmp_path / "all.idx")
    modes = first.modes + second.modes + third.modes if multimodal else None
    whole = Plain(name, first.documents + second.documents + third.documents, modes)
    assert files(tmp_path / "all") == (whole.bin_bytes(), whole.idx_bytes())


def test_modes_are_zero_where_none_are_given(tmp_path):
    with IndexedDatasetBuilder(tmp_path / "x.bin", "uint8", multimodal=True) as builder:
        builder.add_document([1, 2, 3], [2, 1])
        builder.add_item([4])
        builder.end_document()
        builder.finalize(tmp_path / "x.idx")
    assert files(tmp_path / "x")[1] == Plain("uint8", [[[1, 2], [3]], [[4]]], [0, 0, 0]).idx_bytes()


@pytest.fixture
def builder(tmp_path):
    builder = IndexedDatasetBuilder(tmp_path / "out.bin", "uint16")
    builder.add_document([1, 2], [2])
    yield builder
    if builder._file is not None:  # the refused call has changed nothing: the rest can still be written
        builder.add_document([3], [1])
        builder.finalize(tmp_path / "out.idx")
        plain = Plain("uint16", [[[1, 2]], [[3]]])
        assert files(tmp_path / "out") == (plain.bin_bytes(), plain.idx_bytes())


@pytest.mark.parametrize(
    "tokens",
    [
        [70000],
        [-1],
        [2**63],
        [2**64],
        [-(2**63)],
        np.array([65536]),
        np.array([-1], "i1"),
        np.array([2**64 - 1], "u8"),
        [1.0],
        [float("nan")],
        np.array([1.5], "f4"),
        [True],
        ["1"],
        [None],
        "text",
        None,
        [[1], [2, 3]],
        object(),
    ],
)
def test_tokens_that_cannot_be_stored_are_refused(builder, tokens):
    with pytest.raises(UsageError, match="tokens"):
        builder.add_document(tokens, [1])
    with pytest.raises(UsageError, match="tokens"):
        builder.add_item(tokens)


def test_the_refusal_names_the_token(builder):
    with pytest.raises(UsageError, match=r"from 0 to 65535 \(uint16\), got 70000 at position 2") as caught:
        builder.add_item(np.array([1, 2, 70000, 80000]))
    assert "optimal_dtype" in caught.value.hint


@pytest.mark.parametrize("name", sorted(RANGES))
def test_the_limits_of_each_dtype_are_exact(tmp_path, name):
    low, high = RANGES[name]
    with IndexedDatasetBuilder(tmp_path / "x.bin", name) as builder:
        builder.add_document([low, high], [2])
        for outside in (low - 1, high + 1):
            with pytest.raises(UsageError, match="tokens"):
                builder.add_item([outside])
        builder.finalize(tmp_path / "x.idx")
    assert IndexedDataset(tmp_path / "x")[0].tolist() == [low, high]


@pytest.mark.parametrize(
    "lengths", [[2], [4], [], [3, 1], [4, -1], [-3], [1.0, 2.0], [2**31], [2**32 + 3], None, ["3"]]
)
def test_lengths_that_are_not_those_of_the_tokens_are_refused(builder, lengths):
    with pytest.raises(UsageError, match="lengths"):
        builder.add_document([7, 8, 9], lengths)


def test_modes_that_do_not_fit_are_refused(tmp_path, builder):
    with pytest.raises(UsageError, match="not multimodal"):
        builder.add_document([1], [1], [0])
    with pytest.raises(UsageError, match="not multimodal"):
        builder.add_item([1], mode=1)
    with IndexedDatasetBuilder(tmp_path / "modes.bin", "uint8", multimodal=True) as multimodal:
        for modes in ([], [0], [0, 0, 0], [0, 128], [0, -129], [0.0, 1.0]):
            with pytest.raises(UsageError, match="modes"):
                multimodal.add_document([1, 2], [1, 1], modes)
        with pytest.raises(UsageError, match="modes"):
            multimodal.add_item([1], mode=128)
        multimodal.finalize(tmp_path / "modes.idx")


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint32", "bool"])
def test_token_types_that_cannot_be_written_are_refused(tmp_path, dtype):
    with pytest.raises(UsageError, match=dtype):
        IndexedDatasetBuilder(tmp_path / "x.bin", dtype)
    assert os.listdir(tmp_path) == []


def test_a_document_left_open_is_refused_until_it_is_closed(tmp_path):
    Plain("int32", [[[1]]]).write(tmp_path / "other")
    builder = IndexedDatasetBuilder(tmp_path / "x.bin")
    builder.add_item([1])
    builder.add_item([2, 3])
    for call in (
        lambda: builder.add_document([4], [1]),
        lambda: builder.add_index(tmp_path / "other"),
        lambda: builder.finalize(tmp_path / "x.idx"),
    ):
        with pytest.raises(UsageError, match=r"2 sequences of add_item\(\) are not in a document"):
            call()
    builder.end_document()
    builder.finalize(tmp_path / "x.idx")
    plain = Plain("int32", [[[1], [2, 3]]])
    assert files(tmp_path / "x") == (plain.bin_bytes(), plain.idx_bytes())


def every_use(builder, tmp_path):
    return [
        lambda: builder.add_item([1]),
        lambda: builder.add_document([1], [1]),
        builder.end_document,
        lambda: builder.add_index(tmp_path / "x"),
        lambda: builder.finalize(tmp_path / "x.idx"),
    ]


def test_use_after_the_end_is_refused(tmp_path):
    finished = IndexedDatasetBuilder(tmp_path / "x.bin")
    finished.finalize(tmp_path / "x.idx")
    discarded = IndexedDatasetBuilder(tmp_path / "y.bin")
    discarded.discard()
    discarded.discard()
    for use in every_use(finished, tmp_path) + every_use(discarded, tmp_path):
        with pytest.raises(UsageError, match="is closed"):
            use()
    assert sorted(os.listdir(tmp_path)) == ["x.bin", "x.idx"]
    assert files(tmp_path / "x") == (b"", Plain("int32", []).idx_bytes())


def test_leaving_without_finalize_writes_nothing(tmp_path):
    with (
        pytest.raises(UsageError, match="without finalize"),
        IndexedDatasetBuilder(tmp_path / "x.bin") as builder,
    ):
        builder.add_document([1], [1])
    with pytest.raises(UsageError, match="tokens"), IndexedDatasetBuilder(tmp_path / "x.bin") as builder:
        builder.add_document([None], [1])
    assert os.listdir(tmp_path) == []


def test_an_abandoned_builder_leaves_the_old_dataset(tmp_path):
    old = build(tmp_path / "x", Plain("int32", [[[1, 2]]]))
    IndexedDatasetBuilder(tmp_path / "x.bin").add_document(list(range(1000)), [1000])
    assert files(tmp_path / "x") == old


def test_the_index_of_an_index_that_cannot_be_added_changes_nothing(tmp_path, builder):
    other = Plain("int32", [[[1, 2], [3]]])
    other.write(tmp_path / "int32")
    with pytest.raises(InputError, match=r"int32 must be uint16 like that of .*, got int32") as caught:
        builder.add_index(tmp_path / "int32")
    assert caught.value.hint
    with pytest.raises(MissingFileError):
        builder.add_index(tmp_path / "nothing")
    for suffix, size in ((".bin", 5), (".bin", 7), (".idx", 60)):
        Plain("uint16", [[[1, 2], [3]]]).write(tmp_path / "damaged")
        os.truncate(f"{tmp_path}/damaged{suffix}", size)
        with pytest.raises(IntegrityError):
            builder.add_index(tmp_path / "damaged")
    Plain("uint16", [[[1, 2], [3]]], [0, 1]).write(tmp_path / "modes")
    with pytest.raises(IntegrityError) as caught:
        builder.add_index(tmp_path / "modes")
    assert "in Python the argument multimodal" in caught.value.hint


TEMPORARY = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]{8}\.tokshard-tmp$")


def test_both_files_are_forced_to_disk_and_the_index_comes_last(tmp_path, monkeypatch):
    """The order of the syscalls, over an existing pair: its index goes before the new tokens come."""
    build(tmp_path / "x", Plain("int32", [[[9]]]))
    log = []

    def recorded(name, real):
        def call(*arguments):
            names = [os.path.basename(a) for a in arguments if isinstance(a, str)]
            log.append((name, *(TEMPORARY.sub("temporary", a) for a in names)))
            return real(*arguments)

        return call

    for name in ("fsync", "replace", "fsync_directory", "unlink"):
        monkeypatch.setattr(syscalls, name, recorded(name, getattr(syscalls, name)))
    build(tmp_path / "x", Plain("int32", [[[1]]]))
    folder = tmp_path.name
    assert log == [
        ("unlink", ".x.bin.temporary"),
        ("unlink", ".x.idx.temporary"),
        ("unlink", "x.idx"),
        ("fsync_directory", folder),
        ("fsync", "x.bin"),
        ("replace", ".x.bin.temporary", "x.bin"),
        ("fsync_directory", folder),
        ("fsync", "x.idx"),
        ("replace", ".x.idx.temporary", "x.idx"),
        ("fsync_directory", folder),
    ]


KILLED = """
import os, sys
from tokshard.dataset.builder import IndexedDatasetBuilder
from tokshard.storage import syscalls

left = int(sys.argv[2])
def counted(real):
    def call(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return real(*arguments)
    return call

for name in ("create", "write", "fsync", "fsync_directory", "close", "replace", "unlink"):
    setattr(syscalls, name, counted(getattr(syscalls, name)))
with IndexedDatasetBuilder(sys.argv[1] + ".bin") as builder:
    builder.add_document([4, 5, 6], [1, 2])
    builder.finalize(sys.argv[1] + ".idx")
"""


@pytest.mark.parametrize("replacing", [True, False])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_or_no_dataset(tmp_path, replacing):
    prefix, program = str(tmp_path / "x"), tmp_path / "killed.py"
    program.write_text(KILLED)
    old, new = Plain("int32", [[[1], [2, 3]]]), Plain("int32", [[[4], [5, 6]]])
    states = set()
    for call in range(1, 40):
        for suffix in (".bin", ".idx"):
            if os.path.exists(prefix + suffix):
                os.unlink(prefix + suffix)
        if replacing:
            old.write(prefix)
        killed = forked_commands.run([prefix, str(call)], program=program).returncode
        if not IndexedDataset.exists(prefix):
            states.add("none")
        else:
            states.add({old.bin_bytes() + old.idx_bytes(): "old"}.get(b"".join(files(prefix)), "new"))
            assert files(prefix) in [(plain.bin_bytes(), plain.idx_bytes()) for plain in (old, new)]
        if killed == 0:
            break
    assert killed == 0
    assert call > 10
    assert states == ({"old", "none", "new"} if replacing else {"none", "new"})


@pytest.mark.parametrize("failing", ["write", "fsync", "replace", "close", "fsync_directory"])
def test_a_refusing_disk_is_reported_and_leaves_no_new_dataset(tmp_path, monkeypatch, failing):
    def refuse(*arguments):
        raise StorageError(failing, str(arguments[-1]), OSError(28, "No space left on device"))

    builder = IndexedDatasetBuilder(tmp_path / "x.bin")
    builder.add_document([1], [1])
    monkeypatch.setattr(syscalls, failing, refuse)
    with pytest.raises(StorageError, match="No space left"):
        builder.finalize(tmp_path / "x.idx")
    monkeypatch.undo()
    assert not IndexedDataset.exists(tmp_path / "x")
    assert [name for name in os.listdir(tmp_path) if name != "x.bin"] == []
    with pytest.raises(UsageError, match="is closed"):
        builder.add_item([1])


def test_a_real_full_disk_loses_nothing_silently(tmp_path):
    """RLIMIT_FSIZE at every few bytes: either an error, or the whole dataset."""
    program = """
import resource, signal, sys
from tokshard.errors import StorageError
from tokshard.dataset.builder import IndexedDatasetBuilder
outcomes = []
for limit in range(0, 260, 3):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with IndexedDatasetBuilder(f"{sys.argv[1]}/{limit}.bin") as builder:
            builder.add_document(list(range(60)), [20, 40])
            builder.finalize(f"{sys.argv[1]}/{limit}.idx")
    except StorageError:
        outcomes.append(0)
    else:
        outcomes.append(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(*outcomes)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    outcomes = [int(word) for word in result.stdout.split()]
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 1}
    plain = Plain("int32", [[list(range(20)), list(range(20, 60))]])
    for limit, finished in zip(range(0, 260, 3), outcomes, strict=True):
        assert IndexedDataset.exists(tmp_path / str(limit)) == bool(finished)
        if finished:
            assert files(tmp_path / str(limit)) == (plain.bin_bytes(), plain.idx_bytes())
    assert not [name for name in os.listdir(tmp_path) if name.endswith("tmp")]
