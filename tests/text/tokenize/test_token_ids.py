"""Rows of token ids are written as they are, from every format, and the dataset is one like any other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.command_line import failure, tokshard
from support.tokenize_runs import (
    TOKENIZER,
    documents,
    manifest,
    pair,
    run_array_task,
    run_finish,
    run_tokenize,
    write_jsonl,
)
from tokshard import ArrayTask, IndexedDataset
from tokshard.errors import BadRecordError, InputError, OutputExistsError, WorkerError
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import ProcessPool
from tokshard.text.tokenizer.definition import load_tokenizer

VOCABULARY = 1000
EOD = 999
IDS = {"fields": ("input_ids",), "vocab_size": VOCABULARY, "eod": str(EOD)}
OPTIONS = ("--field", "input_ids", "--vocab-size", VOCABULARY, "--eod", EOD)


def rows_of_ids(count: int = 200) -> list[list[int]]:
    """Return rows, some empty, without the EOD token."""
    generator = np.random.default_rng(5)
    lengths = generator.integers(0, 30, count)
    return [generator.integers(0, EOD, length).tolist() for length in lengths]


ROWS = rows_of_ids()


def table_of(rows, kind) -> pa.Table:
    """Return a table as Hugging Face tokenizers give it."""
    masks = pa.array([[1] * len(row) for row in rows], pa.list_(pa.int8()))
    return pa.table({"attention_mask": masks, "input_ids": pa.array(rows, kind)})


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "ids.jsonl", [{"input_ids": row, "id": n} for n, row in enumerate(ROWS)])
    parquet.write_table(table_of(ROWS, pa.list_(pa.int64())), "ids.parquet", row_group_size=70)
    return tmp_path


def sidecars(prefix: str) -> bytes:
    return Path(f"{prefix}.tokshard/provenance.bin").read_bytes()


# The bytes


def test_token_ids_are_documents_with_eod(here):
    run_tokenize("ids.jsonl", "out", **IDS)
    assert documents("out") == [[[*row, EOD]] if row else [] for row in ROWS]
    assert IndexedDataset("out").dtype == np.uint16
    recorded = manifest("out")
    assert (recorded["tokenizer"], recorded["options"]["vocab_size"]) == (None, VOCABULARY)
    assert recorded["counts"]["encoders"] == {"none": len(ROWS)}


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int32()),
        pa.list_(pa.int64()),
        pa.list_(pa.uint16()),
        pa.large_list(pa.uint32()),
        pa.large_list(pa.uint64()),
    ],
)
@pytest.mark.parametrize("kind_of_file", ["parquet", "arrow", "stream"])
def test_tables_have_the_bytes_of_json_lines(kind, kind_of_file, here):
    run_tokenize("ids.jsonl", "expected", **IDS)
    table = table_of(ROWS, kind)
    if kind_of_file == "parquet":
        parquet.write_table(table, "t.parquet", row_group_size=70)
    else:
        new = pa.ipc.new_file if kind_of_file == "arrow" else pa.ipc.new_stream
        with new("t.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    run_tokenize("t.parquet" if kind_of_file == "parquet" else "t.arrow", "out", unit_size=1000, **IDS)
    assert pair("out") == pair("expected")


def test_lists_of_fixed_size_and_slices_are_read(here):
    rows = np.arange(400).reshape(100, 4).tolist()
    column = pa.array([[9] * 4, *rows], pa.list_(pa.int16(), 4))[1:]
    table = pa.table({"input_ids": column})
    with pa.ipc.new_file("t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    parquet.write_table(table, "t.parquet")
    for name in ("t.arrow", "t.parquet"):
        run_tokenize(name, name, append_eod=False, **IDS)
        assert documents(name) == [[row] for row in rows]


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(65_499, np.uint16), (65_500, np.int32), (2**31, np.int32)]
)
def test_the_vocabulary_decides_the_dtype(vocabulary, dtype, here):
    write_jsonl(here / "one.jsonl", [{"input_ids": [vocabulary - 1]}])
    run_tokenize("one.jsonl", "out", fields=("input_ids",), vocab_size=vocabulary, append_eod=False)
    assert IndexedDataset("out").dtype == dtype
    assert documents("out") == [[[vocabulary - 1]]]


def test_a_tokenizer_gives_vocabulary_and_eod_and_is_recorded(here):
    write_jsonl(here / "text.jsonl", [{"text": "Once upon a time"}, {"text": ""}])
    run_tokenize("text.jsonl", "text", tokenizer=TOKENIZER)
    rows = [document[0][:-1] if document else [] for document in documents("text")]
    write_jsonl(here / "rows.jsonl", [{"input_ids": row} for row in rows])
    run_tokenize("rows.jsonl", "out", fields=("input_ids",), tokenizer=TOKENIZER)
    assert pair("out") == pair("text")
    assert manifest("out")["tokenizer"] == manifest("text")["tokenizer"]
    write_jsonl(here / "rows.jsonl", [{"input_ids": [1]}, {"input_ids": [5, 70_000]}])
    with pytest.raises(BadRecordError, match=r"item 1 of field .* must be a token id below 4,096, got 70000"):
        run_tokenize("rows.jsonl", "bad", fields=("input_ids",), tokenizer=TOKENIZER)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_export_and_tokenize_are_inverse(form, here):
    run_tokenize("ids.jsonl", "first", **IDS)
    done = tokshard("export", "first", "--to", "parquet", "-o", "exported")
    assert done.returncode == 0, done.stderr
    (path,) = Path("exported").glob("*.parquet")
    if form == "jsonl":
        rows = parquet.read_table(path).column("input_ids").to_pylist()
        path = write_jsonl(here / "again.jsonl", [{"input_ids": row} for row in rows])
    done = tokshard("tokenize", path, *OPTIONS, "--no-append-eod", "-o", "second")
    assert done.returncode == 0, done.stderr
    assert pair("second") == pair("first")


# Runs


@pytest.mark.parametrize("name", ["ids.jsonl", "ids.parquet"])
def test_workers_and_interruptions_change_nothing(name, here):
    run_tokenize(name, "expected", unit_size=700, **IDS)

    class Killed(InlineExecutor):
        def run(self, *arguments):
            for number, event in enumerate(super().run(*arguments)):
                if number == 4:
                    raise WorkerError("the worker was killed")
                yield event

    with pytest.raises(WorkerError, match="killed"):
        run_tokenize(name, "resumed", executor=Killed(), unit_size=700, **IDS)
    with ProcessPool(2) as pool:
        report = run_tokenize(name, "resumed", executor=pool, unit_size=700, **IDS)
    assert report.units_reused
    for index in range(2):
        run_array_task(name, "array", task=ArrayTask(index, 2), unit_size=700, **IDS)
    run_finish(name, "array", unit_size=700, **IDS)
    for prefix in ("resumed", "array"):
        assert (pair(prefix), sidecars(prefix)) == (pair("expected"), sidecars("expected"))


def test_compressed_inputs_and_pipes_change_nothing(here):
    run_tokenize("ids.jsonl", "expected", **IDS)
    data = Path("ids.jsonl").read_bytes()
    Path("ids.jsonl.gz").write_bytes(gzip.compress(data))
    done = tokshard(
        "tokenize", "ids.jsonl.gz", "--field", "input_ids", "--tokenizer", "null:1000", "-o", "gz"
    )
    assert done.returncode == 0, done.stderr
    done = tokshard("tokenize", "-", *OPTIONS, "-o", "pipe", stdin=data)
    assert done.returncode == 0, done.stderr
    assert pair("gz") == pair("pipe") == pair("expected")


def test_a_pipe_contains_text_without_a_vocabulary_size(here):
    done = tokshard(
        "tokenize",
        "-",
        "--field",
        "input_ids",
        "--tokenizer",
        "null:9",
        "-o",
        "x",
        stdin=b'{"input_ids": [1]}\n',
    )
    code, error, hint = failure(done)
    assert (code, error) == (3, '<stdin>:1: item 0 of field "input_ids" must be a string, got a number')
    assert "if all records contain token ids, pass --vocab-size N and --eod ID" in hint


def test_subsets_do_not_depend_on_the_format(here):
    for name in ("ids.jsonl", "ids.parquet"):
        run_tokenize(name, name, holdout=0.3, limit=150, **IDS)
    assert [pair(f"ids.jsonl{split}") for split in ("_train", "_valid")] == [
        pair(f"ids.parquet{split}") for split in ("_train", "_valid")
    ]
    assert len(documents("ids.jsonl_train")) + len(documents("ids.jsonl_valid")) == 150
    for name in ("ids.jsonl", "ids.parquet"):
        run_tokenize(name, f"few-{name}", sample=0.4, max_tokens=400, force=True, **IDS)
        kept = [document for document in documents(f"few-{name}") if document]
        assert 0 < sum(len(document[0]) for document in kept) <= 400
        assert all(document[0][:-1] in ROWS for document in kept)


def test_several_fields_are_all_token_ids(here):
    write_jsonl(here / "two.jsonl", [{"a": [1, 2], "b": [3]}, {"a": [], "b": [4]}])
    run_tokenize("two.jsonl", "out", fields=("a", "b"), vocab_size=9, append_eod=False)
    assert documents("out_a_document") == [[[1, 2]], []]
    assert documents("out_b_document") == [[[3]], [[4]]]
    write_jsonl(here / "mixed.jsonl", [{"a": [1], "b": "text"}])
    with pytest.raises(BadRecordError, match='field "b" must be a list of token ids, got a string'):
        run_tokenize("mixed.jsonl", "mixed", fields=("a", "b"), vocab_size=9, append_eod=False)


def test_the_first_value_decides(here):
    records = [b"", b"no json", {}, {"input_ids": None}, {"input_ids": []}, {"input_ids": [7]}]
    write_jsonl(here / "late.jsonl", records)
    Path("empty.jsonl").touch()
    options = {"fields": ("input_ids",), "tokenizer": "null:9", "on_error": "skip", "append_eod": False}
    run_tokenize(["empty.jsonl", "late.jsonl"], "out", **options)
    assert documents("out") == [[], [[7]]]
    write_jsonl(here / "text.jsonl", [{"input_ids": "1 2"}, {"input_ids": [1]}])
    with pytest.raises(BadRecordError, match='item 0 of field "input_ids" must be a string') as caught:
        run_tokenize("text.jsonl", "text", fields=("input_ids",), tokenizer="null:9")
    assert caught.value.hint.startswith("tokenize text and token ids in separate runs")


def test_documents_over_the_limit_are_bad_records(here):
    rows = [[1] * 100, [1] * 101]
    parquet.write_table(table_of(rows, pa.list_(pa.int8())), "long.parquet")
    run_tokenize("long.parquet", "out", max_document_bytes=400, on_error="skip", **IDS)
    assert manifest("out")["counts"]["rejected"] == {"too-long": 1}


# Bad records and options

BAD = [
    ([5, -2], "token-ids", 'item 1 of field "input_ids" must be a token id below 1,000, got -2'),
    ([1000], "token-ids", 'item 0 of field "input_ids" must be a token id below 1,000, got 1000'),
    ([1, None], "item-type", 'item 1 of field "input_ids" must be a token id, got null'),
    (None, "field-null", 'field "input_ids" is null'),
]
BAD_JSON = [
    *BAD,
    ([2**64 - 1], "token-ids", f"must be a token id below 1,000, got {2**64 - 1}"),
    (
        [10**30],
        "item-type",
        r"item 0 of .* must be a token id, got 1e\+30",
    ),
    (
        [1, 2.0],
        "item-type",
        r"item 1 of .* must be a token id, got 2\.0",
    ),
    ([True], "item-type", "item 0 of .* must be a token id, got a boolean"),
    ([[1]], "item-type", "item 0 of .* must be a token id, got an array"),
    (["1"], "item-type", "item 0 of .* must be a token id, got '1'\n.*write the token ids as integers"),
    (["a"], "item-type", "item 0 of .* must be a token id, got a string\n.*leave out --vocab-size"),
    ("text", "field-type", 'field "input_ids" must be a list of token ids, got a string'),
    ({}, "field-type", 'field "input_ids" must be a list of token ids, got an object'),
]


@pytest.mark.parametrize(("value", "reason", "message"), BAD_JSON)
def test_bad_values_of_json_lines(value, reason, message, here):
    write_jsonl(here / "bad.jsonl", [{"input_ids": [3]}, {"input_ids": value}, {"input_ids": [4]}])
    with pytest.raises(BadRecordError, match=message) as caught:
        run_tokenize("bad.jsonl", "bad", **IDS)
    assert (caught.value.line, caught.value.reason) == (2, reason)
    run_tokenize("bad.jsonl", "out", on_error="skip", **IDS)
    assert documents("out") == [[[3, EOD]], [[4, EOD]]]
    assert manifest("out")["counts"]["rejected"] == {reason: 1}


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int16())])
@pytest.mark.parametrize(("value", "reason", "message"), BAD)
def test_bad_values_of_tables(kind, value, reason, message, here):
    rows = [[3], value, [], value, [4]]
    parquet.write_table(pa.table({"input_ids": pa.array(rows, kind)}), "bad.parquet")
    with pytest.raises(BadRecordError, match=message) as caught:
        run_tokenize("bad.parquet", "bad", **IDS)
    assert (caught.value.line, caught.value.reason) == (2, reason)
    run_tokenize("bad.parquet", "out", on_error="skip", **IDS)
    assert documents("out") == [[[3, EOD]], [], [[4, EOD]]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.string(), pa.list_(pa.list_(pa.int8()))])
def test_columns_of_other_types_are_refused(kind, here):
    parquet.write_table(pa.table({"input_ids": pa.array([], kind)}), "bad.parquet")
    with pytest.raises(InputError, match='column "input_ids" must contain lists of token ids, got'):
        run_tokenize("bad.parquet", "bad", **IDS)


@pytest.mark.parametrize("wrong", [-1, 0, 9_000, 2**31 - 1])
def test_damaged_offsets_of_arrow_files_are_refused(wrong, here):
    table = pa.table({"input_ids": [[1] * 701, [2] * 2]})
    with pa.ipc.new_file("bad.arrow", table.schema) as writer:
        writer.write_table(table)
    data = Path("bad.arrow").read_bytes()
    offsets = np.array([0, 701, 703], np.int32)
    damaged = data.replace(offsets.tobytes(), np.array([1, wrong, 703], np.int32).tobytes())
    assert damaged != data
    Path("bad.arrow").write_bytes(damaged)
    with pytest.raises(InputError, match='column "input_ids" contradicts itself') as caught:
        run_tokenize("bad.arrow", "bad", **IDS)
    assert caught.value.hint == "fetch the file again: it is incomplete or damaged"


def test_token_ids_inside_structs_and_lists_are_read(here):
    nested = pa.array([{"ids": [1, 2]}, None, {"ids": [3]}], pa.struct([("ids", pa.list_(pa.int32()))]))
    lists = pa.array([[[1], [2]], [[5]], []], pa.list_(pa.list_(pa.int64())))
    parquet.write_table(pa.table({"meta": nested, "turns": lists}), "nested.parquet")
    for field, expected in (("meta.ids", [[[1, 2]], [[3]]]), ("turns.0", [[[1]], [[5]]])):
        options = {"fields": (field,), "vocab_size": 9, "append_eod": False, "on_error": "skip"}
        run_tokenize("nested.parquet", field, **options)
        assert documents(field) == expected
        assert sum(manifest(field)["counts"]["rejected"].values()) == 1


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ((), "the vocabulary is required for token ids (field input_ids)", "pass --tokenizer PATH"),
        (("--vocab-size", 9), "--vocab-size requires the id of the EOD token to append", "pass --eod ID, or"),
        (("--vocab-size", 9, "--eod", "9"), "--eod must be a token id below 9 with", "pass --eod ID"),
        (("--vocab-size", 0), "--vocab-size must be at least 1, got 0", None),
        (
            ("--vocab-size", 9, "--eod", 8, "--encoder", "fast"),
            "--encoder cannot be used with token ids (field input_ids), which are written as they are",
            "leave out --encoder",
        ),
        (
            ("--tokenizer", TOKENIZER, "--special-tokens"),
            "--special-tokens cannot be used",
            "leave out --special",
        ),
        (
            ("--tokenizer", TOKENIZER, "--preset", "megatron"),
            "--preset megatron cannot be used with token ids (field input_ids)",
            "leave out --preset megatron",
        ),
        (
            ("--tokenizer", TOKENIZER, "--vocab-size", 9),
            "--vocab-size requires the file of a TikTokenizer",
            "leave",
        ),
    ],
)
def test_options_that_do_not_fit_token_ids(options, error, hint, here):
    code, message, advice = failure(
        tokshard("tokenize", "ids.jsonl", "--field", "input_ids", "-o", "x", *options)
    )
    assert code == 2
    assert error in message
    assert hint is None or hint in advice


def test_the_vocabulary_size_belongs_to_the_run(here):
    run_tokenize("ids.jsonl", "out", **IDS)
    with pytest.raises(OutputExistsError, match="--vocab-size was 1000 and is now 1001"):
        run_tokenize("ids.jsonl", "out", **{**IDS, "vocab_size": 1001})
    assert run_tokenize("ids.jsonl", "out", **IDS).action == "found"


def test_ids_that_end_with_eod_are_reported(here):
    write_jsonl(here / "ended.jsonl", [{"input_ids": [1, EOD]}, {"input_ids": [2, EOD]}])
    (warning,) = run_tokenize("ended.jsonl", "twice", **IDS).warnings
    assert "already contain the EOD token 2 times" in warning
    assert warning.endswith("pass --no-append-eod")
    assert not run_tokenize("ended.jsonl", "once", append_eod=False, **IDS).warnings
    assert documents("once") == [[[1, EOD]], [[2, EOD]]]


# After tokenize


def test_the_other_commands_treat_it_as_any_dataset(here):
    def run(*arguments):
        done = tokshard(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    planned = run("tokenize", "ids.jsonl", *OPTIONS, "-o", "a", "--dry-run")
    assert "token ids below 1,000 are written as they are" in planned
    written = run("tokenize", "ids.jsonl", *OPTIONS, "-o", "a")
    assert "encoder: none, 200 documents of token ids written as they are" in written
    run("tokenize", "ids.parquet", *OPTIONS, "-o", "b")
    run("merge", "a", "b", "-o", "ab")
    for prefix in ("a", "b", "ab"):
        assert "no problems found" in run("verify", prefix, "--level", "deep")
    shown = run("inspect", "a")
    assert "200 documents of token ids, written as they are" in shown
    assert f"token {EOD} ends all" in shown
    run("build-indices", "ab", "--seq-length", "16", "--split", "1,0,0", "--epochs", "1")
    number = next(number for number, row in enumerate(ROWS) if row)
    assert f"ids.jsonl:{number + 1}" in run("trace", "a", "--document", number)
    traced = json.loads(run("trace", "ab", "--document", len(ROWS) + number, "--json"))
    assert "ids.parquet" in json.dumps(traced)
    run("export", "ab", "--to", "olmo", "-o", "exported")
    assert "ids below 1,000" in shown


def test_special_tokens_are_expected_anywhere_in_rows_of_ids(here):
    eod_id = load_tokenizer(str(TOKENIZER)).identity.eod_id
    write_jsonl(here / "chats.jsonl", [{"input_ids": [eod_id, 1, eod_id, 2]}] * 3)
    options = ("--field", "input_ids", "--tokenizer", TOKENIZER)
    for prefix in ("a", "b"):
        assert tokshard("tokenize", "chats.jsonl", *options, "-o", prefix).returncode == 0
    assert tokshard("merge", "a", "b", "-o", "ab").returncode == 0
    for prefix in ("a", "ab"):
        done = tokshard("verify", prefix, "--level", "deep")
        assert (done.returncode, "no problems found" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(("vocabulary", "dtype"), [(200, "uint8"), (65_520, "uint16"), (70_000, "uint32")])
def test_exported_dtypes_are_those_of_the_vocabulary(vocabulary, dtype, here):
    write_jsonl(here / "few.jsonl", [{"input_ids": [1, 2, 3]}])
    run_tokenize("few.jsonl", "few", fields=("input_ids",), vocab_size=vocabulary, append_eod=False)
    assert tokshard("export", "few", "--to", "olmo", "-o", "exported").returncode == 0
    (tokens,) = Path("exported").glob("*.npy")
    assert np.fromfile(tokens, dtype).tolist() == [1, 2, 3]
