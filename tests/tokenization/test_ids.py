"""P56: --id-field records the own id of each document, and a whole run keeps them in order.

Workers, units, interruptions, several fields, limits, merges and remote stores change no byte of the ids.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from support.command_line import json_of, tokshard
from support.file_changes import edit_manifest, flip
from support.tokenize_runs import (
    documents,
    dry_run,
    manifest,
    pair,
    run_array_task,
    run_finish,
    run_tokenize,
    write_jsonl,
)
from tokshard import ArrayTask, InspectOptions, MergeOptions, VerifyOptions, inspect, merge, verify
from tokshard.dataset.document_ids import DocumentIds
from tokshard.errors import BadRecordError, InputError, IntegrityError, OutputExistsError, UsageError
from tokshard.storage.digest import file_digest
from tokshard.tokenization.workers.pool import ProcessPool

FILES = ("ids.bin", "ids-index.bin")


def corpus(path, count=300, seed=0):
    """Write records with ids of all kinds, some of them twice; return the ids."""
    draw = random.Random(seed)
    pool = ["", "漢字 🙂", "x" * 4096, -1, 2**64 - 1, *range(40), *(f"urn:{n}" for n in range(200))]
    ids = [draw.choice(pool) for _ in range(count)]
    records = [
        {"text": "word " * draw.randrange(9), "title": f"t{n}", "meta": {"id": own}}
        for n, own in enumerate(ids)
    ]
    write_jsonl(path, records)
    return [str(own) for own in ids]


def ids_of(prefix):
    found = DocumentIds.open(str(prefix))
    return found.slice(0, len(found))


def files_of(prefix):
    return [Path(f"{prefix}.tokshard/{name}").read_bytes() for name in FILES]


def findings(prefix, level="deep"):
    return {finding.code for finding in verify(VerifyOptions(str(prefix), level=level)).findings}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ids_are_those_of_the_records_and_change_no_token(place):
    ids = corpus(Path("a.jsonl"))
    run_tokenize("a.jsonl", "plain", unit_bytes=900)
    run_tokenize("a.jsonl", "web", unit_bytes=900, id_field="meta.id")
    assert ids_of("web") == ids
    assert pair("web") == pair("plain")
    found = manifest("web")
    assert found["options"]["id_field"] == "meta.id"
    assert found["files"]["ids.bin"]["bytes"] == sum(len(own.encode()) for own in ids)
    assert found["files"]["ids-index.bin"]["bytes"] == 24 * len(ids)
    assert "id_field" not in manifest("plain")["options"]
    assert not {"ids.bin", "ids-index.bin"} & {*manifest("plain")["files"], *os.listdir("plain.tokshard")}
    assert DocumentIds.open("plain") is None
    opened = DocumentIds.open("web")
    for own in {*ids, "none"}:
        assert opened.find(own).tolist() == [n for n, other in enumerate(ids) if other == own]
    assert findings("web") <= {"tokenizer-unchecked"}
    counts = verify(VerifyOptions("web", level="deep")).products[0].counts
    assert (counts["ids"], counts["repeated_ids"]) == (len(ids), len(ids) - len(set(ids)))
    document = inspect(InspectOptions("web", document=7))
    assert document.id == ids[7]


def test_workers_units_compression_and_array_tasks_give_identical_files(place):
    corpus(Path("a.jsonl"))
    Path("b.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    inputs = ["a.jsonl", "b.jsonl.gz"]
    run_tokenize(inputs, "one", workers=1, id_field="meta.id")
    with ProcessPool(3) as pool:
        run_tokenize(inputs, "three", executor=pool, unit_bytes=2000, id_field="meta.id")
    for index in range(2):
        task = ArrayTask(index, 2)
        run_array_task(inputs, "array", task=task, finish=False, unit_bytes=5000, id_field="meta.id")
    run_finish(inputs, "array", tasks=2, unit_bytes=5000, id_field="meta.id")
    assert files_of("one") == files_of("three") == files_of("array")


def test_each_field_has_the_ids_and_records_without_one_are_in_no_output(place):
    records = [{"text": f"text {n}", "title": f"t{n}", "id": n} for n in range(9)]
    records[2]["id"], records[5]["id"] = None, 1.5
    del records[7]["id"]
    write_jsonl(Path("a.jsonl"), records)
    options = {"fields": ("text", "title"), "id_field": "id", "unit_bytes": 60}
    with pytest.raises(BadRecordError, match=r'a.jsonl:3.* field "id" is null') as caught:
        run_tokenize("a.jsonl", "web", **options)
    assert caught.value.reason == "id-missing"
    report = run_tokenize("a.jsonl", "web", on_error="skip", **options)
    assert report.rejected == {"id-missing": 2, "id-type": 1}
    for name in ("text", "title"):
        assert ids_of(f"web_{name}_document") == ["0", "1", "3", "4", "6", "8"]
    lines = Path("web_text_document.tokshard/rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [3, 6, 8]


def test_finished_units_of_another_id_field_are_not_reused(place):
    records = [{"text": f"text {n}", "id": n, "uid": f"u{n}"} for n in range(40)]
    path = write_jsonl(Path("a.jsonl"), [*records, b"broken"])
    options = {"unit_bytes": 300, "workers": 1}
    for id_field in ("id", None, "uid"):
        with pytest.raises(BadRecordError):
            run_tokenize(path, "web", id_field=id_field, **options)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"broken", b'{"text": "x", "id": "last", "uid": "end"}'))
    report = run_tokenize(path, "web", id_field="uid", **options)
    assert ids_of("web") == [*(f"u{n}" for n in range(40)), "end"]
    assert report.units_reused > 0
    # Another field of ids is another dataset: an existing output is not replaced by accident.
    with pytest.raises(OutputExistsError, match="--id-field was 'uid' and is now 'id'"):
        run_tokenize(path, "web", id_field="id", **options)
    run_tokenize(path, "web", id_field=None, force=True, **options)
    assert DocumentIds.open("web") is None
    assert not {*FILES} & {*os.listdir("web.tokshard")}


def test_limits_and_samples_keep_the_ids_of_their_documents(place):
    ids = corpus(Path("a.jsonl"))
    run_tokenize("a.jsonl", "few", limit=123, unit_bytes=1500, id_field="meta.id")
    assert ids_of("few") == ids[:123]
    report = run_tokenize("a.jsonl", "some", max_tokens=2000, unit_bytes=1500, id_field="meta.id")
    assert ids_of("some") == ids[: report.documents]
    assert 0 < report.documents < len(ids)


def test_each_split_has_the_ids_of_its_documents_in_every_field(place):
    records = [{"text": f"text {n}", "title": f"t{n}", "id": f"i{n}"} for n in range(120)]
    write_jsonl(Path("a.jsonl"), records)
    fields = ("text", "title")
    report = run_tokenize("a.jsonl", "web", holdout=0.3, fields=fields, unit_bytes=700, id_field="id")
    found = {}
    for prefix in (output.prefix for output in report.outputs if output.field == "text"):
        found[prefix] = ids_of(prefix)
        assert files_of(prefix) == files_of(prefix.replace("text", "title"))
        texts = [bytes(tokens[:-1]).decode() for ((*tokens,),) in documents(prefix)]
        assert texts == [f"text {own.removeprefix('i')}" for own in found[prefix]]
        assert findings(prefix) <= {"tokenizer-unchecked"}
    assert len(found) == 2
    assert sorted(own for ids in found.values() for own in ids) == sorted(record["id"] for record in records)


@pytest.mark.parametrize("how", ["parquet", "arrow"])
def test_ids_of_a_table_and_its_inputs_are_verified(place, how):
    pa = pytest.importorskip("pyarrow")
    ids = [*range(50), None, *range(50)]
    table = pa.table({"text": [f"text {n}" for n in range(len(ids))], "id": pa.array(ids, pa.int64())})
    if how == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, "a.table", row_group_size=20)
    else:
        with pa.ipc.new_file("a.table", table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
    run_tokenize("a.table", "web", on_error="skip", unit_bytes=1, id_field="id")
    assert ids_of("web") == [str(own) for own in ids if own is not None]
    assert findings("web") <= {"tokenizer-unchecked"}
    with pytest.raises(InputError, match='column "uid" not found'):
        run_tokenize("a.table", "other", id_field="uid")


def test_a_merge_keeps_the_ids_if_all_documents_have_some(place):
    ids = corpus(Path("a.jsonl"), 40)
    write_jsonl(Path("none.jsonl"), [])
    run_tokenize("a.jsonl", "a", id_field="meta.id")
    run_tokenize("a.jsonl", "plain")
    run_tokenize("none.jsonl", "none")
    merge(MergeOptions(("a", "none", "a"), "m"))
    assert ids_of("m") == ids * 2
    merge(MergeOptions(("m", "a"), "mm"))
    assert ids_of("mm") == ids * 3
    assert DocumentIds.open("mm").find(ids[3]).tolist() == [
        n for n, own in enumerate(ids * 3) if own == ids[3]
    ]
    assert findings("mm") <= {"tokenizer-unchecked"}
    report = merge(MergeOptions(("a", "plain"), "mixed"))
    assert report.warnings == ("plain: no recorded ids, so the output has none",)
    assert DocumentIds.open("mixed") is None


def test_a_merge_refuses_damaged_ids(place):
    corpus(Path("a.jsonl"), 20)
    run_tokenize("a.jsonl", "a", id_field="meta.id")
    for name in FILES:
        flip(f"a.tokshard/{name}", 30)
        with pytest.raises(IntegrityError, match=f"{name} is damaged"):
            merge(MergeOptions(("a", "a"), "m"))
        flip(f"a.tokshard/{name}", 30)


def test_verify_finds_each_damaged_byte_of_the_files_of_ids(place):
    write_jsonl(Path("a.jsonl"), [{"text": "a", "id": own} for own in ("a", "é", "", 7)])
    run_tokenize("a.jsonl", "a", id_field="id")
    for name in FILES:
        path = f"a.tokshard/{name}"
        for offset in range(os.path.getsize(path)):
            flip(path, offset)
            assert "file-digest" in findings("a", "digest"), (name, offset)
            flip(path, offset)


def test_verify_compares_ids_and_index_also_if_both_have_their_digests(place):
    """What a wrong writer would leave: the digests in the manifest are those of the damaged files."""
    write_jsonl(Path("a.jsonl"), [{"text": "a", "id": own} for own in ("a", "é", "", 7)])
    run_tokenize("a.jsonl", "a", id_field="id")
    size = os.path.getsize("a.tokshard/ids-index.bin")

    def reseal(name):
        digest = file_digest(f"a.tokshard/{name}")
        edit_manifest("a", lambda value: value["files"][name].update(xxh3_128=digest))

    for name, offset in [
        ("ids.bin", 0),
        ("ids-index.bin", 0),
        ("ids-index.bin", size - 8),
        ("ids-index.bin", 40),
    ]:
        flip(f"a.tokshard/{name}", offset, 3)
        reseal(name)
        assert findings("a") - {"tokenizer-unchecked"} == {"ids-index"}, (name, offset)
        flip(f"a.tokshard/{name}", offset, 3)
        reseal(name)
    assert findings("a") <= {"tokenizer-unchecked"}
    edit_manifest("a", lambda value: value["files"].pop("ids.bin"))
    assert "manifest-count" in findings("a", "structure")


def test_the_field_must_have_keys_and_the_preset_of_megatron_takes_it(place):
    with pytest.raises(UsageError, match=r"--id-field must name keys that are not empty, got 'meta\.\.id'"):
        dry_run("a.jsonl", "x", id_field="meta..id")
    write_jsonl(Path("a.jsonl"), [{"text": "a", "id": n} for n in range(3)])
    done = tokshard(
        "tokenize", "--preset", "megatron", "--input", "a.jsonl", "--output-prefix", "web", "--workers", "1",
        "--append-eod", "--id-field", "id", "--json",
    )  # fmt: skip
    assert json_of(done)["documents"] == 3
    assert ids_of("web_text_document") == ["0", "1", "2"]


def test_ids_are_uploaded_and_removed_with_an_output_in_a_store(place, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    write_jsonl(Path("a.jsonl"), [{"text": "a", "id": n} for n in range(5)])
    run_tokenize("a.jsonl", "memory://ids/web", id_field="id")
    assert ids_of("memory://ids/web") == ["0", "1", "2", "3", "4"]
    run_tokenize("a.jsonl", "memory://ids/web", force=True)
    names = {path.rpartition("/")[2] for path in memory.find("/ids")}
    assert names == {"web.bin", "web.idx", "manifest.json", "provenance.bin", "units.jsonl"}
