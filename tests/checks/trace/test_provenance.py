"""From documents to lines, bytes and rows of inputs and back, against a plain reading of the inputs."""

import gzip
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from support.plain_datasets import Plain
from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.checks.commands.verify import verify
from tokshard.checks.trace.options import parse_item
from tokshard.checks.trace.provenance import Provenance
from tokshard.checks.trace.queries import trace_document, trace_items
from tokshard.checks.trace.traced_data import open_dataset
from tokshard.checks.verify.options import VerifyOptions
from tokshard.errors import IntegrityError, MissingFileError, UsageError

UNIT_BYTES = 65536


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@dataclass
class Line:
    """A line of an input, as the twin knows it."""

    number: int
    offset: int
    text: str | None  # None for what is no document
    is_blank: bool


def write_input(path, seed, *, count=900, bad=0.1, blank=0.0):
    """Write an input of a few units whose lines are good, bad or blank by chance; return its lines."""
    draw = random.Random(seed)
    lines, content, offset = [], [], 0
    for number in range(1, count + 1):
        chance = draw.random()
        text = None
        raw = b'{"text": 7}' if chance < bad else b"  " if chance < bad + blank else None
        if raw is None:
            text = draw.choice("abcdü") * draw.randint(0, 400)
            raw = json.dumps({"text": text}, ensure_ascii=False).encode()
        lines.append(Line(number, offset, text, raw == b"  "))
        content.append(raw + b"\n")
        offset += len(content[-1])
    data = b"".join(content)
    Path(path).write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)
    return lines


def tokenize(inputs, output, **options):
    settings = {"on_error": "skip", "workers": 1, "unit_size": UNIT_BYTES, "encoder": "reference"}
    run_tokenize(inputs, output, **{**settings, **options})
    return output


def resolve(prefix, text):
    """Return (status, documents, detail) of an item."""
    found = trace_items(open_dataset(prefix), [parse_item(text)]).items[0]
    return found.status, [document.document for document in found.documents], found.detail


def check_both_ways(prefix, inputs):
    """Hold every line of the inputs against what tracing says, in both directions."""
    provenance, document = Provenance.open(prefix), 0
    items, expected = [], []
    for path, lines in inputs:
        for line in lines:
            for mark in (f":{line.number}", f"@{line.offset}"):
                items.append(parse_item(path + mark))
                expected.append(None if line.text is None else document)
            if line.text is not None:
                origin = provenance.origins(np.array([document]))[0]
                found = (origin.path, origin.line, origin.offset, origin.detail)
                assert found == (path, line.number, line.offset, None)
                document += 1
    report = trace_items(open_dataset(prefix), items)
    found = [item.documents[0].document if item.documents else None for item in report.items]
    assert found == expected
    assert [item.status == "found" for item in report.items] == [number is not None for number in expected]
    assert provenance.origins(np.arange(document))[-1].line is not None


def test_lines_are_recorded_and_traced_when_the_inputs_are_gone():
    inputs = [
        (name, write_input(name, seed, blank=0.1 * seed))
        for seed, name in enumerate(("a.jsonl", "b.jsonl.gz", "c.jsonl"))
    ]
    tokenize([name for name, _ in inputs], "out")
    for name, _ in inputs:
        os.unlink(name)
    check_both_ways("out", inputs)
    sizes = (
        os.path.getsize("out.tokshard/provenance.bin"),
        16 * sum(line.text is not None for _, lines in inputs for line in lines),
    )
    assert sizes[0] == sizes[1]


def test_a_line_without_a_record_is_told_to_be_blank():
    inputs = [("a.jsonl", write_input("a.jsonl", 0, blank=0.1))]
    tokenize(["a.jsonl"], "out")
    blank = next(line for line in inputs[0][1] if line.is_blank)
    assert resolve("out", f"a.jsonl:{blank.number}") == ("not-found", [], f"line {blank.number} is blank")
    assert (
        resolve("out", f"a.jsonl@{blank.offset}")[2] == f"no record begins at byte {blank.offset} of a.jsonl"
    )


def test_without_provenance_only_the_input_of_a_document_is_known():
    lines = write_input("a.jsonl", 1)
    tokenize(["a.jsonl"], "out", provenance=False)
    origin = Provenance.open("out").origins(np.array([0]))[0]
    assert (origin.path, origin.line, origin.offset) == ("a.jsonl", None, None)
    assert "without provenance" in origin.detail
    good = next(line for line in lines if line.text is not None)
    for mark in (f":{good.number}", f"@{good.offset}"):
        assert "without provenance" in resolve("out", f"a.jsonl{mark}")[2]


def test_a_rejected_record_and_a_line_past_the_end_are_told_apart():
    lines = write_input("a.jsonl", 3)
    tokenize(["a.jsonl"], "out")
    bad = next(line for line in lines if line.text is None)
    for mark in (f":{bad.number}", f"@{bad.offset}"):
        status, documents, detail = resolve("out", f"a.jsonl{mark}")
        assert (status, documents) == ("rejected", [])
        assert detail == f"the record in line {bad.number} was rejected: field-type"
    assert resolve("out", "a.jsonl:901") == ("not-found", [], "a.jsonl has 900 lines")
    size = os.path.getsize("a.jsonl")
    assert resolve("out", f"a.jsonl@{size}")[2] == f"a.jsonl has {size:,} bytes of text"
    assert resolve("out", f"a.jsonl@{lines[5].offset + 1}")[2].startswith("no record begins at byte")
    assert "no dataset lists b.jsonl as an input" in resolve("out", "b.jsonl:1")[2]
    count = sum(line.text is not None for line in lines)
    assert resolve("out", f"out#{count}")[2] == f"out has {count} documents, numbered from 0"
    assert resolve("out", f"out.idx#{count - 1}") == ("found", [count - 1], None)


def test_merged_datasets_are_traced_to_the_inputs_of_their_parts():
    inputs = [
        (name, write_input(name, seed, blank=0.02 * seed)) for seed, name in enumerate(("a.jsonl", "b.jsonl"))
    ]
    for name, _ in inputs:
        tokenize([name], f"part-{name[0]}")
    merge(MergeOptions(inputs=["part-a", "part-b"], output="merged"))
    check_both_ways("merged", inputs)


def test_a_part_without_a_manifest_is_traced_to_its_documents():
    lines = write_input("a.jsonl", 5)
    tokenize(["a.jsonl"], "part")
    Plain("uint16", [[[1, 2]], [], [[3], [4, 5]]]).write("foreign")
    merge(MergeOptions(inputs=["foreign", "part"], output="merged"))
    merge(MergeOptions(inputs=["part", "foreign"], output="other"))
    count = sum(line.text is not None for line in lines)
    assert resolve("other", "foreign#2") == ("found", [count + 2], None)
    assert Provenance.open("other").origins(np.array([count + 1]))[0].item == "foreign#1"
    first, second = Provenance.open("merged").origins(np.array([2, 3]))
    assert (first.item, first.line, first.offset) == ("foreign#2", None, None)
    assert "indexed dataset without a manifest" in first.detail
    # The provenance of one part is missing, so that none is kept.
    assert (second.item, second.line, second.offset) == ("a.jsonl", None, None)
    assert "without provenance" in resolve("merged", "a.jsonl:1")[2]
    assert resolve("merged", "foreign#2") == ("found", [2], None)
    assert resolve("merged", "foreign#3") == ("not-found", [], "foreign has 3 documents")
    unknown = "absent is not in the 1 dataset searched, and was not merged into any of them"
    assert resolve("merged", "absent#0")[2] == unknown


def test_an_adopted_dataset_has_documents_and_no_lines():
    count = 5000
    Plain("uint16", [[[1] * 2000] for _ in range(count)]).write("foreign")
    verify(VerifyOptions(path="foreign", adopt=True))
    provenance = Provenance.open("foreign")
    origins = provenance.origins(np.array([0, count - 1]))
    assert [origin.item for origin in origins] == ["foreign#0", f"foreign#{count - 1}"]
    assert resolve("foreign", f"foreign#{count - 1}") == ("found", [count - 1], None)
    assert "inputs unknown for 1 of 1 dataset" in resolve("foreign", "a.jsonl:1")[2]
    merge(MergeOptions(inputs=["foreign"], output="merged"))
    assert resolve("merged", f"foreign#{count - 1}") == ("found", [count - 1], None)


def test_rows_of_a_table_are_traced_by_their_numbers():
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = ["x" * (number % 7) if number % 5 else None for number in range(300)]
    parquet.write_table(pa.table({"text": texts}), "t.parquet", row_group_size=40)
    tokenize(["t.parquet"], "out")
    rows = [number for number, text in enumerate(texts) if text is not None]
    origins = Provenance.open("out").origins(np.arange(len(rows)))
    assert [(origin.row, origin.line, origin.offset) for origin in origins] == [
        (row, None, None) for row in rows
    ]
    assert origins[7].item == f"t.parquet@{rows[7]}"
    assert resolve("out", f"t.parquet@{rows[7]}") == ("found", [7], None)
    assert resolve("out", f"t.parquet:{rows[7] + 1}") == ("found", [7], None)
    assert resolve("out", "t.parquet@0")[0] == "rejected"
    assert resolve("out", "t.parquet:1")[0] == "rejected"
    assert resolve("out", "t.parquet@300")[2] == "t.parquet has 300 rows"


def test_a_foreign_dataset_says_that_nothing_is_known_of_it():
    Plain("uint16", [[[1, 2], [3]], []]).write("foreign")
    found = trace_document(open_dataset("foreign"), 0)
    assert (found.origin, found.text, found.tokens, found.sequences) == (None, None, 3, 2)
    assert "no manifest" in found.detail
    assert "inputs unknown for 1 of 1 dataset" in resolve("foreign", "a.jsonl:1")[2]
    with pytest.raises(UsageError, match="document must be from 0 to 1"):
        trace_document(open_dataset("foreign"), 2)
    with pytest.raises(MissingFileError):
        open_dataset("absent")


def test_a_document_comes_with_its_text_where_the_tokenizer_is_known():
    lines = write_input("a.jsonl", 3)
    tokenize(["a.jsonl"], "out")
    good = [line for line in lines if line.text]
    numbers = [
        number for number, record in enumerate(line for line in lines if line.text is not None) if record.text
    ]
    found = trace_document(open_dataset("out"), numbers[4])
    assert found.text == good[4].text + "<|endoftext|>"
    assert found.tokens == len(good[4].text.encode()) + 1


def test_a_file_is_known_by_any_of_its_names():
    write_input("a.jsonl", 3, bad=0)
    os.symlink("a.jsonl", "link.jsonl")
    tokenize(["a.jsonl"], "out")
    for name in ("a.jsonl", "./a.jsonl", os.path.abspath("a.jsonl"), "link.jsonl"):
        assert resolve("out", f"{name}:17") == ("found", [16], None)


def cut_provenance(path):
    os.truncate(path / "provenance.bin", 16)


def remove_provenance(path):
    (path / "provenance.bin").unlink()


def damage_rejected(path):
    (path / "rejected.jsonl").write_text(
        '{"input":"a","line":1,"offset":0,"reason":"x","detail":"","excerpt":""}\n'
    )


def garble_rejected(path):
    (path / "rejected.jsonl").write_text('{"line": "1"}\n')


def remove_rejected(path):
    (path / "rejected.jsonl").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        cut_provenance,
        remove_provenance,
        damage_rejected,
        garble_rejected,
        remove_rejected,
    ],
)
def test_damaged_sidecars_are_named(damage):
    lines = write_input("a.jsonl", 3)
    tokenize(["a.jsonl"], "out")
    damage(Path("out.tokshard"))
    with pytest.raises(IntegrityError, match=r"out\.tokshard/(provenance\.bin|rejected\.jsonl)"):
        resolve("out", f"a.jsonl:{next(line.number for line in lines if line.text is None)}")
