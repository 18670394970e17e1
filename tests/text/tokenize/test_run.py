"""Whole runs through the library: what is written, resumed, refused and recorded."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tokenize_runs import (
    SAMPLE,
    TOKENIZER,
    documents,
    dry_run,
    job_of,
    manifest,
    pair,
    run_tokenize,
    texts_of,
    write_jsonl,
)
from tokshard import MergeOptions, VerifyOptions, merge, verify
from tokshard.errors import (
    BadRecordError,
    InputError,
    LockedError,
    OutputExistsError,
    TokenizerError,
    UsageError,
)
from tokshard.storage.lock import WriterLock
from tokshard.storage.publication import remove_staging
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.tokenize import run
from tokshard.text.tokenize.job import make_build
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import ProcessPool
from tokshard.text.tokenizer.definition import load_tokenizer

EOD = 256


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture
def corpus(tmp_path):
    return write_jsonl(tmp_path / "corpus.jsonl", [{"text": "ab"}, {"text": ""}, {"text": "é"}])


def test_the_bare_run(tmp_path, corpus, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = run_tokenize(corpus)
    assert documents("corpus") == [[[97, 98, EOD]], [], [[0xC3, 0xA9, EOD]]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.bin",
        "corpus.idx",
        "corpus.jsonl",
        "corpus.tokshard",
    ]
    assert sorted(os.listdir("corpus.tokshard")) == ["manifest.json", "provenance.bin", "units.jsonl"]
    data = report.outputs[0].dataset
    assert (data.units, data.dtype) == (1, "uint16")
    counts = report.counts
    assert report.outputs[0].counts == counts
    assert (counts.documents, counts.sequences, counts.tokens, counts.records) == (3, 2, 6, 3)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.one_of(texts, st.lists(texts, max_size=3))


@settings(max_examples=30, deadline=None)
@given(
    records=st.lists(values, max_size=7),
    unit_size=st.integers(1, 90),
    append_eod=st.booleans(),
    reference=st.booleans(),
)
def test_documents_equal_the_definition(tmp_path_factory, records, unit_size, append_eod, reference):
    """Strings and lists, any unit size, with and without EOD, against `tokenizers` itself."""
    directory = tmp_path_factory.mktemp("job")
    path = write_jsonl(directory / "in.jsonl", [{"text": value} for value in records])
    library = tokenizers.Tokenizer.from_file(TOKENIZER)
    run_tokenize(
        path,
        str(directory / "out"),
        tokenizer=TOKENIZER,
        append_eod=append_eod,
        unit_size=unit_size,
        encoder="reference" if reference else "fast",
        executor=InlineExecutor(),
    )
    expected = []
    for value in records:
        kept = [library.encode(text).ids for text in ([value] if isinstance(value, str) else value)]
        kept = [ids for ids in kept if ids]
        if kept and append_eod:
            kept[-1] = [*kept[-1], library.encode("<|endoftext|>").ids[0]]
        expected.append(kept)
    assert documents(directory / "out") == expected


COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "members": lambda data: gzip.compress(data[:5000]) + gzip.compress(b"") + gzip.compress(data[5000:]),
}


@pytest.mark.parametrize("how", COMPRESS)
def test_compression_changes_nothing(tmp_path, how):
    plain = SAMPLE / "manuals.jsonl"
    packed = tmp_path / "packed"
    packed.write_bytes(COMPRESS[how](plain.read_bytes()))
    run_tokenize(str(plain), str(tmp_path / "a"), unit_size=50_000)
    run_tokenize(str(packed), str(tmp_path / "b"), unit_size=50_000)
    assert pair(tmp_path / "a") == pair(tmp_path / "b")
    for name in ("units.jsonl", "provenance.bin"):
        assert (tmp_path / "a.tokshard" / name).read_bytes() == (tmp_path / "b.tokshard" / name).read_bytes()


def test_zstd_frames_change_nothing(tmp_path):
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    data = (SAMPLE / "stories.jsonl").read_bytes()
    packed = tmp_path / "packed.zst"
    packed.write_bytes(zstd.compress(data[:99_999]) + zstd.compress(data[99_999:]))
    run_tokenize(str(SAMPLE / "stories.jsonl"), str(tmp_path / "a"))
    run_tokenize(str(packed), str(tmp_path / "b"))
    assert pair(tmp_path / "a") == pair(tmp_path / "b")


def test_several_inputs_are_one_corpus_in_order(tmp_path):
    both = [SAMPLE / "stories.jsonl.gz", SAMPLE / "manuals.jsonl"]
    joined = tmp_path / "joined.jsonl"
    joined.write_bytes(gzip.decompress(both[0].read_bytes()) + both[1].read_bytes())
    run_tokenize([str(path) for path in both], str(tmp_path / "a"), tokenizer=TOKENIZER)
    run_tokenize(str(joined), str(tmp_path / "b"), tokenizer=TOKENIZER)
    assert pair(tmp_path / "a") == pair(tmp_path / "b")
    assert [entry["counts"]["documents"] for entry in manifest(tmp_path / "a")["inputs"]] == [430, 360]


def test_processes_and_this_process_write_the_same(tmp_path):
    inputs = str(SAMPLE / "stories.jsonl")
    for name, executor in (("a", InlineExecutor()), ("b", ProcessPool(2)), ("c", None)):
        run_tokenize(
            inputs,
            str(tmp_path / name),
            tokenizer=TOKENIZER,
            unit_size=60_000,
            encoder="fast",
            executor=executor,
        )
    assert pair(tmp_path / "a") == pair(tmp_path / "b") == pair(tmp_path / "c")
    assert manifest(tmp_path / "a") == manifest(tmp_path / "b") == manifest(tmp_path / "c")


def test_several_fields_in_one_pass(tmp_path):
    records = [{"a": "x", "b": ["y", "z"]}, {"a": "", "b": []}]
    path = write_jsonl(tmp_path / "in.jsonl", records)
    report = run_tokenize(path, str(tmp_path / "out"), fields=("a", "b"))
    assert documents(tmp_path / "out_a_document") == [[[120, EOD]], []]
    assert documents(tmp_path / "out_b_document") == [[[121], [122, EOD]], []]
    assert [output.dataset.field for output in report.outputs] == ["a", "b"]
    assert not (tmp_path / "out.tokshard").exists()


def test_provenance_points_at_each_record(tmp_path):
    import numpy as np

    path = SAMPLE / "manuals.jsonl"
    run_tokenize(str(path), str(tmp_path / "a"), unit_size=9_999)
    origins = np.fromfile(tmp_path / "a.tokshard" / "provenance.bin", "<i8").reshape(-1, 2).tolist()
    data = path.read_bytes()
    found = [json.loads(data[offset : data.index(b"\n", offset)])["text"] for offset, _ in origins]
    assert found == texts_of(path)
    lines = data.splitlines()
    assert [json.loads(lines[line - 1])["text"] for _, line in origins] == texts_of(path)
    run_tokenize(str(path), str(tmp_path / "b"), provenance=False)
    assert not (tmp_path / "b.tokshard" / "provenance.bin").exists()


def test_the_units_file_adds_up(tmp_path):
    run_tokenize(str(SAMPLE / "manuals.jsonl"), str(tmp_path / "a"), unit_size=9_999)
    units = [json.loads(line) for line in (tmp_path / "a.tokshard" / "units.jsonl").read_text().splitlines()]
    found = manifest(tmp_path / "a")
    assert len(units) == found["dataset"]["units"] > 30
    for name in ("documents", "sequences", "tokens", "records", "lines", "content_bytes"):
        assert sum(unit["counts"][name] for unit in units) == found["counts"][name]
    assert found["counts"]["content_bytes"] == (SAMPLE / "manuals.jsonl").stat().st_size


# Bad records


def hostile():
    expected = json.loads((SAMPLE / "hostile.expected.json").read_text())["lines"]
    return SAMPLE / "hostile.jsonl", expected


@pytest.mark.parametrize("unit_size", [1 << 24, 3000, 100])
def test_skip_lists_every_rejected_record(tmp_path, unit_size):
    path, expected = hostile()
    report = run_tokenize(str(path), str(tmp_path / "a"), on_error="skip", unit_size=unit_size)
    listed = [json.loads(line) for line in (tmp_path / "a.tokshard/rejected.jsonl").read_text().splitlines()]
    wanted = [
        (record["line"], record["outcome"])
        for record in expected
        if record["outcome"] not in {"accepted", "blank"}
    ]
    assert [(record["line"], record["reason"]) for record in listed] == wanted
    data = path.read_bytes()
    starts = [0, *(k + 1 for k, byte in enumerate(data) if byte == 10)]
    assert [record["offset"] for record in listed] == [starts[line - 1] for line, _ in wanted]
    assert report.counts.records == report.counts.documents + sum(report.counts.rejected.values())
    accepted = [record["text"] for record in expected if record["outcome"] == "accepted"]
    texts = [text if isinstance(text, list) else [text] for text in accepted]
    assert documents(tmp_path / "a") == [
        [
            encode_bytes(piece) + ([EOD] if number == len(kept) - 1 else [])
            for number, piece in enumerate(kept)
        ]
        for kept in ([piece for piece in pieces if piece] for pieces in texts)
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_fail_names_the_first_bad_record(tmp_path, workers):
    path, expected = hostile()
    first = next(record for record in expected if record["outcome"] not in {"accepted", "blank"})
    with pytest.raises(BadRecordError) as caught:
        run_tokenize(
            str(path), str(tmp_path / "a"), unit_size=200, executor=ProcessPool(workers), workers=workers
        )
    assert (caught.value.line, caught.value.reason) == (first["line"], first["outcome"])
    assert f"hostile.jsonl:{first['line']}" in caught.value.message
    assert not (tmp_path / "a.bin").exists()
    run_tokenize(str(path), str(tmp_path / "a"), unit_size=200, on_error="skip")
    run_tokenize(str(path), str(tmp_path / "b"), on_error="skip")
    assert pair(tmp_path / "a") == pair(tmp_path / "b")


@pytest.mark.parametrize("unit_size", [1 << 24, 500])
def test_max_errors_is_exact(tmp_path, unit_size):
    path, expected = hostile()
    bad = [record for record in expected if record["outcome"] not in {"accepted", "blank"}]
    options = {"on_error": "skip", "unit_size": unit_size}
    with pytest.raises(InputError, match=f"--max-errors {len(bad) - 1} exceeded; .*:{bad[-1]['line']}: "):
        run_tokenize(str(path), str(tmp_path / "a"), max_errors=len(bad) - 1, **options)
    run_tokenize(str(path), str(tmp_path / "a"), max_errors=len(bad), **options)


def test_a_cut_gzip_file_is_an_error_with_its_place(tmp_path):
    whole = (SAMPLE / "stories.jsonl.gz").read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    message = r"stream is truncated at compressed byte 81888(?:\nhint: |$)"
    with pytest.raises(BadRecordError, match=message) as caught:
        run_tokenize(str(cut), str(tmp_path / "a"), unit_size=100_000)
    assert caught.value.reason == "corrupt-stream"
    assert caught.value.hint == f"fetch {cut} again: it is incomplete or damaged"
    report = run_tokenize(str(cut), str(tmp_path / "a"), unit_size=100_000, on_error="skip")
    assert report.counts.rejected == {"corrupt-stream": 1}
    kept = report.counts.documents
    whole_documents = run_tokenize(str(SAMPLE / "stories.jsonl"), str(tmp_path / "b")).counts.documents
    assert 0 < kept < whole_documents
    assert documents(tmp_path / "a") == documents(tmp_path / "b")[:kept]


# Resuming, refusing


def interrupted(inputs, output, **options):
    """Leave an unfinished run behind: the policy stops it at a bad record."""
    with pytest.raises(BadRecordError):
        run_tokenize(inputs, output, executor=InlineExecutor(), **options)


@pytest.fixture
def unfinished(tmp_path):
    records = [{"text": f"document {n}"} for n in range(40)] + [b"broken"]
    path = write_jsonl(tmp_path / "in.jsonl", records)
    interrupted(path, str(tmp_path / "out"), unit_size=200)
    return path, str(tmp_path / "out")


def test_a_resumed_run_says_so(unfinished):
    path, output = unfinished
    report = run_tokenize(path, output, unit_size=200, on_error="skip")
    assert 0 < report.units_reused < report.outputs[0].dataset.units


OTHER_OPTIONS = {
    "unit-size": {"unit_size": 300},
    "append-eod": {"unit_size": 200, "append_eod": False},
    "dtype": {"unit_size": 200, "dtype": "int32"},
    "max-document-bytes": {"unit_size": 200, "max_document_bytes": 999},
    "provenance": {"unit_size": 200, "provenance": False},
    "special-tokens": {"unit_size": 200, "special_tokens": True, "tokenizer": TOKENIZER},
    "tokenizer's definition_sha256": {"unit_size": 200, "tokenizer": TOKENIZER},
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_units_of_other_options_are_removed_only_by_force_and_the_options_are_named(
    unfinished, tmp_path, name
):
    path, output = unfinished
    with pytest.raises(OutputExistsError, match=name) as caught:
        run_tokenize(path, output, on_error="skip", **OTHER_OPTIONS[name])
    assert caught.value.exit_code == 4
    assert caught.value.differences
    assert "--force" in caught.value.hint
    assert "finished units of other options: " in caught.value.message
    state = partial(dry_run, path, output, on_error="skip", **OTHER_OPTIONS[name])
    assert (state().state, state(force=True).state) == ("exists", "new")
    report = run_tokenize(path, output, on_error="skip", **OTHER_OPTIONS[name], force=True)
    assert report.units_reused == 0
    run_tokenize(path, str(tmp_path / "clean"), on_error="skip", **OTHER_OPTIONS[name])
    assert pair(output) == pair(tmp_path / "clean")
    assert not (tmp_path / "out.tokshard/work").exists()


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_a_finished_output_is_replaced_only_by_force_and_the_options_are_named(unfinished, name):
    path, output = unfinished
    run_tokenize(path, output, unit_size=200, on_error="skip")
    with pytest.raises(OutputExistsError, match=name) as caught:
        run_tokenize(path, output, on_error="skip", **OTHER_OPTIONS[name])
    assert caught.value.exit_code == 4
    assert caught.value.differences
    assert "--force" in caught.value.hint
    run_tokenize(path, output, on_error="skip", **OTHER_OPTIONS[name], force=True)


@pytest.mark.parametrize("dataset", ["tokenize", "merge"])
def test_a_finished_output_leaves_units_of_other_options(unfinished, tmp_path, dataset):
    path, output = unfinished
    work = tmp_path / "out.tokshard/work"
    work.rename(tmp_path / "work")
    if dataset == "tokenize":
        again = partial(run_tokenize, path, output, unit_size=300, on_error="skip")
    else:
        run_tokenize(path, str(tmp_path / "a"), on_error="skip")
        again = partial(merge, MergeOptions(inputs=str(tmp_path / "a"), output=output))
    again()
    (tmp_path / "work").rename(work)
    assert again().action == "found"
    assert run_tokenize(path, output, unit_size=200, on_error="skip", force=True).units_reused
    assert not work.exists()


def test_a_finished_output_removes_units_of_the_same_options(unfinished, tmp_path):
    path, output = unfinished
    run_tokenize(path, str(tmp_path / "other"), unit_size=200, on_error="skip")
    for name in ("bin", "idx", "tokshard/manifest.json", "tokshard/units.jsonl", "tokshard/provenance.bin"):
        (tmp_path / f"other.{name}").rename(tmp_path / f"out.{name}")
    (tmp_path / "other.tokshard/rejected.jsonl").rename(tmp_path / "out.tokshard/rejected.jsonl")
    assert run_tokenize(path, output, unit_size=200, on_error="skip").action == "found"
    assert not (tmp_path / "out.tokshard/work").exists()


def open_files(directory: Path) -> list[str]:
    names = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return [
        os.readlink(name) for name in names if os.path.exists(name) and str(directory) in os.readlink(name)
    ]


@pytest.mark.parametrize("ending", ["published", "useless", "refused"])
def test_no_file_is_open_when_the_work_directory_is_removed(tmp_path, corpus, monkeypatch, ending):
    """NFS keeps a file that is open in its directory, which cannot be removed then."""
    removed = []

    def remove(directory):
        removed.append(open_files(tmp_path / "out.tokshard/work"))
        remove_staging(directory)

    monkeypatch.setattr("tokshard.dataset.run.remove_staging", remove)
    if ending == "published":
        run_tokenize(corpus, str(tmp_path / "out"))
    elif ending == "useless":
        with pytest.raises(UsageError, match="--max-tokens must be at least"):
            run_tokenize(corpus, str(tmp_path / "out"), max_tokens=1)
    else:
        path = write_jsonl(tmp_path / "bad.jsonl", [b"broken"])
        with pytest.raises(BadRecordError):
            run_tokenize(path, str(tmp_path / "out"))
    assert removed[-1] == []
    assert not (tmp_path / "out.tokshard").exists() or ending == "published"


def test_the_same_command_again_does_nothing(tmp_path, corpus):
    run_tokenize(corpus, str(tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = run_tokenize(corpus, str(tmp_path / "out"))
    assert report.action == "found"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_output_of_another_command_is_not_compared_by_encoder(tmp_path, corpus):
    out = str(tmp_path / "out")
    run_tokenize(corpus, out)
    (tmp_path / "out.tokshard/manifest.json").unlink()
    verify(VerifyOptions(path=out, adopt=True))
    with pytest.raises(OutputExistsError) as caught:
        run_tokenize(corpus, out)
    assert caught.value.differences == ("the command was 'adopt' and is now 'tokenize'",)


def test_an_existing_output_is_refused_unless_forced(tmp_path, corpus):
    other = write_jsonl(tmp_path / "other.jsonl", [{"text": "other"}])
    out = str(tmp_path / "out")
    run_tokenize(corpus, out)
    before = pair(out)
    with pytest.raises(OutputExistsError):
        run_tokenize(other, out)
    assert pair(out) == before
    run_tokenize(other, out, force=True)
    assert documents(out) == [[[*encode_bytes("other"), EOD]]]


def test_a_dataset_of_another_program_is_not_overwritten(tmp_path, corpus):
    (tmp_path / "out.idx").write_bytes(b"precious")
    with pytest.raises(OutputExistsError):
        run_tokenize(corpus, str(tmp_path / "out"))
    assert (tmp_path / "out.idx").read_bytes() == b"precious"
    assert not (tmp_path / "out.tokshard").exists()


def test_more_inputs_than_a_manifest_can_list_are_refused_at_once(tmp_path, corpus):
    tokenizer = load_tokenizer(None).identity
    parameters = job_of(corpus, str(tmp_path / "out")).parameters
    few = [
        CorpusFile(path=f"{n:06d}.jsonl", size_bytes=1, mtime_ns=1, format="jsonl", compression="none")
        for n in range(50_000)
    ]
    assert len(make_build(few, tokenizer, parameters).inputs) == 50_000
    with pytest.raises(UsageError, match="too many for the manifest"):
        make_build(few * 4, tokenizer, parameters)


@pytest.mark.parametrize("name", ["out.bin", "out.idx", "out.tokshard/x.jsonl"])
def test_an_input_among_the_outputs_is_refused(tmp_path, name):
    (tmp_path / "out.tokshard").mkdir()
    path = write_jsonl(tmp_path / name, [{"text": "a"}])
    (tmp_path / "link.jsonl").symlink_to(path)
    for named in (path, str(tmp_path / "link.jsonl")):
        with pytest.raises(UsageError, match="would be overwritten"):
            run_tokenize(named, str(tmp_path / "out"), force=True)


def test_an_output_has_one_writer_by_whatever_name(tmp_path, corpus):
    with WriterLock(str(make(tmp_path / "out_text_document.tokshard") / "lock")), pytest.raises(LockedError):
        run_tokenize(corpus, str(tmp_path / "out"), preset="megatron")
    assert not (tmp_path / "out.tokshard").exists()


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_an_input_that_goes_away_meanwhile_is_an_error(tmp_path, corpus, monkeypatch):
    check = run.check_unchanged

    def removed(files):
        os.unlink(corpus)
        return check(files)

    monkeypatch.setattr(run, "check_unchanged", removed)
    with pytest.raises(InputError, match="was removed"):
        run_tokenize(corpus, str(tmp_path / "out"))


def test_an_input_that_changes_meanwhile_is_an_error(tmp_path, corpus, monkeypatch):
    def touched(files):
        os.utime(corpus, ns=(1, 1))
        return check(files)

    check = run.check_unchanged
    monkeypatch.setattr(run, "check_unchanged", touched)
    with pytest.raises(InputError, match="changed while it was read"):
        run_tokenize(corpus, str(tmp_path / "out"))
    assert not (tmp_path / "out.bin").exists()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "quick"}, "--encoder"),
        ({"dtype": "uint8"}, "--dtype"),
        ({"workers": 0}, "--workers"),
        ({"unit_size": 0}, "--unit-size"),
        ({"max_errors": 1}, "--on-error skip"),
        ({"fields": ()}, "--field"),
        ({"fields": ("a", "a")}, "different fields, got a, a"),
        ({"encoder": "fast"}, "--encoder fast"),
        ({"dtype": "uint16", "tokenizer": "big"}, "65536"),
    ],
)
def test_wrong_options(tmp_path, corpus, options, message):
    if options.get("tokenizer") == "big":
        options = {**options, "tokenizer": big_tokenizer(tmp_path)}
    with pytest.raises(UsageError, match=message):
        run_tokenize(corpus, str(tmp_path / "out"), **options)


def big_tokenizer(directory: Path) -> str:
    definition = json.loads(Path(TOKENIZER).read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary.update({f"filler{n}": n for n in range(len(vocabulary), 65537)})
    (directory / "tokenizer.json").write_text(json.dumps(definition))
    return str(directory)


@pytest.mark.parametrize(("size", "dtype"), [(65499, "uint16"), (65500, "int32"), (65537, "int32")])
def test_the_dtype_rule(tmp_path, corpus, size, dtype):
    definition = json.loads(Path(TOKENIZER).read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary.update({f"filler{n}": n for n in range(len(vocabulary), size)})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    report = run_tokenize(corpus, str(tmp_path / "out"), tokenizer=str(tmp_path))
    assert report.outputs[0].dataset.dtype == dtype


def test_without_any_eod_token_the_candidates_are_named(tmp_path, corpus):
    definition = json.loads(Path(TOKENIZER).read_text())
    text = json.dumps(definition).replace("<|endoftext|>", "<|nothing|>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError) as caught:
        run_tokenize(corpus, str(tmp_path / "out"), tokenizer=str(tmp_path))
    assert "--eod" in caught.value.hint
    run_tokenize(corpus, str(tmp_path / "out"), tokenizer=str(tmp_path), append_eod=False)
    report = run_tokenize(
        corpus, str(tmp_path / "out2"), tokenizer=str(tmp_path), eod="<|nothing|>", append_eod=True
    )
    assert report.outputs[0].tokens


def test_eod_inside_the_text_is_told(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "a<|endoftext|>b"}])
    report = run_tokenize(path, str(tmp_path / "out"), tokenizer=TOKENIZER)
    assert any("EOD" in warning for warning in report.warnings)
    assert manifest(tmp_path / "out")["counts"]["eod_in_text"] == 1


def test_a_corpus_without_tokens_is_told(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": ""}])
    report = run_tokenize(path, str(tmp_path / "out"))
    assert any("no tokens" in warning for warning in report.warnings)
    assert documents(tmp_path / "out") == [[]]
    (tmp_path / "empty.jsonl").write_bytes(b"")
    run_tokenize(str(tmp_path / "empty.jsonl"), str(tmp_path / "empty"))
    assert documents(tmp_path / "empty") == []


def test_the_plan_writes_nothing(tmp_path, corpus):
    before = set(tmp_path.rglob("*"))
    plan = dry_run(corpus, str(tmp_path / "out"), tokenizer=TOKENIZER)
    assert set(tmp_path.rglob("*")) == before
    assert (plan.state, plan.outputs[0].path_prefix, plan.options.dtype) == (
        "new",
        str(tmp_path / "out"),
        "uint16",
    )


def test_stdin_and_pipes_are_read_once(tmp_path):
    data = (SAMPLE / "stories.jsonl.gz").read_bytes()
    code = "import tokshard; tokshard.tokenize(tokshard.TokenizeOptions(inputs='-', output='piped'))"
    subprocess.run([sys.executable, "-c", code], input=data, cwd=tmp_path, check=True)
    run_tokenize(str(SAMPLE / "stories.jsonl"), str(tmp_path / "a"))
    assert pair(tmp_path / "piped") == pair(tmp_path / "a")


def test_parquet_gives_the_same_documents(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = texts_of(SAMPLE / "manuals.jsonl")
    parquet.write_table(pa.table({"text": texts}), tmp_path / "in.parquet", row_group_size=50)
    run_tokenize(str(tmp_path / "in.parquet"), str(tmp_path / "a"), unit_size=20_000)
    run_tokenize(str(SAMPLE / "manuals.jsonl"), str(tmp_path / "b"))
    assert pair(tmp_path / "a") == pair(tmp_path / "b")
