"""Each format of inputs through the installed command: read under any name, and bad in each way."""

import json
from typing import get_args

import pytest

from support.command_line import SAMPLE, failure, installed
from support.tokenize_runs import manifest
from tokshard.dataset.parameters import Compression, TextFormat
from tokshard.errors import EXTRA_PACKAGES
from tokshard.text.corpus.compressed import COMPRESSIONS
from tokshard.text.corpus.formats import FORMATS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write_jsonl(path, table):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_arrow(path, table):
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS = {
    "jsonl": write_jsonl,
    "parquet": lambda path, table: pq.write_table(table, path),
    "arrow": write_arrow,
}
TABLE = pa.table({"text": [f"text {number}" for number in range(50)], "id": list(range(50))})
AGAIN = "fetch the file again: it is incomplete or damaged"
KINDS = "JSON lines (also compressed), Parquet or Arrow"
SKIP = ", or pass --on-error skip to skip bad records and list them in rejected.jsonl"


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """Return a function that tokenizes ``in.bad``, a good file of a format that a function changes."""
    monkeypatch.chdir(tmp_path)

    def run(name, change=None, table=TABLE, *options):
        path = tmp_path / "in.bad"
        WRITERS[name](path, table)
        if change is not None:
            path.write_bytes(change(path.read_bytes()))
        return installed(
            "tokenize", "in.bad", "-o", "out", "--tokenizer", SAMPLE / "tokenizer.json", *options
        )

    return run


def test_names_in_manifests_are_those_of_the_descriptors():
    names = tuple(known.name for known in FORMATS)
    assert get_args(TextFormat) == names == tuple(WRITERS)
    assert get_args(Compression) == ("none", *(known.name for known in COMPRESSIONS))
    assert {known.extra for known in FORMATS} - {None} <= EXTRA_PACKAGES.keys()


@pytest.mark.parametrize("name", WRITERS)
def test_tokenize_file_with_another_name_reads_it_by_its_content(name, bad):
    done = bad(name)
    assert done.returncode == 0, done.stderr
    (entry,) = manifest("out")["inputs"]
    assert (entry["format"], entry["counts"]["documents"]) == (name, 50)


@pytest.mark.parametrize(
    ("name", "error", "hint"),
    [
        (
            "jsonl",
            "in.bad:26: the last line is incomplete: ",
            f"fetch the file again if it is incomplete{SKIP}",
        ),
        ("parquet", "cannot read in.bad: Parquet magic bytes not found in footer", AGAIN),
        ("arrow", "cannot read in.bad: Not an Arrow file", AGAIN),
    ],
)
def test_tokenize_truncated_file_names_it_and_the_line(name, error, hint, bad):
    code, message, advice = failure(bad(name, lambda data: data[: len(data) // 2]))
    assert (code, advice) == (3, hint)
    assert message.startswith(error), message


@pytest.mark.parametrize("options", [(), ("--on-error", "skip")])
@pytest.mark.parametrize("name", [known.name for known in FORMATS if known.magic is not None])
def test_tokenize_empty_file_named_as_one_with_a_header_fails(name, options, bad, tmp_path):
    (tmp_path / f"in.{name}").touch()
    done = installed(
        "tokenize", f"in.{name}", "-o", "out", "--tokenizer", SAMPLE / "tokenizer.json", *options
    )
    assert failure(done) == (
        3,
        f"in.{name} is empty, but a .{name} file has at least a header",
        f"fetch in.{name} again, or remove it from the inputs",
    )


@pytest.mark.parametrize("name", WRITERS)
def test_tokenize_other_content_in_a_file_of_a_format_names_both(name, bad):
    done = bad(name, lambda data: b"\x89PNG\r\n" + data)
    expected = (3, "in.bad is an image, not JSON lines, Parquet or Arrow", f"pass a file of {KINDS}")
    assert failure(done) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_tokenize_missing_or_wrong_field_lists_the_fields(name, bad):
    code, error, hint = failure(bad(name, table=TABLE.rename_columns(["body", "id"])))
    assert (code, hint) == (3, "pass --field body")
    assert "in.bad" in error
    assert '"text" not found (' in error
    assert ": body, id)" in error
    code, error, hint = failure(bad(name, None, TABLE, "--field", "id"))
    assert code == 3
    assert '"id" must ' in error
    assert hint
