"""Indexes of other kinds than the command reads: each is named, with the way on."""

import struct

import pytest

from support.command_line import failure, installed, tokshard
from support.plain_datasets import Plain

OLD = (
    "{}.idx must be an index of Megatron's mmap format (MMIDIDX), got the old lazy or cached format of "
    "Megatron and fairseq (TNTIDX)"
)
OLD_HINT = (
    "tokenize the text again with tokshard tokenize, or with --dataset-impl mmap in the old Megatron-LM"
)
MULTIMODAL_HINT = (
    "pass --multimodal to tokshard inspect or merge, in Python the argument multimodal; other commands read "
    "text datasets"
)


def old_dataset(directory):
    """Two sequences in the lazy format: magic, version, dtype code, item size, counts, arrays."""
    prefix = directory / "old"
    header = b"TNTIDX\0\0" + struct.pack("<QQQQQQ", 1, 8, 2, 2, 2, 3)
    prefix.with_suffix(".idx").write_bytes(header + struct.pack("<8q", 0, 2, 4, 0, 2, 4, 2, 2))
    prefix.with_suffix(".bin").write_bytes(bytes(8))
    return prefix


def multimodal_dataset(directory):
    prefix = directory / "modes"
    Plain("uint16", [[[1, 2]], [[3]]], [0, 1]).write(prefix)
    return prefix


def test_inspect_names_the_old_format_of_megatron(tmp_path):
    prefix = old_dataset(tmp_path)
    assert failure(installed("inspect", prefix)) == (6, OLD.format(prefix), OLD_HINT)


def test_merge_names_the_old_format_of_megatron(tmp_path):
    prefix = old_dataset(tmp_path)
    assert failure(tokshard("merge", prefix, "-o", tmp_path / "out")) == (6, OLD.format(prefix), OLD_HINT)


def test_verify_reports_the_old_format_once(tmp_path):
    prefix = old_dataset(tmp_path)
    done = tokshard("verify", prefix)
    assert done.returncode == 1
    assert done.stdout.count("error: ") == 1
    assert f"error: idx-header: {OLD.format(prefix)}\n    hint: {OLD_HINT}" in done.stdout


def test_inspect_names_a_multimodal_index_in_words(tmp_path):
    prefix = multimodal_dataset(tmp_path)
    done = installed("inspect", prefix)
    assert failure(done) == (
        6,
        f"{prefix}.idx must be a text index, got a multimodal index by its size, which includes modes",
        MULTIMODAL_HINT,
    )
    assert tokshard("inspect", prefix, "--multimodal").returncode == 0


def test_inspect_names_a_text_index_that_is_read_as_multimodal(tmp_path):
    prefix = tmp_path / "text"
    Plain("uint16", [[[1, 2]], [[3]]]).write(prefix)
    assert failure(tokshard("inspect", prefix, "--multimodal")) == (
        6,
        f"{prefix}.idx must be a multimodal index, got a text index by its size, which includes no modes",
        "omit --multimodal, in Python the argument multimodal",
    )


@pytest.mark.parametrize(
    "words", [("export", "--to", "olmo"), ("blend", "1"), ("build-indices", "--seq-length", "2")], ids=str
)
def test_no_message_about_a_multimodal_index_is_python(tmp_path, words):
    prefix = multimodal_dataset(tmp_path)
    done = tokshard(*words[:1], *words[1:2], prefix, *words[2:], "-o", tmp_path / "out")
    assert "=True" not in done.stderr
    assert "=False" not in done.stderr
