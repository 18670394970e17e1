"""Hints for inputs that are bad as a whole: each command that a hint names is run, and repairs the input."""

import bz2
import gzip
import io
import json
import lzma
import shlex
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from support.command_line import SAMPLE, failure, installed, tokshard
from support.corpus_units import zstd
from tokshard.text.corpus.records import repair_of_encoding

TOKENIZER = SAMPLE / "tokenizer.json"
RAISE = (
    "raise --max-document-bytes (a process takes up to 0.5 GB of memory for a document of 16 MB "
    "with the fast encoder, 3.1 GB with the reference encoder)"
)
SKIP = ", or pass --on-error skip to skip bad records and list them in rejected.jsonl"
ROWS = b'{"text": "a"}\n{"text": "b c"}\n'
CHINESE = '{"text": "中文语料训练数据"}\n'
WIKI = "wikiextractor --json c.xml.bz2 -o articles, and pass 'articles/*/wiki_*'"
PDF = "extract its text (pdftotext c.pdf) and write it as JSON lines"
DATATROVE = "datatrove (WarcReader, Trafilatura)"
STRINGS = """jq -c 'if type == "string" then {"text": .} else . end'"""
PARTS = r"""'split("\n\n")[] | select(test("\\S")) | {text: .}'"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, command=tokshard, **settings):
    return command("tokenize", *arguments, "-o", "out", "--force", "--tokenizer", TOKENIZER, **settings)


def texts_after(command, here, output):
    """Run a hint's command in a shell, and return the texts that tokenize reads from its output."""
    for program in ("jq", *shlex.split(command)[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    subprocess.run(command, shell=True, check=True, cwd=here)
    done = run(output)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["text"] for line in (here / output).read_bytes().splitlines()]


LINES = {
    "two records on a line": (
        b'{"text": "a"}\n{"text": "b"}{"text": "c"}\n',
        2,
        "invalid JSON: a second record begins at character 13",
        "write each record on one line: jq -c . c.jsonl > c-converted.jsonl",
        ["a", "b", "c"],
    ),
    "two records without a newline": (
        b'{"text": "a"} {"text": "b"}',
        1,
        "invalid JSON: a second record begins at character 14",
        "write each record on one line: jq -c . c.jsonl > c-converted.jsonl",
        ["a", "b"],
    ),
    "comma at the end": (
        b'{"text": "a"},\n{"text": "b,"} , \n{"text": "c"}\n',
        1,
        "invalid JSON: a comma follows the record at character 13",
        "remove the commas: sed 's/,[[:space:]]*$//' c.jsonl > c-converted.jsonl",
        ["a", "b,", "c"],
    ),
    "comma at the end of a later line": (
        b'{"text": "a"}\n{"text": "b"},\n',
        2,
        "invalid JSON: a comma follows the record at character 13",
        "remove the commas: sed 's/,[[:space:]]*$//' c.jsonl > c-converted.jsonl",
        ["a", "b"],
    ),
    "strings": (
        b'"a"\n"b"\n{"text": "c"}\n',
        1,
        "the record must be a JSON object, got a string",
        f"make each string a record: {STRINGS} c.jsonl > c-converted.jsonl",
        ["a", "b", "c"],
    ),
    "CR only": (
        b'{"text": "a"}\r{"text": "b"}\r',
        1,
        "invalid JSON: the lines end with CR, not with newlines",
        r"replace CR by newlines: tr '\r' '\n' < c.jsonl > c-converted.jsonl",
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_tokenize_bad_lines_names_the_line_and_the_command_that_repairs(name, here):
    content, line, detail, hint, texts = LINES[name]
    (here / "c.jsonl").write_bytes(content)
    code, error, advice = failure(run("c.jsonl", command=installed))
    assert (code, advice) == (3, hint)
    assert error.startswith(f"c.jsonl:{line}: {detail}")
    assert texts_after(hint.split(": ", 1)[1], here, "c-converted.jsonl") == texts


def test_tokenize_compressed_bad_lines_decompresses_them_in_the_hint(here):
    (here / "c d.jsonl.zst").write_bytes(zstd.compress(b'{"text": "a"}\r{"text": "b"}\r'))
    _, _, hint = failure(run("c d.jsonl.zst"))
    assert hint == (
        r"replace CR by newlines: zstd -dc 'c d.jsonl.zst' | tr '\r' '\n' > 'c d-converted.jsonl'"
    )
    assert texts_after(hint.split(": ", 1)[1], here, "c d-converted.jsonl") == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (
            b'[{"text": "a"}, {"text": "b"}]',
            "convert the JSON array to JSON lines: jq -c '.[]' c.jsonl > c-converted.jsonl",
        ),
        (
            b'{"text": "a"}\r{"text": "b"}\r',
            r"replace CR by newlines: tr '\r' '\n' < c.jsonl > c-converted.jsonl",
        ),
        (b'{"text": "a long document"}\n', f"{RAISE}{SKIP}"),
    ],
)
def test_tokenize_file_on_one_long_line_names_the_command_that_divides_it(content, hint, here):
    (here / "c.jsonl").write_bytes(content)
    code, error, advice = failure(run("c.jsonl", "--max-document-bytes", 20))
    assert (code, advice) == (3, hint)
    assert error.startswith("c.jsonl:1: the line must be at most 20 bytes")
    if "raise" not in hint:
        assert texts_after(hint.split(": ", 1)[1], here, "c-converted.jsonl") == ["a", "b"]


def test_tokenize_compressed_strings_decompresses_them_in_the_hint(here):
    (here / "c.jsonl.gz").write_bytes(gzip.compress(b'"a"\n"b"\n'))
    _, _, hint = failure(run("c.jsonl.gz"))
    assert texts_after(hint.split(": ", 1)[1], here, "c-converted.jsonl") == ["a", "b"]


def test_tokenize_strings_with_another_field_writes_that_field(here):
    (here / "c.jsonl").write_bytes(b'"a"\n')
    _, _, hint = failure(run("c.jsonl", "--field", "raw text"))
    assert 'then {"raw text": .} else' in hint
    assert failure(run("c.jsonl", "--field", "a.b"))[2] == f"fix the record{SKIP}"


def test_tokenize_rows_of_token_ids_names_the_field(here):
    (here / "c.jsonl").write_bytes(b'{"input_ids": [1, 2]}\n')
    code, error, hint = failure(run("c.jsonl", command=installed))
    assert (code, error) == (3, 'c.jsonl:1: field "text" not found (fields: input_ids)')
    assert hint == "pass --field input_ids"


# Text that is not JSON lines


@pytest.mark.parametrize(
    ("name", "compress", "reading"),
    [
        ("c.txt", bytes, "jq -Rsc {} c.txt"),
        ("c.txt.gz", gzip.compress, "gzip -dc c.txt.gz | jq -Rsc {}"),
        ("c.txt.bz2", bz2.compress, "bzip2 -dc c.txt.bz2 | jq -Rsc {}"),
        ("c.txt.xz", lzma.compress, "xz -dc c.txt.xz | jq -Rsc {}"),
        ("c.txt.zst", zstd.compress, "zstd -dc c.txt.zst | jq -Rsc {}"),
    ],
)
def test_tokenize_text_names_a_document_per_file_or_part(name, compress, reading, here):
    (here / name).write_bytes(compress(b"one\ntwo\n\nthree\n"))
    code, error, hint = failure(run(name, command=installed if compress is lzma.compress else tokshard))
    assert (code, error) == (3, f"{name}:1: invalid JSON: Expecting value at character 0: 'one'")
    one, parts = reading.format("'{text: .}'") + " > c.jsonl", reading.format(PARTS) + " > c.jsonl"
    assert hint == f"make the file one document: {one} (or each part between blank lines: {parts})"
    assert texts_after(one, here, "c.jsonl") == ["one\ntwo\n\nthree\n"]
    assert texts_after(parts, here, "c.jsonl") == ["one\ntwo", "three\n"]


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        (
            "c.xml.bz2",
            bz2.compress(b'<mediawiki xmlns="x">\n'),
            f"extract the articles of the dump: {WIKI}",
        ),
        (
            "c.xml",
            b'<?xml version="1.0"?>\n',
            "parse the XML and write each document as a JSON line with its text",
        ),
        ("wiki_00", b'<doc id="1">\n', "run wikiextractor with --json"),
        (
            "c.html",
            b"<!DOCTYPE html>\n",
            "extract the text of the pages to JSON lines, for example with trafilatura",
        ),
        (
            "c.warc.gz",
            gzip.compress(b"WARC/1.0\r\n"),
            f"extract the text of the WARC records to JSON lines, for example with {DATATROVE}",
        ),
    ],
)
def test_tokenize_markup_names_a_tool_that_extracts_text(name, content, hint, here):
    (here / name).write_bytes(content)
    code, _, advice = failure(run(name, command=installed if name == "c.warc.gz" else tokshard))
    assert (code, advice) == (3, hint)


# Encodings


def test_tokenize_text_in_another_encoding_names_the_only_one_that_fits(here):
    (here / "c.jsonl").write_bytes(b'{"text": "a"}\n' + CHINESE.encode("gbk"))
    convert = "iconv -f GB18030 -t UTF-8 c.jsonl"
    code, error, hint = failure(run("c.jsonl", command=installed))
    assert code == 3
    assert error.startswith("c.jsonl:2: invalid UTF-8 at byte 10 of the line (0xd6)")
    assert hint == (
        f"check that the file is GB18030 ({convert} | head), and convert it: "
        f"{convert} > c-converted.jsonl{SKIP}"
    )
    assert texts_after(f"{convert} > c-converted.jsonl", here, "c-converted.jsonl") == [
        "a",
        json.loads(CHINESE)["text"],
    ]
    (here / "c.jsonl").write_bytes('{"text": "안녕하세요"}\n'.encode("euc-kr"))
    assert failure(run("c.jsonl"))[2] == (
        f"convert the file from its encoding to UTF-8: iconv -f ENCODING -t UTF-8 c.jsonl "
        f"> c-converted.jsonl{SKIP}"
    )


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("中文语料训练数据", "gb18030", "GB18030"),
        ("你好，世界。这是一个测试", "gb18030", "GB18030"),
        ("繁體中文語料訓練資料", "big5", "BIG5"),
        ("これはテストです", "shift_jis", "SHIFT_JIS"),
        ("吾輩は猫である。", "euc_jp", "EUC-JP"),
        ("español “naïve” — 5 €", "cp1252", "CP1252"),
        ("안녕하세요 세계", "euc_kr", ""),
        ("Привет, мир", "cp1251", ""),
        ("Привет, мир", "koi8_r", ""),
        ("Καλημέρα κόσμε", "iso8859_7", ""),
        ("příliš žluťoučký", "cp1250", ""),
    ],
)
def test_repair_of_encoding_names_an_encoding_only_if_no_other_fits(text, encoding, name):
    prefix = b'{"text": "'
    for line in (prefix + text.encode(encoding) + b'"}', prefix + (text * 100).encode(encoding)):
        assert repair_of_encoding(line, len(prefix)) == name
    # The characters before it are UTF-8: the file is damaged, not in another encoding.
    assert repair_of_encoding("é".encode() + text.encode(encoding), 2) == ""


# Archives, and files inside compressed files


def archive():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        member = tarfile.TarInfo("c.jsonl")
        member.size = len(ROWS)
        tar.addfile(member, io.BytesIO(ROWS))
    return data.getvalue()


def parquet():
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    data = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b c"]}), data)
    return data.getvalue()


def zipped():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("c.jsonl", ROWS)
    return data.getvalue()


TAR = "extract the archive and pass the files inside: tar "
PACKED = {
    "c.tar": (archive, "is a tar archive, not JSON lines, Parquet or Arrow", f"{TAR}-xf c.tar"),
    "c.zip": (
        zipped,
        "is a zip archive, not JSON lines, Parquet or Arrow",
        "extract the archive and pass the files inside: unzip c.zip",
    ),
    "c.tar.gz": (lambda: gzip.compress(archive()), "a tar archive inside gzip", f"{TAR}-xzf c.tar.gz"),
    "c.tar.bz2": (lambda: bz2.compress(archive()), "a tar archive inside bzip2", f"{TAR}-xjf c.tar.bz2"),
    "c.tar.xz": (lambda: lzma.compress(archive()), "a tar archive inside xz", f"{TAR}-xJf c.tar.xz"),
    "c.tar.zst": (
        lambda: zstd.compress(archive()),
        "a tar archive inside zstd",
        f"{TAR}--zstd -xf c.tar.zst",
    ),
    "c.jsonl.gz.gz": (
        lambda: gzip.compress(gzip.compress(ROWS)),
        "gzip inside gzip",
        "decompress the file once: gzip -dc c.jsonl.gz.gz > c.jsonl.gz",
    ),
    "c.jsonl.gz.zst": (
        lambda: zstd.compress(gzip.compress(ROWS)),
        "gzip inside zstd",
        "decompress the file once: zstd -dc c.jsonl.gz.zst > c.jsonl.gz",
    ),
    "c.parquet.xz": (
        lambda: lzma.compress(parquet()),
        "Parquet inside xz",
        "decompress the file: xz -dc c.parquet.xz > c.parquet",
    ),
    "c.parquet.bz2": (
        lambda: bz2.compress(parquet()),
        "Parquet inside bzip2",
        "decompress the file: bzip2 -dc c.parquet.bz2 > c.parquet",
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_tokenize_packed_files_names_the_command_that_unpacks_them(name, here):
    make, what, hint = PACKED[name]
    (here / name).write_bytes(make())
    what = f"{name} {what}" if what.startswith("is ") else f"cannot read {name}: it contains {what}"
    command = installed if name in {"c.tar.gz", "c.jsonl.gz.gz", "c.parquet.xz"} else tokshard
    assert failure(run(name, command=command)) == (3, what, hint)
    words = shlex.split(hint.split(": ", 1)[1])
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    subprocess.run(hint.split(": ", 1)[1], shell=True, check=True, cwd=here)
    done = run(words[-1] if ">" in words else "c.jsonl")
    assert done.returncode == 0, done.stderr
    assert "2 documents" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "error", "hint"),
    [
        (
            "c.pdf.gz",
            gzip.compress(b"%PDF-1.7\n"),
            "cannot read c.pdf.gz: it contains a PDF document inside gzip",
            f"decompress the file: gzip -dc c.pdf.gz > c.pdf, then {PDF}",
        ),
        (
            "c",
            zstd.compress(b"\x93NUMPY\x01\0"),
            "cannot read c: it contains a numpy array inside zstd",
            "decompress the file: zstd -dc c > c.out, then convert the file to JSON lines or Parquet",
        ),
    ],
)
def test_tokenize_other_contents_in_compressed_files_are_named(name, content, error, hint, here):
    (here / name).write_bytes(content)
    assert failure(run(name)) == (3, error, hint)


@pytest.mark.parametrize(
    ("content", "error", "hint"),
    [
        (
            b"PK\x03\x04 zip",
            "standard input is a zip archive, not JSON lines, Parquet or Arrow",
            "extract the archive and pass the files inside: unzip FILE",
        ),
        (
            b"PAR1 ...",
            "cannot read Parquet from a pipe: standard input",
            "save the data to a file and pass the file",
        ),
        (
            gzip.compress(gzip.compress(ROWS)),
            "cannot read standard input: it contains gzip inside gzip",
            "decompress the file once: gzip -dc FILE > PLAIN",
        ),
    ],
)
def test_tokenize_packed_standard_input_is_refused(content, error, hint):
    assert failure(run("-", command=installed, stdin=content)) == (3, error, hint)


# Tables


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("columns", "error", "hint"),
    [
        (
            {"text": [1]},
            'column "text" must contain strings or lists of strings, got int64',
            "add a column of strings to the table",
        ),
        (
            {"text": [1], "body": ["a"]},
            'column "text" must contain strings or lists of strings, got int64',
            "choose a text column with --field: body",
        ),
        (
            {"text": [b"a"]},
            'column "text" must contain strings or lists of strings, got binary',
            'convert the column to strings, for example with its method cast("string") in pyarrow',
        ),
        (
            {"input_ids": [[1]]},
            'column "text" not found (columns: input_ids)',
            "pass --field input_ids",
        ),
        ({"content": ["a"]}, 'column "text" not found (columns: content)', "pass --field content"),
    ],
)
def test_tokenize_table_without_text_names_the_column_and_its_type(kind, columns, error, hint, here):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, "c.parquet")
    else:
        with pa.ipc.new_file("c.arrow", table.schema) as writer:
            writer.write_table(table)
    command = installed if "content" in columns else tokshard
    code, message, advice = failure(run(f"c.{kind}", command=command))
    assert (code, advice) == (3, hint)
    assert message.replace("item: ", "element: ") == f"c.{kind}: {error}"


# Options


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--json-key", "text"), "pass --field"),
        (("--json-key", "text", "--preset", "megatron"), "pass --json-keys"),
        (("--tokenizer-typ", "x", "--preset", "megatron"), "pass --tokenizer-type"),
        (("--text-column", "text"), "pass --field"),
        (("--text_key", "text"), "pass --field"),
        (("--num-proc", "2"), "pass --workers"),
        (("--fields", "text"), "pass --field"),
        (("--jsn",), "pass --json"),
    ],
)
def test_tokenize_unknown_option_suggests_the_one_that_is_meant(options, hint, here):
    (here / "c.jsonl").write_bytes(ROWS)
    command = installed if options[0] == "--json-key" else tokshard
    assert failure(run("c.jsonl", *options, command=command)) == (2, f'unknown option "{options[0]}"', hint)
