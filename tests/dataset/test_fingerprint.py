"""Fingerprints of files, and what is said of a dataset that is replaced at any moment: old, new, nothing."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.index_caches import write_dataset
from support.interleaving import interleaved
from support.tokenize_runs import run_tokenize
from tokshard.checks.inspect.datasets import inspect_dataset
from tokshard.checks.trace.queries import trace_document
from tokshard.checks.trace.traced_data import open_dataset
from tokshard.dataset.fingerprint import BLOCK_BYTES, BLOCKS, FileFingerprint, FingerprintedIndex
from tokshard.dataset.merge.inputs import read_input
from tokshard.errors import InputError, IntegrityError, MissingFileError
from tokshard.samples.index.npy import npy_fingerprint, write_npy

WORK = {
    "inspect": inspect_dataset,
    "trace": lambda prefix: trace_document(open_dataset(prefix), 3),
    # Without the times of its files.
    "merge": lambda prefix: replace(read_input(prefix, multimodal=False), states=()),
}

INSIDE = {
    "inspect": "checks/inspect/datasets.py",
    "trace": "checks/trace/contents.py",
    "merge": "merge/inputs.py",
}


def said(work, prefix):
    try:
        found = work(prefix)
    except InputError as error:
        return error.message.replace(prefix, "")
    return repr(found).replace(prefix, "")


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("lines", [(["one two", "three"] * 4, ["x"] * 5), (["a", "b"] * 3, ["b", "a"] * 3)])
def test_old_or_new_or_nothing(tmp_path, name, lines):
    sets = []
    for number, texts in enumerate(lines):
        corpus = tmp_path / f"{number}.jsonl"
        corpus.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        sets.append(str(tmp_path / f"{number}/x"))
        run_tokenize(str(corpus), sets[-1], workers=1)
    prefix = str(tmp_path / "live/x")
    os.makedirs(f"{prefix}.tokshard")

    def publish(source):
        """Replace the dataset in the order in which tokenize does."""
        for file in (".tokshard/manifest.json", ".idx"):
            if os.path.exists(prefix + file):
                os.unlink(prefix + file)
        for file in (
            ".bin",
            ".idx",
            *(f".tokshard/{sidecar}" for sidecar in os.listdir(f"{source}.tokshard")),
        ):
            shutil.copy(source + file, tmp_path / "copy")
            os.rename(tmp_path / "copy", prefix + file)

    whole = []
    for source in sets:
        publish(source)
        whole.append(said(WORK[name], prefix))
    found = [
        *interleaved(
            lambda: said(WORK[name], prefix),
            lambda: publish(sets[1]),
            inside=("reader.py", INSIDE[name]),
            prepare=lambda: publish(sets[0]),
        )
    ]
    assert set(found) == {whole[1], " changed while it was read"}
    assert len(found) > 30


@pytest.mark.parametrize("shape", [(0, 4), (1,), (4080,), (4096 * 4 - 64, 2), (100_003,)])
def test_the_fingerprint_of_an_array_is_that_of_its_file(tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape) * 7919
    path = str(tmp_path / "array.npy")
    write_npy(path, array)
    assert npy_fingerprint(array) == FileFingerprint.of(path)


@given(size=st.integers(0, 3 * BLOCKS * BLOCK_BYTES), place=st.integers(0, 10**9))
def test_a_fingerprint_covers_small_files_whole_and_the_ends_of_large_ones(tmp_path_factory, size, place):
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(bytes(size))
    fingerprint = FileFingerprint.of(str(path))
    fingerprint.check(str(path), "plan")
    assert fingerprint.size_bytes == size
    if not size:
        return
    within = place % size if size <= BLOCKS * BLOCK_BYTES else -(place % BLOCK_BYTES) - 1
    content = bytearray(size)
    content[within] = 1
    path.write_bytes(content)
    assert FileFingerprint.of(str(path)) != fingerprint


@pytest.mark.parametrize(
    ("product", "command"), [("blend", "blend again with --rebuild"), ("plan", "shard-plan again")]
)
def test_a_changed_file_is_refused_with_the_product_that_names_it(tmp_path, product, command):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    fingerprint = FileFingerprint.of(str(path))
    for content, change in ((b"after", "it had 6 bytes and now has 5"), (b"behind", "its content differs")):
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match=f"since the {product} was built: {change}") as caught:
            fingerprint.check(str(path), product)
        assert f"run tokshard {command}" in caught.value.hint
    path.unlink()
    with pytest.raises(MissingFileError, match=f"file of the {product} not found"):
        fingerprint.check(str(path), product)


def test_an_open_dataset_has_the_fingerprints_of_its_files(tmp_path):
    prefix = write_dataset(str(tmp_path / "web"))
    found = FingerprintedIndex.open(prefix)
    assert found.files == {name: FileFingerprint.of(f"{prefix}.{name}") for name in ("bin", "idx")}
