"""P9: memory is bounded by workers and units, not by the corpus: 12 bytes a document at most."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys

import pytest

from faults.processes import HERE, scratch_directory
from support.tokenize_runs import TOKENIZER

SMALL_BYTES, TIMES = 4_600_000, 9
BYTES_A_DOCUMENT = 12
KIB = 1024


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Short documents: the same corpus once and ten times, plain and compressed."""
    chance = random.Random(1)
    lines = [
        f'{{"text": "{"word " * (i % 9)}{chance.getrandbits(60):x}"}}\n'.encode()
        for i in range(SMALL_BYTES // 45)
    ]
    content = b"".join(lines)
    packed = gzip.compress(content, 1, mtime=0)
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        for name, times in (("small", 1), ("large", TIMES)):
            (directory / f"{name}.jsonl").write_bytes(content * times)
            (directory / f"{name}.jsonl.gz").write_bytes(packed * times)
        yield directory, len(lines)


def memory_use(directory, name, control=None, more=()):
    """Return the peaks of the command and of its largest worker, in bytes."""
    arguments = [
        "tokenize",
        name,
        "-o",
        f"out/{name}",
        "--quiet",
        "--force",
        "--workers",
        "2",
        "--unit-size",
        "2M",
        *more,
    ]
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "memory_use.py"),
            json.dumps({"arguments": arguments, "control": control}),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [KIB * number for number in json.loads(done.stdout.splitlines()[-1])]


def growth(corpora, suffix, control=None):
    """Return how many bytes more the command and its workers take for the larger corpus than they may."""
    directory, documents = corpora
    small = memory_use(directory, f"small{suffix}", control)
    large = memory_use(directory, f"large{suffix}", control)
    assert all(small), "the small corpus was encoded without workers, and is no measure"
    allowed = BYTES_A_DOCUMENT * documents * (TIMES - 1)
    print(f"{documents} and {TIMES * documents} documents: {small} and {large} bytes")
    return [after - 1.1 * before - allowed for before, after in zip(small, large, strict=True)]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_memory_does_not_grow_with_the_corpus(corpora, suffix):
    command, worker = growth(corpora, suffix)
    assert command < 0
    assert worker < 0


@pytest.mark.parametrize("control", ["keep_offsets_in_a_list", "read_whole_inputs"])
def test_a_hog_is_caught(corpora, control):
    command, _ = growth(corpora, ".jsonl", f"controls.memory_hogs:{control}")
    assert command > 0


@pytest.mark.parametrize(
    ("encoder", "document_bytes", "limit_bytes"),
    [("fast", 15_900_000, 350_000_000), ("reference", 3_900_000, 800_000_000)],
)
def test_memory_of_a_document_of_the_default_limit(tmp_path_factory, encoder, document_bytes, limit_bytes):
    """P47: the fast encoder needs up to 20 bytes for each byte of a text, the reference 160."""
    words = ["naïve", "words", "of a", "document", "日本語"]
    text = " ".join(random.Random(1).choices(words, k=document_bytes // 8))
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        (directory / "long.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        more = ["--tokenizer", TOKENIZER, "--encoder", encoder]
        peak = max(memory_use(directory, "long.jsonl", more=more))
    print(f"{peak} bytes with the {encoder} encoder")
    assert peak < limit_bytes
