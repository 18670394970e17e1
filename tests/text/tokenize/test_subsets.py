"""P54: subsets are those of a slow twin, whatever the units, workers, interruptions and compression."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from support.slow_subsets import encoded, findings, options_of, rejected_positions, twin, write_input
from support.tokenize_runs import (
    TOKENIZER,
    documents,
    dry_run,
    manifest,
    pair,
    run_array_task,
    run_finish,
    run_tokenize,
    write_jsonl,
)
from tokshard import ArrayTask, InspectOptions, inspect
from tokshard.errors import BadRecordError, InputError, OutputExistsError, UsageError, WorkerError
from tokshard.text.corpus.selection import EXCLUDED
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import ProcessPool

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = st.one_of(texts, st.integers(-9, 2**40))
fields = st.fixed_dictionaries({"text": texts | st.lists(texts, max_size=3)}, optional={"key": keys})
lines = st.one_of(
    fields.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"", b"  ", b"{", b"[]", b'{"other": 1}', b'{"text": 5}', b'{"text": "a", "key": null}']
    ),
)
rows = st.fixed_dictionaries({"text": texts | st.none(), "key": st.integers(0, 9) | st.none()})
inputs = st.one_of(
    st.tuples(st.sampled_from(["none", "gzip", "zstd"]), st.lists(lines, max_size=9)),
    st.tuples(st.just("parquet"), st.lists(rows, max_size=9)),
)


subsets = st.fixed_dictionaries(
    {
        "sample": st.sampled_from([None, 0.2, 0.5, 0.9]),
        "seed": st.integers(0, 3),
        "limit": st.none() | st.integers(1, 12),
        "max_tokens": st.none() | st.integers(10, 60),
        "holdout": st.none() | st.sampled_from([0.2, 0.5]),
        "key": st.sampled_from([None, "key"]),
    }
)


def write_corpus(directory: Path, corpus) -> tuple[list[str], list]:
    """Write the inputs; return their paths, and all records as the twin takes them."""
    paths, records = [], []
    for number, (kind, content) in enumerate(corpus):
        paths.append(directory / f"{number}.{'parquet' if kind == 'parquet' else 'jsonl'}")
        records += write_input(paths[-1], number, kind, content)
    return [str(path) for path in paths], records


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    corpus=st.lists(inputs, min_size=1, max_size=3),
    subset=subsets,
    unit_size=st.integers(1, 90),
    provenance=st.booleans(),
)
def test_subsets_equal_the_twin(tmp_path_factory, corpus, subset, unit_size, provenance):
    directory = tmp_path_factory.mktemp("job")
    paths, records = write_corpus(directory, corpus)
    if subset["holdout"] is None:
        subset |= {"key": None}

    def run():
        return run_tokenize(
            paths,
            str(directory / "out"),
            tokenizer=TOKENIZER,
            executor=InlineExecutor(),
            on_error="skip",
            unit_size=unit_size,
            provenance=provenance,
            **options_of(subset),
        )

    try:
        expected, rejected = twin(records, **subset | {"sample": subset["sample"] or 1})
    except (InputError, UsageError) as error:
        with pytest.raises(type(error)):
            run()
        return
    report = run()
    suffixes = [""] if subset["holdout"] is None else ["_train", "_valid"]
    for suffix, wanted in zip(suffixes, expected, strict=False):
        prefix = directory / f"out{suffix}"
        assert documents(prefix) == wanted
        assert rejected_positions(prefix) == rejected
        assert findings(prefix) == set()
    left = report.counts.rejected_total + report.counts.excluded_total
    assert report.counts.records == report.counts.documents + left
    assert report.counts.documents == sum(map(len, expected))
    assert run().action == "found"


# A fixed corpus: bad records, blank lines, lists, three kinds of inputs


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The paths of three inputs, one of them compressed and one a table, and their records."""
    monkeypatch.chdir(tmp_path)
    first = [{"text": [f"{n} alpha", "beta " * (n % 5)] if n % 3 else f"{n} gamma"} for n in range(40)]
    lines = [
        b"" if n % 7 == 3 else b"{" if n % 11 == 5 else json.dumps(r).encode() for n, r in enumerate(first)
    ]
    data = b"".join(line + b"\n" for line in lines)
    Path("a.jsonl").write_bytes(data)
    Path("b.jsonl.gz").write_bytes(gzip.compress(data))
    rows = [{"text": None if n % 9 == 4 else f"row {n}", "key": n} for n in range(30)]
    records = [record for number in (0, 1) for record in write_input(Path("x"), number, "none", lines)]
    records += write_input(Path("c.parquet"), 2, "parquet", rows)
    return ["a.jsonl", "b.jsonl.gz", "c.parquet"], records


SUBSET = {"sample": 0.7, "seed": 3, "limit": 60, "max_tokens": None, "holdout": 0.3, "key": None}
SPLITS = ("_train", "_valid")


class Interrupted(InlineExecutor):
    """An executor that fails after some events."""

    def __init__(self, events: int):
        self.events = events

    def run(self, *arguments):
        for number, event in enumerate(super().run(*arguments)):
            if number == self.events:
                raise WorkerError("the worker was killed")
            yield event


def outputs(prefix: str, suffixes=SPLITS) -> list:
    return [
        (pair(prefix + suffix), Path(f"{prefix}{suffix}.tokshard/provenance.bin").read_bytes())
        for suffix in suffixes
    ]


def test_workers_and_units_change_nothing(corpus):
    paths, records = corpus
    expected, _ = twin(records, **SUBSET)
    options = {"tokenizer": TOKENIZER, "on_error": "skip", **options_of(SUBSET)}
    run_tokenize(paths, "one", **options)
    assert [documents("one" + suffix) for suffix in SPLITS] == list(expected)
    for workers, unit_size in ((2, 200), (3, 77)):
        with ProcessPool(workers) as pool:
            run_tokenize(paths, f"by{workers}", executor=pool, unit_size=unit_size, **options)
        assert outputs(f"by{workers}") == outputs("one")


def test_compression_changes_nothing(corpus):
    data = gzip.decompress(Path("b.jsonl.gz").read_bytes())
    Path("b.jsonl").write_bytes(data)
    for name, path in (("plain", "b.jsonl"), ("gzip", "b.jsonl.gz")):
        run_tokenize(path, name, on_error="skip", sample=0.4, sample_seed=8, unit_size=100)
    assert outputs("plain", [""]) == outputs("gzip", [""])


@pytest.mark.parametrize("events", [0, 4, 9, 15])
def test_an_interrupted_run_resumes_to_the_same_bytes(corpus, events, monkeypatch):
    monkeypatch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", 3)
    paths, _ = corpus
    options = {"tokenizer": TOKENIZER, "on_error": "skip", "unit_size": 300, **options_of(SUBSET)}
    run_tokenize(paths, "whole", **options)
    with pytest.raises(WorkerError):
        run_tokenize(paths, "out", executor=Interrupted(events), **options)
    report = run_tokenize(paths, "out", executor=InlineExecutor(), **options)
    assert outputs("out") == outputs("whole")
    assert bool(report.units_reused) == (events > 0)


@pytest.mark.parametrize(("before", "after"), [(50, 25), (50, 12), (50, 70), (None, 31), (40, None)])
def test_units_of_a_run_with_another_limit_are_replaced_only_by_force(corpus, before, after, monkeypatch):
    monkeypatch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", 2)
    paths, records = corpus
    options = {"tokenizer": TOKENIZER, "on_error": "skip", "unit_size": 300}
    # The units are finished and appended up to the limit, but nothing is published.
    with monkeypatch.context() as patch, pytest.raises(WorkerError):
        patch.setattr("tokshard.text.tokenize.assembly.Assembly.stage", _fail)
        run_tokenize(paths, "out", limit=before, **options)
    was, now = ("not set" if limit is None else str(limit) for limit in (before, after))
    with pytest.raises(OutputExistsError) as refused:
        run_tokenize(paths, "out", executor=InlineExecutor(), limit=after, **options)
    assert refused.value.message.endswith(f"of other options: --limit was {was} and is now {now}")
    assert "--force" in refused.value.hint
    report = run_tokenize(paths, "out", executor=InlineExecutor(), limit=after, force=True, **options)
    expected, _ = twin(records, limit=after)
    assert documents("out") == expected[0]
    assert report.units_reused == 0


def test_a_run_that_has_reached_its_limit_resumes_behind_the_cut_unit(corpus, monkeypatch):
    paths, records = corpus
    options = {"tokenizer": TOKENIZER, "on_error": "skip", "unit_size": 300, "limit": 50}
    with monkeypatch.context() as patch, pytest.raises(WorkerError):
        patch.setattr("tokshard.text.tokenize.assembly.Assembly.stage", _fail)
        patch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", 1)
        run_tokenize(paths, "out", **options)
    report = run_tokenize(paths, "out", executor=InlineExecutor(), **options)
    assert documents("out") == twin(records, limit=50)[0][0]
    assert report.units_reused == report.outputs[0].dataset.units


def test_finished_units_beyond_the_limit_do_not_count_as_reused(tmp_path):
    class Ahead(InlineExecutor):
        """An executor that is killed when it has encoded all units, before the run hears of it."""

        def run(self, *arguments):
            encoded.extend(super().run(*arguments))
            raise WorkerError("the worker was killed")
            yield

    encoded: list = []
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}] * 100)
    options = {"unit_size": 100, "limit": 8}
    with pytest.raises(WorkerError):
        run_tokenize(path, str(tmp_path / "out"), executor=Ahead(), **options)
    assert len(os.listdir(tmp_path / "out.tokshard/work/parts")) == 16
    report = run_tokenize(path, str(tmp_path / "out"), **options)
    assert (report.units_reused, report.outputs[0].dataset.units) == (2, 2)
    assert report.counts.documents == 8


def _fail(*_):
    raise WorkerError("stopped before the index was written")


# The end of a limited run


def token_counts(records) -> list[int]:
    return [sum(map(len, encoded(record["text"]))) for *_, record in records if record is not None]


def test_a_limit_at_the_end_of_a_unit(tmp_path):
    """The records of a unit that ends with the last document are all used, and the next unit is not read."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abcd"}] * 6)
    unit = os.path.getsize(path) // 3
    for limit, units, excluded in ((2, 1, 0), (3, 2, 1), (4, 2, 0), (6, 3, 0), (9, 3, 0)):
        out = str(tmp_path / f"out{limit}")
        report = run_tokenize(path, out, limit=limit, unit_size=unit)
        assert (report.counts.documents, report.outputs[0].dataset.units) == (min(limit, 6), units)
        assert report.counts.excluded == ({"beyond-limit": excluded} if excluded else None)
        partial = [entry.get("partial", False) for entry in manifest(out)["inputs"]]
        assert partial == [limit < 6 and units < 3]
        by_tokens = str(tmp_path / f"tokens{limit}")
        run_tokenize(path, by_tokens, max_tokens=5 * limit + 4, unit_size=unit)
        assert pair(by_tokens) == pair(out)
        assert findings(out) == findings(by_tokens) == set()


def test_bad_records_count_up_to_the_end_alone(tmp_path):
    records = [{"text": "a"}, {"text": "b"}, {"text": None}, {"text": "c"}, {"text": 7}]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    for unit_size in (1, 30, 1 << 20):
        out = str(tmp_path / f"out{unit_size}")
        report = run_tokenize(path, out, limit=2, unit_size=unit_size)
        assert (report.counts.documents, report.counts.rejected) == (2, {})
        with pytest.raises(BadRecordError, match=r"a\.jsonl:3"):
            run_tokenize(path, out + "x", limit=3, unit_size=unit_size)
        with pytest.raises(BadRecordError, match=r"a\.jsonl:3"):
            # It comes before the first document that would exceed the tokens.
            run_tokenize(path, out + "y", max_tokens=5, unit_size=unit_size)
        report = run_tokenize(path, out + "z", limit=3, unit_size=unit_size, on_error="skip", max_errors=1)
        assert (report.counts.documents, report.counts.rejected) == (3, {"field-null": 1})


def test_an_input_that_cannot_be_read_after_the_limit_is_no_error(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}] * 9)
    bad = str(tmp_path / "b.parquet")
    parquet.write_table(pa.table({"other": ["x"]}), bad)

    class Greedy(InlineExecutor):
        """An executor that takes all tasks before it encodes the first one, like many workers."""

        def run(self, spec, parts_directory, feed):
            tasks = []
            while (task := feed.take()) is not None:
                tasks.append(task)
            yield from ()

    for limit in (4, 9):
        report = run_tokenize([path, bad], str(tmp_path / f"out{limit}"), limit=limit, executor=Greedy())
        assert report.counts.documents == limit
    with pytest.raises(InputError, match="column"):
        run_tokenize([path, bad], str(tmp_path / "out"), limit=10, executor=Greedy())


def test_a_first_document_beyond_max_tokens_is_an_error_with_its_size(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}])
    with pytest.raises(UsageError, match="at least 4 tokens") as raised:
        run_tokenize(path, str(tmp_path / "out"), max_tokens=3)
    assert raised.value.hint == "pass --max-tokens 4 or more"
    assert run_tokenize(path, str(tmp_path / "out"), max_tokens=4).counts.documents == 1


def test_records_outside_the_sample_are_not_parsed(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [b"{"] * 200)
    with pytest.raises(BadRecordError) as raised:
        run_tokenize(path, str(tmp_path / "out"), sample=0.02)
    assert raised.value.line > 1
    report = run_tokenize(path, str(tmp_path / "none"), sample=1e-9)
    assert (report.counts.documents, report.counts.rejected, report.counts.excluded) == (
        0,
        {},
        {"not-sampled": 200},
    )
    assert "has no tokens" in report.warnings[0]


def test_long_lines_outside_of_a_subset_are_counted_apart(tmp_path):
    lines = [b'{"text": "a"}', b'{"text": "b"}', b'{"text": "' + b"x" * 300 + b'"}'] * 4
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
    out = str(tmp_path / "out")
    options = {"max_document_bytes": 100, "on_error": "skip"}
    report = run_tokenize(str(path), out, sample=0.5, sample_seed=1, **options)
    assert report.counts.excluded["too-long"] + report.counts.rejected.get("too-long", 0) == 4
    assert report.counts.excluded["too-long"] > 0
    assert findings(out) == set()
    # Beyond a limit, they count as any other record.
    report = run_tokenize(str(path), f"{out}-limit", limit=2, **options)
    assert (report.counts.excluded, report.counts.rejected) == ({"beyond-limit": 10}, {})
    assert findings(f"{out}-limit") == set()


def test_every_code_of_excluded_records_is_documented():
    page = (Path(__file__).parents[3] / "docs/how-to/subsets.md").read_text()
    assert [code for code in EXCLUDED if f"`{code}`" not in page] == []


# Job arrays, and what is shown


def test_tasks_of_an_array_take_samples_and_no_limits(corpus):
    paths, records = corpus
    options = {"tokenizer": TOKENIZER, "on_error": "skip", "unit_size": 300, "sample": 0.7, "sample_seed": 3}
    options |= {"holdout": 0.3, "holdout_seed": 3}
    for task in (ArrayTask(1, 2), ArrayTask(0, 2)):
        run_array_task(paths, "out", task=task, **options)
        with pytest.raises(UsageError, match="--limit cannot be applied by the tasks"):
            run_array_task(paths, "out", task=task, limit=3, **options)
    for limits in ({"limit": 60}, {"max_tokens": 60}):
        with pytest.raises(UsageError, match="cannot be applied by the tasks"):
            run_finish(paths, "out", **limits, **options)
    run_finish(paths, "out", **options)
    assert [documents("out" + suffix) for suffix in SPLITS] == list(
        twin(records, **SUBSET | {"limit": None})[0]
    )


def test_what_was_selected_is_recorded_and_shown(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": str(n)} for n in range(50)])
    out = str(tmp_path / "out")
    options = {"sample": 0.5, "limit": 10, "holdout": 0.2, "holdout_seed": 5}
    plan = dry_run(path, out, **options)
    assert [output.path_prefix for output in plan.outputs] == [f"{out}_train", f"{out}_valid"]
    assert plan.options.subset == (
        "50% of the records (seed 1234), at most 10 documents, 20% of the documents held out by text (seed 5)"
    )
    report = run_tokenize(path, out, **options)
    assert [output.dataset.split for output in report.outputs] == ["train", "valid"]
    for output in report.outputs:
        found = manifest(output.path_prefix)
        wanted = {"sample": 0.5, "sample_seed": 1234, "limit": 10, "holdout": 0.2, "holdout_seed": 5}
        assert found["options"].items() >= wanted.items()
        counts = found["counts"]
        assert counts["excluded"]["other-split"] == 10 - output.counts.documents
        assert counts["records"] == counts["documents"] + sum(counts["excluded"].values())
        shown = inspect(InspectOptions(path=output.path_prefix))
        assert shown.manifest.dataset.split == output.dataset.split


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": 0}, "--sample must be above 0% and at most 100%"),
        ({"sample": 1.01}, "--sample must be above 0% and at most 100%, got 101%"),
        ({"sample": "x"}, "--sample must be a percentage or a fraction such as 1% or 0.01, got 'x'"),
        ({"sample": float("nan")}, "--sample must be a finite number, got nan"),
        ({"sample_seed": 3}, "--sample-seed requires --sample"),
        ({"sample": 0.5, "sample_seed": -1}, "--sample-seed must be at least 0"),
        ({"limit": 0}, "--limit must be at least 1, got 0"),
        ({"max_tokens": 0}, "--max-tokens must be at least 1, got 0"),
        ({"holdout": 1}, "--holdout must be above 0% and below 100%"),
        ({"holdout_key": "id"}, "--holdout-key requires --holdout"),
        ({"holdout_seed": 1}, "--holdout-seed requires --holdout"),
        ({"holdout": 0.5, "holdout_key": "a..b"}, "--holdout-key must name keys that are not empty"),
    ],
)
def test_misuse_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        run_tokenize("a.jsonl", "out", **options)
