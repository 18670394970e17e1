"""P55: --holdout divides documents by a hash of their text or key, so copies are always in one split."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from pyarrow import parquet

from support.slow_subsets import findings
from support.tokenize_runs import documents, manifest, pair, run_tokenize, write_jsonl
from tokshard import MergeOptions, TraceOptions, merge, trace
from tokshard.errors import BadRecordError, InputError, OutputExistsError
from tokshard.text.tokenize.workers.executor import InlineExecutor

SPLITS = ("_train", "_valid")
EOD = 256


def texts(prefix: Path | str) -> list[str]:
    """Return the documents of a dataset of bytes as texts."""
    return [
        bytes(token for sequence in document for token in sequence if token != EOD).decode()
        for document in documents(prefix)
    ]


def tokenize(*arguments, **options):
    return run_tokenize(*arguments, executor=InlineExecutor(), **options)


def test_copies_are_in_one_split_and_the_share_is_kept(tmp_path):
    """In several files, as a list of one string, in any order; the share is within 4 standard deviations."""
    words = [f"document {number}" for number in range(2000)]
    first = write_jsonl(tmp_path / "a.jsonl", [{"text": word} for word in words])
    second = write_jsonl(tmp_path / "b.jsonl", [{"text": [word]} for word in reversed(words)])
    table = str(tmp_path / "c.parquet")
    parquet.write_table(pa.table({"text": words}), table)
    tokenize([first, second, table], str(tmp_path / "out"), holdout=0.1, unit_size=5000)
    tokenize(second, str(tmp_path / "alone"), holdout=0.1)
    found = [texts(tmp_path / f"out{suffix}") for suffix in SPLITS]
    expected = [word for word in words if xxhash.xxh3_64_intdigest(word.encode(), 1234) < 0.1 * 2**64]
    assert sorted(found[1]) == sorted(expected * 3)
    assert not set(found[0]) & set(found[1])
    assert len(found[0]) + len(found[1]) == 6000
    assert texts(tmp_path / "alone_valid") == expected[::-1]
    assert abs(len(expected) - 200) < 4 * (2000 * 0.1 * 0.9) ** 0.5
    tokenize(first, str(tmp_path / "seed"), holdout=0.1, holdout_seed=7)
    assert texts(tmp_path / "seed_valid") != expected


def test_several_fields_are_hashed_together_and_have_outputs_of_each_split(tmp_path):
    records = [{"text": f"t{n % 7}", "title": [f"a{n % 3}", "b"]} for n in range(42)]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    report = tokenize(path, str(tmp_path / "out"), fields=("text", "title"), holdout=0.4)
    names = [f"{tmp_path}/out{split}_{field}_document" for split in SPLITS for field in ("text", "title")]
    assert [output.path_prefix for output in report.outputs] == names
    assert [(output.dataset.split, output.dataset.field) for output in report.outputs] == [
        ("train", "text"), ("train", "title"), ("valid", "text"), ("valid", "title")
    ]  # fmt: skip
    for number, split in enumerate(SPLITS):
        chosen = []
        for record in records:
            content = (
                record["text"].encode() + b"\xfe" + b"\xff".join(text.encode() for text in record["title"])
            )
            if (xxhash.xxh3_64_intdigest(content, 1234) < 0.4 * 2**64) == number:
                chosen.append(record)
        assert texts(f"{tmp_path}/out{split}_text_document") == [record["text"] for record in chosen]
        assert texts(f"{tmp_path}/out{split}_title_document") == ["".join(r["title"]) for r in chosen]
        for field in ("text", "title"):
            assert findings(f"{tmp_path}/out{split}_{field}_document") == set()


def test_keys_may_be_strings_and_integers_and_others_are_rejected(tmp_path):
    good = [{"text": "x", "meta": {"url": f"u{n}"}} for n in range(20)] + [
        {"text": "y", "meta": {"url": number}} for number in (7, "7", -3, "-3", 2**64 - 1)
    ]
    bad = [{"text": "x"}, {"text": "x", "meta": {"url": None}}, {"text": "x", "meta": {"url": 1.5}}]
    path = write_jsonl(tmp_path / "a.jsonl", [*good, *bad])
    options = {"holdout": 0.5, "holdout_key": "meta.url"}
    with pytest.raises(BadRecordError, match="not found"):
        tokenize(path, str(tmp_path / "out"), **options)
    report = tokenize(path, str(tmp_path / "out"), on_error="skip", **options)
    assert report.counts.rejected == {"key-missing": 2, "key-type": 1}
    valid = [
        record
        for record in good
        if xxhash.xxh3_64_intdigest(str(record["meta"]["url"]).encode(), 1234) < 2**63
    ]
    assert texts(tmp_path / "out_valid") == [record["text"] for record in valid]


def test_the_column_of_a_key_must_exist_and_hold_strings_or_integers(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"text": ["a"], "share": [0.5], "url": ["u"]}), path)
    with pytest.raises(InputError, match='column "share" must contain strings or integers') as raised:
        tokenize(path, str(tmp_path / "out"), holdout=0.5, holdout_key="share")
    assert raised.value.hint == "pass a column of keys with --holdout-key"
    with pytest.raises(InputError, match='column "urls" not found') as raised:
        tokenize(path, str(tmp_path / "out"), holdout=0.5, holdout_key="urls")
    assert raised.value.hint == "choose a field with --holdout-key: text, url"


def test_documents_are_traced_back_and_lines_are_found_in_their_split(tmp_path):
    lines = [json.dumps({"text": f"n{n}"}).encode() if n % 5 else b"" for n in range(30)]
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    tokenize(path, str(tmp_path / "out"), holdout=0.4, sample=0.8, unit_size=90)
    seen = {}
    for split in SPLITS:
        prefix = f"{tmp_path}/out{split}"
        for document, text in enumerate(texts(prefix)):
            origin = trace(TraceOptions(path=prefix, document=document)).origin
            assert lines[origin.line - 1] == json.dumps({"text": text}).encode()
            seen[origin.line] = split
    for number in range(1, 31):
        for split in SPLITS:
            (item,) = trace(TraceOptions(path=f"{tmp_path}/out{split}", items=(f"{path}:{number}",))).items
            assert bool(item.documents) == (seen.get(number) == split)
            if not item.documents:
                assert "excluded (not-sampled, other-split)" in item.detail or "blank" in item.detail


def test_rows_of_a_sampled_table_are_traced(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"text": [f"n{n}" for n in range(20)]}), path, row_group_size=7)
    out = str(tmp_path / "out")
    tokenize(path, out, sample=0.5)
    rows = [trace(TraceOptions(path=out, document=k)).origin.row for k in range(len(texts(out)))]
    assert texts(out) == [f"n{row}" for row in rows]
    for row in range(20):
        (item,) = trace(TraceOptions(path=out, items=(f"{path}:{row + 1}",))).items
        assert bool(item.documents) == (row in rows)
    assert item.documents or item.detail == "row 20 is excluded (not-sampled)"
    tokenize(path, f"{out}2", sample=0.5, provenance=False)
    assert trace(TraceOptions(path=f"{out}2", document=0)).origin.detail


def test_both_outputs_are_built_replaced_and_refused_together(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"n{n}"} for n in range(30)])
    out = str(tmp_path / "out")
    tokenize(path, out, holdout=0.3)
    before = [pair(out + split) for split in SPLITS]
    Path(f"{out}_valid.bin").unlink()
    with pytest.raises(OutputExistsError):
        tokenize(path, out, holdout=0.4)
    tokenize(path, out, holdout=0.3, force=True)
    assert [pair(out + split) for split in SPLITS] == before
    tokenize(path, out, holdout=0.3, holdout_seed=2, force=True)
    assert [pair(out + split) for split in SPLITS] != before
    seals = {manifest(out + split)["seal"] for split in SPLITS}
    assert len(seals) == 2
    assert len({manifest(out + split)["fingerprint"] for split in SPLITS}) == 1


def test_outputs_can_be_merged(tmp_path):
    """Also those of runs that stopped at a limit; the counts of excluded records add up."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"n{n}"} for n in range(40)])
    out = str(tmp_path / "out")
    tokenize(path, out, holdout=0.3, limit=25, unit_size=100)
    train, valid, merged, shuffled = f"{out}_train", f"{out}_valid", f"{out}_merged", f"{out}_shuffled"
    for options in (
        MergeOptions(inputs=(train, valid), output=merged),
        MergeOptions(inputs=(train, valid), output=shuffled, shuffle=3),
    ):
        merge(options)
    counts = [manifest(prefix)["counts"] for prefix in (train, valid, merged)]
    for code in ("beyond-limit", "other-split"):
        assert counts[2]["excluded"].get(code, 0) == sum(part["excluded"].get(code, 0) for part in counts[:2])
    for prefix, notes in ((merged, set()), (shuffled, {"shuffled"})):
        assert findings(prefix) == notes
        assert sorted(texts(prefix)) == sorted(texts(train) + texts(valid))
    assert trace(TraceOptions(path=merged, document=30 - len(texts(valid)))).origin.line
