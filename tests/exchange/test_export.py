"""The command's rules: what is up to date, replaced and refused; dtypes, ids, and the manifest."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support import slow_exports
from support.file_changes import age
from support.plain_datasets import Plain
from tokshard.errors import (
    InputError,
    IntegrityError,
    MissingFileError,
    OlderVersionError,
    OutputExistsError,
    UsageError,
)
from tokshard.exchange.manifest import ExportManifest
from tokshard.storage.digest import seal_of

GOLDEN = Path(__file__).parents[1] / "golden/formats/export-2.json"
DOCUMENTS = [[[5, 6, 7], [1, 0]], [], [[8, 0]], [[3, 3, 3, 3]], [[9]]]
FLAT = [[5, 6, 7, 1, 0], [], [8, 0], [3, 3, 3, 3], [9]]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Plain("uint16", DOCUMENTS).write("d")
    return tmp_path


def export(to="olmo", output="out", source="d", **options):
    return tokshard.export(tokshard.ExportOptions(source=source, to=to, output=output, **options))


def test_an_export_is_written_once_and_replaced_on_demand(place):
    assert export().action == "written"
    before = {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()}
    assert export().action == "found"
    assert {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()} == before
    with pytest.raises(OutputExistsError, match="shard_tokens was 1073741824 and is now 6"):
        export(shard_tokens=6)
    with pytest.raises(OutputExistsError, match="format was olmo and is now datatrove"):
        export("datatrove")
    assert export(shard_tokens=6, force=True).shards == 3
    assert export(force=True).shards == 1
    assert sorted(os.listdir("out")) == [".tokshard", "part-0-00000.csv.gz", "part-0-00000.npy"]


def test_a_moved_dataset_is_the_same_and_a_changed_one_is_not(place):
    export()
    os.mkdir("elsewhere")
    for suffix in ("bin", "idx"):
        os.rename(f"d.{suffix}", f"elsewhere/d.{suffix}")
    assert export(source="elsewhere/d").action == "found"
    Plain("uint16", [*DOCUMENTS, [[4]]]).write("elsewhere/d")
    with pytest.raises(OutputExistsError, match="bin_bytes was 24 and is now 26"):
        export(source="elsewhere/d")
    Plain("uint16", [[[5, 6, 7], [1, 4]], *DOCUMENTS[1:]]).write("elsewhere/d")
    with pytest.raises(OutputExistsError, match=r"d: the \.bin file changed"):
        export(source="elsewhere/d")


def test_files_of_others_are_refused_and_kept(place):
    os.mkdir("out")
    Path("out/mine.npy").write_bytes(b"mine")
    Path("out/notes.txt").write_text("notes")
    with pytest.raises(OutputExistsError, match=r"out/mine\.npy exists already and has no manifest"):
        export()
    report = export(force=True)
    assert report.warnings == ("out has 1 file that readers of the format read, too: mine.npy",)
    assert Path("out/mine.npy").read_bytes() == b"mine"
    assert export("datatrove", "other").warnings == ()
    Path("file").touch()
    with pytest.raises(UsageError, match="--output must be a directory, got the file file"):
        export(output="file")


def test_a_damaged_export_is_found(place):
    export()
    with open("out/part-0-00000.npy", "ab") as file:
        file.write(b"x")
    with pytest.raises(IntegrityError, match="must have 24 bytes by its manifest, got 25"):
        export()
    os.unlink("out/part-0-00000.npy")
    with pytest.raises(IntegrityError, match="file not found"):
        export()
    export(force=True)
    assert slow_exports.written("out") == slow_exports.olmo(FLAT, dtype="uint16", limit=1 << 30, source="d")


def test_an_export_of_an_earlier_version_is_not_replaced_even_on_demand(place):
    export(shard_tokens=6)
    age("out/.tokshard/export.json")
    before = sorted(os.listdir("out"))
    for options in ({}, {"force": True}):
        with pytest.raises(OlderVersionError, match="was written by an earlier version") as caught:
            export(**options)
        assert caught.value.hint == "remove the directory and export again"
        assert sorted(os.listdir("out")) == before


@pytest.mark.parametrize(
    ("to", "dtype", "vocabulary", "expected"),
    [
        ("olmo", "uint16", None, "uint16"),
        ("olmo", "uint16", 256, "uint8"),
        ("olmo", "uint16", 257, "uint16"),
        ("olmo", "int32", 65536, "uint16"),
        ("olmo", "int32", 65537, "uint32"),
        ("olmo", "int32", None, "uint32"),
        ("olmo", "int64", None, "uint64"),
        ("nanogpt", "uint8", None, "uint16"),
        ("nanogpt", "int32", 50257, "uint16"),
        ("datatrove", "uint16", 65537, "uint32"),
        ("datatrove", "int64", None, "uint32"),
        ("parquet", "uint16", None, "int32"),
        ("parquet", "int64", None, "int64"),
    ],
)
def test_the_dtype_holds_the_vocabulary(tmp_path, to, dtype, vocabulary, expected):
    Plain(dtype, DOCUMENTS).write(tmp_path / "d")
    options = {"bos_id": 0} if to == "nanogpt" else {}
    report = export(to, tmp_path / "out", tmp_path / "d", vocab_size=vocabulary, **options)
    assert report.manifest.parameters.dtype == expected
    assert ("unknown" in report.dtype_detail) == (vocabulary is None)


def test_ids_that_do_not_fit_are_named(place):
    Plain("int32", [[[1, 2]], [], [[3, 70000]]]).write("large")
    with pytest.raises(
        InputError, match="document 2 of large has the token id 70000, which does not fit uint16"
    ):
        export(source="large", dtype="uint16")
    assert not os.path.exists("out/.tokshard")
    Plain("int32", [[[1, 2]], [[-3]]]).write("negative")
    for to in ("olmo", "datatrove", "parquet"):
        with pytest.raises(InputError, match="document 1 of negative has the token id -3; ids must not be"):
            export(to, source="negative")
    Plain("float32", [[[1.0]]]).write("floats")
    with pytest.raises(InputError, match="the tokens of floats must be integers, got float32"):
        export(source="floats")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": "megatron"}, "--to must be one of olmo, nanogpt, datatrove, parquet"),
        ({"bos_id": 0}, "--bos-id requires --to nanogpt"),
        ({"val_shards": 0}, "--val-shards requires --to nanogpt"),
        ({"tokenizer_name": "gpt2"}, "--tokenizer-name requires --to datatrove"),
        ({"to": "datatrove", "tokenizer_name": "a|b"}, "--tokenizer-name must be printable text"),
        ({"split": "train"}, "--split requires --samples"),
        ({"last_label": False}, "--last-label requires --samples"),
        ({"shard_tokens": 0}, "--shard-tokens must be at least 1, got 0"),
        ({"shard_tokens": 5, "shard_size": 10}, "--shard-tokens cannot be used with --shard-size"),
        ({"name": "../x"}, "--name must be the beginning of a file name"),
        ({"output": "s3://bucket/x"}, "export writes to a file system"),
        ({"dtype": "int32"}, "--dtype must be one of uint8, uint16, uint32, uint64, got 'int32'"),
        ({"to": "nanogpt"}, "--bos-id is required: the EOD token of d is unknown"),
        ({"to": "nanogpt", "bos_id": 70000}, "--bos-id must fit uint16, got 70000"),
        ({"to": "nanogpt", "bos_id": 0, "dtype": "uint32", "header": "fineweb"}, "requires uint16 tokens"),
        (
            {"to": "nanogpt", "bos_id": 0, "shard_tokens": 2**31},
            "--shard-tokens must be at most 2,147,483,647",
        ),
        ({"to": "nanogpt", "samples": True}, "samples cannot be exported to nanogpt"),
        ({"to": "datatrove", "vocab_size": 2**33}, "does not fit uint32"),
    ],
)
def test_options_that_cannot_be_are_refused(place, options, text):
    with pytest.raises(UsageError, match=text.replace("|", r"\|")):
        export(**options)
    assert not os.path.exists("out")


def test_sources_that_cannot_be_exported_are_refused(place):
    with pytest.raises(MissingFileError, match="dataset not found: nothing"):
        export(source="nothing")
    Plain("uint16", [[[1, 2]]], [3]).write("modes")
    with pytest.raises(IntegrityError, match="must be a text index, got a multimodal index"):
        export(source="modes")
    tokshard.verify(tokshard.VerifyOptions(path="d", adopt=True))
    with pytest.raises(MissingFileError, match="no blend, index or index cache found: d"):
        export("parquet", samples=True)


def test_a_tokenized_dataset_is_exported_with_the_numbers_of_its_documents(place):
    texts = ["one two", "three", "four"]
    Path("t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Path(__file__).parents[2] / "sample_data/tokenizer.json"
    options = tokshard.TokenizeOptions(inputs=("t.jsonl",), output="t", tokenizer=str(tokenizer), workers=1)
    tokshard.tokenize(options)
    export("parquet", "p", "t")
    rows = slow_exports.written("p")["train-00000-of-00001.parquet"]
    assert [row["document_id"] for row in rows] == [0, 1, 2]
    export("olmo", "o", "t")
    lines = gzip.decompress(Path("o/part-0-00000.csv.gz").read_bytes()).decode().split("\r\n")
    assert [line.split(",", 2)[2] for line in lines[:3]] == ["0,t,1", "1,t,2", "2,t,3"]
    export("nanogpt", "n", "t", val_shards=0)
    report = export("datatrove", "d-out", "t")
    assert report.dtype_detail == "holds the vocabulary of 4,096 tokens"
    assert Path("d-out/t.ds.metadata").read_text().startswith(f"{tokenizer}|2\n")
    stream = np.fromfile("n/t_train_000000.bin", "<u2", offset=1024)
    assert stream[0] == 0
    assert np.count_nonzero(stream == 0) == 3


def test_a_dry_run_writes_nothing_and_counts_files(place):
    for to, options in (("olmo", {}), ("datatrove", {}), ("parquet", {}), ("nanogpt", {"bos_id": 0})):
        chosen = tokshard.ExportOptions(source="d", to=to, output=to, shard_tokens=5, **options)
        planned = tokshard.export(chosen, dry_run=True)
        assert (planned.action, planned.state, os.path.exists(to)) == ("planned", "new", False)
        written = tokshard.export(chosen)
        assert abs(planned.files - written.files) <= (to == "nanogpt")
        assert (planned.records, planned.source_tokens) == (written.records, written.source_tokens)
        assert planned.parameters == written.manifest.parameters
        assert tokshard.export(chosen, dry_run=True).state == "up-to-date"
        changed = tokshard.ExportOptions(source="d", to=to, output=to, shard_tokens=6, **options)
        assert tokshard.export(changed, dry_run=True).state == "exists"


def test_an_empty_dataset_is_exported(place):
    Plain("uint16", []).write("empty")
    Plain("uint16", [[], []]).write("blank")
    assert export(source="empty", output="a").files == 0
    assert export(source="blank", output="b").files == 0
    assert export("nanogpt", "c", "empty", bos_id=0).files == 0
    assert export("datatrove", "e", "empty").files == 4
    assert export("parquet", "f", "empty").files == 1
    assert tokshard.verify("a").sound


def test_the_manifest_is_read_and_written_back():
    content = GOLDEN.read_bytes()
    manifest = ExportManifest.from_bytes(content, str(GOLDEN))
    assert manifest.to_bytes() == content
    assert manifest.seal == seal_of(manifest.to_json())
