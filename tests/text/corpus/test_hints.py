"""Hints for files that are not JSON lines, damaged files, and runs without a usable record."""

import bz2
import gzip
import json
import lzma
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.corpus_units import zstd
from support.tokenize_runs import documents, run_tokenize
from tokshard.errors import BadRecordError, InputError
from tokshard.text.corpus.fields import CHAT_HINT
from tokshard.text.corpus.files import discover

SKIP = ", or pass --on-error skip to skip bad records and list them in rejected.jsonl"
ONE = "make the file one document: jq -Rsc '{} > c.jsonl"
PARTS = (
    r""" (or each part between blank lines: jq -Rsc 'split("\n\n")[] | select(test("\\S")) | {{text: .}}{}"""
    " > c.jsonl)"
)
RECORDS = [{"text": "a"}, {"text": "b\nc"}]
PRETTY = json.dumps(RECORDS, indent=2).encode()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "reason", "hint"),
    [
        (
            "c.json",
            json.dumps(RECORDS).encode(),
            "not-object",
            "convert the JSON array to JSON lines: jq -c '.[]' c.json > c.jsonl",
        ),
        (
            "c.json",
            PRETTY,
            "invalid-json",
            "convert the JSON array to JSON lines: jq -c '.[]' c.json > c.jsonl",
        ),
        (
            "c.jsonl",
            b'[{"text": "a"},\n{"text": "b"}]\n',
            "invalid-json",
            "convert the JSON array to JSON lines: jq -c '.[]' c.jsonl > c-converted.jsonl",
        ),
        (
            "c d.json",
            json.dumps(RECORDS[0], indent=2).encode(),
            "invalid-json",
            "write each record on one line: jq -c . 'c d.json' > 'c d.jsonl'",
        ),
        (
            "c.csv",
            b"id,text\n1,a\n",
            "invalid-json",
            (
                "convert the table to JSON lines, for example with "
                "pandas.read_csv('c.csv').to_json('c.jsonl', orient='records', lines=True)"
            ),
        ),
        (
            "c.tsv",
            b"id\ttext\n",
            "invalid-json",
            (
                "convert the table to JSON lines, for example with "
                "pandas.read_csv('c.tsv', sep='\\t').to_json('c.jsonl', orient='records', lines=True)"
            ),
        ),
        (
            "c.txt",
            b"Call me Ishmael.\n",
            "invalid-json",
            ONE.format("{text: .}' c.txt") + PARTS.format("' c.txt"),
        ),
        (
            "c.txt",
            b"no newline",
            "truncated-record",
            ONE.format("{text: .}' c.txt") + PARTS.format("' c.txt"),
        ),
        (
            "c.txt.gz",
            gzip.compress(b"packed\n", mtime=0),
            "invalid-json",
            (ONE.format("{text: .}'") + PARTS.format("'")).replace("jq", "gzip -dc c.txt.gz | jq"),
        ),
        (
            "c.jsonl",
            b"{'text': 'a'}\n",
            "invalid-json",
            "write the records with json.dumps: JSON strings need double quotes",
        ),
        ("c.jsonl", b"7\n", "not-object", "fix the record" + SKIP),
        ("c.jsonl", b'{"text": "a",}\n', "invalid-json", "fix the record" + SKIP),
        ("c.jsonl", b'{"text": "a"}\nx\n', "invalid-json", "fix the record" + SKIP),
        (
            "c.jsonl",
            b'{"text": "a"}\n{"te',
            "truncated-record",
            "fetch the file again if it is incomplete" + SKIP,
        ),
        (
            "c.jsonl",
            b"\x00\x01\x02\xffabc\n",
            "invalid-utf8",
            "name a file of JSON lines (also compressed), Parquet or Arrow",
        ),
        (
            "c.jsonl",
            b'{"text": "Andr\xe9"}\n',
            "invalid-utf8",
            "check that the file is CP1252 (iconv -f CP1252 -t UTF-8 c.jsonl | head), and convert it: "
            "iconv -f CP1252 -t UTF-8 c.jsonl > c-converted.jsonl" + SKIP,
        ),
        (
            "c.jsonl",
            '{"text": "a"}\n'.encode("utf-16-le"),
            "utf-16",
            "convert the file to UTF-8: iconv -f UTF-16LE -t UTF-8 c.jsonl > c-converted.jsonl",
        ),
        (
            "c.jsonl",
            '{"text": "a"}\n'.encode("utf-16-be"),
            "utf-16",
            "convert the file to UTF-8: iconv -f UTF-16BE -t UTF-8 c.jsonl > c-converted.jsonl",
        ),
        (
            "c.jsonl",
            b'{"text": "a"}\n\xef\xbb\xbf{"text": "b"}\n',
            "byte-order-mark",
            r"remove the byte order marks: sed 's/^\xEF\xBB\xBF//' c.jsonl > c-converted.jsonl",
        ),
        ("c.jsonl", b'{"text": null}\n', "field-null", "fix the record" + SKIP),
        ("c.jsonl", b'{"text": [{"role": "user", "content": "a"}]}\n', "chat-messages", CHAT_HINT),
    ],
)
def test_a_file_of_another_kind_gets_a_hint_that_converts_it(name, content, reason, hint, here):
    (here / name).write_bytes(content)
    with pytest.raises(BadRecordError) as caught:
        run_tokenize(name, "x")
    assert (caught.value.reason, caught.value.hint) == (reason, hint)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.json", PRETTY),
        ("c.jsonl", json.dumps(RECORDS).encode()),
        ("c.json", json.dumps(RECORDS[0], indent=1).encode() + json.dumps(RECORDS[1], indent=1).encode()),
        ("c.jsonl", "\n".join(json.dumps(record) for record in RECORDS).encode("utf-16-le")),
        ("c.jsonl", "\n".join(json.dumps(record) for record in RECORDS).encode("utf-16-be")),
        ("c.jsonl", b"\n".join(b"\xef\xbb\xbf" + json.dumps(record).encode() for record in RECORDS)),
    ],
    ids=["array", "array in a line", "objects", "UTF-16LE", "UTF-16BE", "marks"],
)
def test_the_commands_of_hints_work(name, content, here):
    (here / name).write_bytes(content)
    with pytest.raises(BadRecordError) as caught:
        run_tokenize(name, "x")
    command = caught.value.hint.split(": ", 1)[1]
    if shutil.which(shlex.split(command)[0]) is None:
        pytest.skip("the program is not installed")
    subprocess.run(command, shell=True, check=True, cwd=here)
    output = shlex.split(command)[-1]
    (here / "good.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    run_tokenize(output, "y")
    run_tokenize("good.jsonl", "z")
    assert documents("y") == documents("z")


def test_utf16_with_a_byte_order_mark_is_refused_before_the_run(here):
    (here / "a b.jsonl").write_bytes('{"text": "a"}\n'.encode("utf-16"))
    with pytest.raises(InputError, match="encoded as UTF-16") as caught:
        run_tokenize("a b.jsonl", "x")
    assert caught.value.hint == (
        "convert the file to UTF-8: iconv -f UTF-16 -t UTF-8 'a b.jsonl' > 'a b-converted.jsonl'"
    )


def cut(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_a_truncated_compressed_file_is_to_be_fetched_again(suffix, here):
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}[suffix]
    data = b"".join(json.dumps({"text": f"{number} " * 9}).encode() + b"\n" for number in range(200))
    name = f"c.jsonl.{suffix}"
    (here / name).write_bytes(cut(compress(data)))
    with pytest.raises(
        BadRecordError, match="the compressed stream is truncated at compressed byte"
    ) as caught:
        run_tokenize(name, "x")
    assert caught.value.reason == "corrupt-stream"
    assert caught.value.hint == f"fetch {name} again: it is incomplete or damaged"
    (here / name).write_bytes(compress(data) + b"garbage!")
    with pytest.raises(BadRecordError, match="unexpected data after the end") as caught:
        run_tokenize(name, "y")
    assert caught.value.hint == f"fetch {name} again: it is incomplete or damaged"


@pytest.mark.parametrize(
    "name", ["c.jsonl.gz", "c.bz2", "c.jsonl.XZ", "c.zst", "c.parquet", "c.arrow", "c.arrows"]
)
def test_an_empty_file_with_the_name_of_one_with_a_header_is_an_error(name, here):
    (here / name).write_bytes(b"")
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises(
            InputError,
            match=f"^{name} is empty, but a {Path(name).suffix} file has at least a header(?:\nhint: |$)",
        ) as caught:
            run_tokenize(name, "x", **options)
        assert (caught.value.reason, caught.value.exit_code) == ("empty-file", 3)
        assert caught.value.hint == f"fetch {name} again, or remove it from the inputs"
    (here / "plain.jsonl").write_bytes(b"")
    (here / "empty.jsonl.gz").write_bytes(gzip.compress(b"", mtime=0))
    assert [file.compression for file in discover(["plain.jsonl", "empty.jsonl.gz"])] == ["none", "gzip"]


# Runs that skip bad records


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_run_in_which_every_record_was_rejected_publishes_nothing(here):
    write_lines(here / "c.jsonl", *({"content": "x"} for _ in range(1200)), 7)
    for unit_bytes in (1 << 24, 500):
        with pytest.raises(InputError) as caught:
            run_tokenize("c.jsonl", f"x{unit_bytes}", on_error="skip", unit_size=unit_bytes)
        assert caught.value.message == (
            "every record was rejected (1,200 field-missing, 1 not-object); "
            'the first is c.jsonl:1: field "text" not found (fields: content)'
        )
        assert caught.value.hint == "pass --field content"
        assert (caught.value.exit_code, caught.value.reason) == (3, "field-missing")
        published = {path.suffix for path in here.iterdir()} | {path.name for path in here.glob("x*/*")}
        assert not published & {".bin", ".idx", "manifest.json"}
    assert run_tokenize("c.jsonl", "y", on_error="skip", fields=("content",)).counts.documents == 1200


def test_hints_of_a_run_without_documents_do_not_ask_for_what_it_does(here):
    write_lines(here / "c.jsonl", {"text": None})
    with pytest.raises(
        InputError, match=r'\(1 field-null\); the first is c.jsonl:1: field "text" is null\n'
    ) as caught:
        run_tokenize("c.jsonl", "x", on_error="skip")
    assert caught.value.hint == "fix the record"
    (here / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}', mtime=0)[:15])
    with pytest.raises(InputError, match=r"\(1 corrupt-stream\)") as caught:
        run_tokenize("c.jsonl.gz", "x2", on_error="skip")
    assert caught.value.hint.startswith("fetch c.jsonl.gz again")


def test_most_records_rejected_is_a_warning_with_the_top_reasons(here):
    bad = [{"a": 1}] * 3 + [{"text": None}] * 2 + [{"text": 1}, []]
    write_lines(here / "c.jsonl", *bad, *[{"text": "x"}] * 6)
    report = run_tokenize("c.jsonl", "x", on_error="skip")
    assert report.warnings == (
        (
            "7 of 13 records were rejected (3 field-missing, 2 field-null, 1 field-type and 1 more); "
            "see x.tokshard/rejected.jsonl"
        ),
    )
    write_lines(here / "d.jsonl", *bad, *[{"text": "x"}] * 7)
    assert run_tokenize("d.jsonl", "y", on_error="skip").warnings == ()


def test_inputs_without_records_make_an_empty_dataset_as_before(here):
    (here / "c.jsonl").write_bytes(b"\n \n")
    report = run_tokenize("c.jsonl", "x", on_error="skip")
    assert (report.counts.records, report.counts.documents) == (0, 0)
    assert report.warnings == ("x has no tokens: Megatron cannot train on it",)
