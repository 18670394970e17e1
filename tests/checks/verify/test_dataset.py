"""No byte of a dataset can change without being found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.tokenize_runs import run_tokenize
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify import dataset
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.checks.verify.report import ProductFindings

SIZE = 65_536


def files_of(prefix):
    beside = sorted(Path(f"{prefix}.tokshard").iterdir())
    return [Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), *beside]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Make a dataset whose files have 65,536 bytes in all."""
    directory = tmp_path_factory.mktemp("flips")
    characters = 30_000
    for trial in range(20):
        records = [{"text": f"{n} " + "ab " * 4} for n in range(20)] + [{"text": "x" * characters}]
        # A rejected record is shown: it makes odd sizes even.
        records.append({"no": "o" * (trial // 2 % 2)})
        source = directory / f"{trial:02d}.jsonl"
        source.write_text("\n".join(map(json.dumps, records)) + "\n")
        made = str(directory / f"made{trial}")
        run_tokenize([str(source)], made, on_error="skip", workers=1, unit_size=1 << 14)
        missing = SIZE - sum(path.stat().st_size for path in files_of(made))
        if not missing:
            return made
        characters += missing // 2
    raise AssertionError("no such dataset")


def context():
    return VerifyContext("digest", CountingRunner(1))


def flips(path, step=1):
    """Change each byte of a file, and put it back after each."""
    content = path.read_bytes()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for offset in range(0, len(content), step):
            os.pwrite(descriptor, bytes([content[offset] ^ (1 << offset % 8)]), offset)
            yield offset
            os.pwrite(descriptor, content[offset : offset + 1], offset)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == content


def test_every_flip_of_every_file_is_found(prefix):
    assert verify(prefix).findings == ()
    files = files_of(prefix)
    assert {path.name for path in files[2:]} == {
        "manifest.json",
        "provenance.bin",
        "rejected.jsonl",
        "units.jsonl",
    }
    missed, count = [], 0
    for path in files[1:]:
        for offset in flips(path):
            count += 1
            verified = dataset.verify_dataset(prefix, context())
            # A flipped bit of the schema's version may give a smaller number.
            older = any(finding.code == "manifest-older" for finding in verified.findings)
            if verified.sound and not older:
                missed.append((path.name, offset))
    # The structure does not look at the tokens: it is the same for all flips of them.
    facts = dataset.examine_structure(prefix, ProductFindings("dataset", prefix), context())
    for offset in flips(files[0]):
        count += 1
        findings = ProductFindings("dataset", prefix)
        dataset._examine_pieces(facts, facts.pieces, findings, context())
        if [finding.code for finding in findings.findings] != ["bin-digest"]:
            missed.append((files[0].name, offset))
    assert missed == []
    assert count == SIZE


def test_flips_of_tokens_are_found_by_the_whole(prefix):
    for offset in flips(Path(f"{prefix}.bin"), step=499):
        (finding,) = verify(prefix).findings
        assert finding.code == "bin-digest"
        assert finding.offset <= offset
