"""Merging against concatenation, entry by entry; what is refused; what is carried over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import Plain, datasets
from tokshard import (
    IndexedDataset,
    MergeOptions,
    TokenizeOptions,
    VerifyOptions,
    merge,
    tokenize,
    verify,
)
from tokshard.checks.inspect.datasets import inspect_dataset
from tokshard.dataset import concatenate
from tokshard.dataset.concatenate import Concatenation
from tokshard.dataset.layout import MAX_POINTER_BYTES
from tokshard.dataset.manifest import read_dataset_tokenizer, read_manifest
from tokshard.dataset.merge import inputs
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.errors import (
    InputError,
    IntegrityError,
    MissingFileError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from tokshard.storage import syscalls
from tokshard.storage.digest import content_digest, file_digest, piecewise_digest

TEXT = Plain("uint16", [[[1, 2], [3]], [], [[4]]])
MORE = Plain("uint16", [[[5]], [[], [6, 7, 8]]])
OTHER_DTYPE = Plain("int32", [[[1]]])
MODES = Plain("uint16", [[[1], [2]]], [3, -4])


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**sets: Plain) -> None:
    for name, plain in sets.items():
        plain.write(name)


def concatenation(plains: list[Plain]) -> Plain:
    """The slow twin: lists behind lists."""
    modes = None
    if plains[0].modes is not None:
        modes = [mode for plain in plains for mode in plain.modes]
    return Plain(plains[0].dtype, [document for plain in plains for document in plain.documents], modes)


def pair(prefix: str) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def expected(*plains: Plain) -> tuple[bytes, bytes]:
    whole = concatenation(list(plains))
    return whole.bin_bytes(), whole.idx_bytes()


@st.composite
def lists_of_datasets(draw):
    first = draw(datasets(least=0))
    others = st.lists(datasets(first.dtype, first.modes is not None, least=0), max_size=3)
    return [first, *draw(others)]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(lists_of_datasets(), st.integers(4, 40))
def test_a_merge_is_the_concatenation(plains, copy_bytes):
    multimodal = plains[0].modes is not None
    names = [f"p{number}" for number in range(len(plains))]
    write(**dict(zip(names, plains, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concatenate, "COPY_BYTES", copy_bytes)
        report = merge(MergeOptions(inputs=names, output="out", multimodal=multimodal, force=True))
        assert pair("out") == expected(*plains)
        # What has a manifest is copied by the kernel, and its digests are carried over.
        again = merge(MergeOptions(inputs=["out", *names], output="more", multimodal=multimodal, force=True))
    assert pair("more") == expected(*plains, *plains)
    assert report.output.counts.documents == sum(len(plain.documents) for plain in plains)
    tokens = IndexedDataset("out", multimodal).index.token_count
    assert (report.output.tokens, again.output.tokens) == (tokens, 2 * tokens)
    assert_manifest_is_true("out", [plain.bin_bytes() for plain in plains])
    assert_manifest_is_true("more", [plain.bin_bytes() for plain in [*plains, *plains]])
    summary = inspect_dataset("more", multimodal=multimodal)
    assert summary.empty_documents == summary.manifest.counts.empty_documents


def assert_manifest_is_true(prefix: str, pieces: list[bytes]) -> None:
    manifest = read_manifest(prefix)
    units = [json.loads(line) for line in Path(f"{prefix}.tokshard/units.jsonl").read_text().splitlines()]
    digests = [content_digest(piece) for piece in pieces]
    assert [unit["tokens_xxh3_128"] for unit in units] == digests
    assert manifest.files.bin.pieces_xxh3_128 == piecewise_digest(digests)
    assert [unit["input"] for unit in units] == list(range(len(manifest.inputs)))
    assert manifest.files.idx.xxh3_128 == file_digest(f"{prefix}.idx")
    assert manifest.dataset.units == len(units)


def test_forms_of_one_dataset_count_once_and_the_same_argument_counts_again():
    write(a=TEXT, b=MORE)
    report = merge(MergeOptions(inputs=["a.bin", "a.idx", "a.tokshard", "b.idx", "b"], output="out"))
    assert report.options.inputs == ("a", "b")
    twice = merge(MergeOptions(inputs=["a", "b", "a"], output="twice"))
    assert pair("twice") == expected(TEXT, MORE, TEXT)
    assert [warning for warning in twice.warnings if "twice" in warning] == [
        "a: passed twice, so their documents are in the output twice"
    ]
    shell = merge(MergeOptions(inputs=["a.bin", "a.idx", "b.bin", "b.idx"] * 2, output="shell"))
    assert (shell.options.inputs, pair("shell")) == (("a", "b", "a", "b"), expected(TEXT, MORE, TEXT, MORE))


@pytest.mark.parametrize("pattern", ["part-*", "part-*.idx", "part-*.bin", "part-?*"])
def test_globs_are_in_natural_order_and_leave_out_the_output(pattern):
    plains = {f"part-{number}": Plain("uint8", [[[number]]]) for number in (10, 2, 1)}
    write(**plains)
    Path("part-notes.txt").write_text("no dataset")
    right = expected(plains["part-1"], plains["part-2"], plains["part-10"])
    merge(MergeOptions(inputs=pattern, output="part-all"))
    assert pair("part-all") == right
    assert merge(MergeOptions(inputs=pattern, output="part-all")).action == "found"
    with pytest.raises(UsageError, match="--output part-all is one of the inputs"):
        merge(MergeOptions(inputs=[pattern, "part-all.idx"], output="part-all"))


def test_a_glob_does_not_pass_over_half_a_pair():
    write(a1=TEXT, a2=MORE)
    os.unlink("a2.idx")
    with pytest.raises(MissingFileError, match=r"dataset not found: a2 \(a2\.idx missing\)"):
        merge(MergeOptions(inputs="a*", output="out"))
    with pytest.raises(InputError, match="no dataset matches b"):
        merge(MergeOptions(inputs="b*", output="out"))


def damage(name: str, suffix: str, position: int) -> None:
    content = bytearray(Path(f"{name}{suffix}").read_bytes())
    content[position] ^= 1
    Path(f"{name}{suffix}").write_bytes(content)


def cut(name: str, suffix: str) -> None:
    os.truncate(f"{name}{suffix}", os.path.getsize(f"{name}{suffix}") - 1)


REFUSALS = {
    "dtypes": (lambda: OTHER_DTYPE.write("b"), InputError, "the same dtype, got uint16 .a. and int32 .b."),
    "truncated tokens": (lambda: cut("b", ".bin"), IntegrityError, "b.idx at byte .* which has 7"),
    "truncated index": (lambda: cut("b", ".idx"), IntegrityError, "b.idx must have .* bytes by its header"),
    "a wrong pointer": (lambda: damage("b", ".idx", 34 + 4 * 3 + 8), IntegrityError, "b.idx .* pointer of"),
    "no magic": (lambda: damage("b", ".idx", 0), IntegrityError, "b.idx must begin with"),
    "no file": (lambda: os.unlink("b.bin"), MissingFileError, "b.bin missing"),
    "modes": (lambda: MODES.write("b"), InputError, "text and multimodal datasets: b is multimodal"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_merged_is_refused_before_anything_is_written(what):
    spoil, error, words = REFUSALS[what]
    write(a=TEXT, b=MORE)
    spoil()
    before = sorted(os.listdir())
    with pytest.raises(error, match=words):
        merge(MergeOptions(inputs=["a", "b"], output="out"))
    assert sorted(os.listdir()) == before


def test_text_is_no_multimodal_dataset():
    write(a=MODES, b=TEXT)
    with pytest.raises(InputError, match="text and multimodal datasets: b has no modes"):
        merge(MergeOptions(inputs=["a", "b"], output="out", multimodal=True))


def test_more_than_pointers_can_address_is_refused():
    write(a=TEXT)
    dataset = inputs.read_input("a", multimodal=False)
    inputs.check_together([replace(dataset, bin_bytes=MAX_POINTER_BYTES - 8), dataset])
    with pytest.raises(InputError, match="more than the index can address"):
        inputs.check_together([replace(dataset, bin_bytes=MAX_POINTER_BYTES - 7), dataset])


def test_an_existing_output_stays_unless_forced():
    write(a=TEXT, b=MORE, out=MORE)
    with pytest.raises(OutputExistsError, match=r"out\.bin exists already"):
        merge(MergeOptions(inputs=["a", "b"], output="out"))
    assert pair("out") == expected(MORE)
    merge(MergeOptions(inputs=["a", "b"], output="out", force=True))
    assert pair("out") == expected(TEXT, MORE)
    assert merge(MergeOptions(inputs=["a", "b"], output="out")).action == "found"
    with pytest.raises(OutputExistsError):
        merge(MergeOptions(inputs=["b", "a"], output="out"))


def test_a_manifest_that_belongs_to_other_bytes_is_refused():
    write(a=TEXT, b=MORE)
    merge(MergeOptions(inputs=["a"], output="known"))
    (Path("known.tokshard") / "units.jsonl").write_text("{}\n" * 3)
    with pytest.raises(IntegrityError, match=r"units\.jsonl must have [0-9]+ bytes by its manifest, got 9"):
        merge(MergeOptions(inputs=["known", "b"], output="out"))
    MORE.write("known")
    with pytest.raises(IntegrityError, match="known"):
        merge(MergeOptions(inputs=["known", "b"], output="out"))


@pytest.fixture
def interrupted(monkeypatch):
    """A merge of two datasets of 800 bytes each that failed in the second one."""
    plains = [Plain("int64", [[list(range(start, start + 100))]]) for start in (0, 100)]
    write(a=plains[0], b=plains[1])
    for name in "ab":
        merge(MergeOptions(inputs=[name], output=f"k{name}"))
    original, left = syscalls.copy_range, [800]

    def limited(source, target, offset, count, path):
        left[0] -= count
        if left[0] < 0:
            original(source, target, offset, 300, path)
            raise StorageError("write", path, OSError(28, "No space left on device"))
        return original(source, target, offset, count, path)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(syscalls, "copy_range", limited)
        merge(MergeOptions(inputs=["ka", "kb"], output="out"))
    return plains


def test_an_interrupted_merge_leaves_nothing_and_starts_again(interrupted):
    assert not [name for name in os.listdir() if name.startswith("out")]
    merge(MergeOptions(inputs=["ka", "kb"], output="out"))
    assert pair("out") == expected(*interrupted)


def test_a_finished_merge_of_other_inputs_is_replaced_only_by_force(interrupted):
    merge(MergeOptions(inputs=["ka", "kb"], output="out"))
    with pytest.raises(OutputExistsError, match="the inputs were ka, kb and are now kb, ka"):
        merge(MergeOptions(inputs=["kb", "ka"], output="out"))
    merge(MergeOptions(inputs=["kb", "ka"], output="out", force=True))
    assert pair("out") == expected(*reversed(interrupted))
    assert sorted(os.listdir("out.tokshard")) == ["manifest.json", "units.jsonl"]


@pytest.mark.parametrize("name", ["ka.bin", "ka.idx", "ka.tokshard/manifest.json"])
def test_an_output_of_inputs_that_have_changed_is_not_up_to_date(interrupted, name):
    merge(MergeOptions(inputs=["ka", "kb"], output="out"))
    assert merge(MergeOptions(inputs=["ka", "kb"], output="out")).action == "found"
    os.utime(name, ns=(1, 1))
    with pytest.raises(OutputExistsError, match="its inputs have changed"):
        merge(MergeOptions(inputs=["ka", "kb"], output="out"))


@pytest.mark.parametrize("known", [False, True])
def test_an_input_that_shrinks_meanwhile_is_seen(monkeypatch, known):
    write(a=TEXT)
    if known:
        merge(MergeOptions(inputs=["a"], output="b"))
    name = "b" if known else "a"
    original = Concatenation.append
    monkeypatch.setattr(
        Concatenation, "append", lambda *given: (os.truncate(f"{name}.bin", 3), original(*given))
    )
    before = r" \(it had 8 when checked\)" if known else ""
    with pytest.raises(IntegrityError, match=rf"{name}\.bin was truncated to 3 bytes{before}"):
        merge(MergeOptions(inputs=[name], output="out"))
    assert not os.path.exists("out.idx")


def test_an_input_that_changes_meanwhile_is_seen(monkeypatch):
    write(a=TEXT)
    original = Concatenation.append
    monkeypatch.setattr(
        Concatenation, "append", lambda *given: (original(*given), os.utime("a.idx", ns=(1, 1)))
    )
    with pytest.raises(InputError, match="a changed during the merge"):
        merge(MergeOptions(inputs=["a"], output="out"))
    assert not os.path.exists("out.idx")


REFUSED = OSError(18, "Invalid cross-device link")


@pytest.mark.parametrize("answer", [REFUSED, 0, "short", "other file system"])
def test_copies_do_not_need_the_kernel(monkeypatch, answer, workshop):
    write(a=TEXT, b=MORE)
    merge(MergeOptions(inputs=["a"], output="ka"))
    merge(MergeOptions(inputs=["b"], output="kb"))
    original = os.copy_file_range

    def stand_in(source, target, count, offset):
        if isinstance(answer, OSError):
            raise answer
        return 0 if answer == 0 else original(source, target, min(count, 3), offset)

    prefix = "out"
    if answer == "other file system":
        here = os.stat(".").st_dev
        places = [path for path in ("/dev/shm", "/var/tmp") if os.access(path, os.W_OK)]
        place = next((path for path in places if os.stat(path).st_dev != here), None)
        if place is None:
            pytest.skip("there is no second file system here")
        prefix = f"{tempfile.mkdtemp(prefix='tokshard-', dir=place)}/out"
    else:
        monkeypatch.setattr(os, "copy_file_range", stand_in)
    try:
        merge(MergeOptions(inputs=["ka", "kb"], output=prefix))
        assert pair(prefix) == expected(TEXT, MORE)
    finally:
        if prefix != "out":
            shutil.rmtree(os.path.dirname(prefix))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from tokshard import MergeOptions, merge
merge(MergeOptions(inputs="p*", output="out"))
"""


def test_many_inputs_need_few_descriptors():
    for number in range(100):
        Plain("uint8", [[[number]]]).write(f"p{number}")
    subprocess.run([sys.executable, "-c", LIMITED], check=True)
    assert Path("out.bin").read_bytes() == bytes(range(100))


# Not ru_maxrss, which remembers the memory of the process that started this one.
MEASURED = """
import re
from tokshard import MergeOptions, merge
report = merge(MergeOptions(inputs=["big", "small", "big"], output="out", multimodal=True))
peak = re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1]
print(report.output.counts.documents, peak)
"""


def test_memory_does_not_depend_on_the_documents():
    count = 10_000_000
    with open("big.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\1")
        file.write(np.array([count, count + 1], "<u8").tobytes())
        file.write(np.ones(count, "<i4").tobytes())
        file.write(np.arange(count, dtype="<i8").tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())
        file.write(bytes(count))
    with open("big.bin", "wb") as file:
        file.truncate(count)
    Plain("uint8", [[[1]]], [1]).write("small")
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    documents, kilobytes = map(int, done.stdout.split())
    assert documents == 2 * count + 1
    assert kilobytes * 1024 < 300e6


def test_merged_dataset_of_one_tokenizer_equals_its_inputs_in_comparisons(workshop):
    (workshop / "text.jsonl").write_text('{"text": "It rains."}\n')
    tokenize(TokenizeOptions(inputs="text.jsonl", output="web"))
    merge(MergeOptions(inputs=["web", "web"], output="twice"))
    assert read_dataset_tokenizer("twice") == read_dataset_tokenizer("web")


def test_merged_dataset_of_adopted_inputs_records_no_tokenizers():
    write(first=TEXT, second=MORE)
    for name in ("first", "second"):
        verify(VerifyOptions(path=name, adopt=True))
        assert read_dataset_tokenizer(name) == DatasetTokenizer()
    merge(MergeOptions(inputs=["first", "second"], output="both"))
    assert read_manifest("both").merged_tokenizers is None
