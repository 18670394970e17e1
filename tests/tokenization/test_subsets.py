"""Subsets of a corpus against a slow twin that reads all records, chooses, and encodes one by one."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers
import xxhash
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from support.corpus_units import COMPRESS
from support.tokenize_runs import TOKENIZER, documents, run_tokenize
from tokshard import VerifyOptions, verify
from tokshard.errors import InputError, UsageError
from tokshard.tokenization.workers.executor import InlineExecutor

LIBRARY = tokenizers.Tokenizer.from_file(TOKENIZER)
EOD = LIBRARY.token_to_id("<|endoftext|>")


# The slow twin


def records_of(number: int, data: bytes):
    """Yield (input, position, value) of each record of JSON lines; the value is None for a bad one."""
    position = 0
    for line in data.split(b"\n"):
        if line.strip():
            try:
                value = json.loads(line)["text"]
            except (ValueError, KeyError):
                value = None
            if isinstance(value, int):
                value = None
            yield number, position, value
        position += len(line) + 1


def twin(records, *, sample=1.0, seed=1234, limit=None, max_tokens=None):
    """Return the documents of the subset, and the positions of the rejected records before its end."""
    found, rejected, total = [], [], 0
    for number, position, value in records:
        if len(found) == limit or total == max_tokens:
            break
        if xxhash.xxh3_64_intdigest(struct.pack("<QQ", number, position), seed) >= sample * 2**64:
            continue
        if value is None:
            rejected.append(position)
            continue
        kept = [
            ids for text in [value] * isinstance(value, str) or value if (ids := LIBRARY.encode(text).ids)
        ]
        if kept:
            kept[-1] = [*kept[-1], EOD]
        if max_tokens is not None and total + sum(map(len, kept)) > max_tokens:
            break
        total += sum(map(len, kept))
        found.append(kept)
    return found, rejected


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
lines = st.one_of(
    st.one_of(texts, st.lists(texts, max_size=3)).map(lambda value: json.dumps({"text": value}).encode()),
    st.sampled_from([b"", b"  ", b"{", b'{"other": 1}', b'{"text": 5}']),
)
inputs = st.one_of(
    st.tuples(st.sampled_from(["none", "gzip", "zstd"]), st.lists(lines, max_size=9)),
    st.tuples(st.just("parquet"), st.lists(texts | st.none(), max_size=9)),
)


def write_input(path: Path, number: int, kind: str, content: list):
    """Write an input; return its records as the twin takes them."""
    if kind == "parquet":
        table = pa.table({"text": pa.array(content, pa.string())})
        parquet.write_table(table, path, row_group_size=2)
        return [(number, row, value) for row, value in enumerate(content)]
    data = b"".join(line + b"\n" for line in content)
    path.write_bytes(COMPRESS[kind](data))
    return [*records_of(number, data)]


def findings(prefix) -> set[str]:
    report = verify(VerifyOptions(str(prefix), level="deep"))
    return {finding.code for product in report.products for finding in product.findings}


@settings(max_examples=80, deadline=None, phases=[Phase.generate])
@given(
    corpus=st.lists(inputs, min_size=1, max_size=3),
    sample=st.sampled_from([None, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 3),
    limit=st.none() | st.integers(1, 12),
    max_tokens=st.none() | st.integers(10, 60),
    unit_bytes=st.integers(1, 90),
    provenance=st.booleans(),
)
def test_subsets_equal_the_twin(
    tmp_path_factory, corpus, sample, seed, limit, max_tokens, unit_bytes, provenance
):
    directory = tmp_path_factory.mktemp("job")
    paths = [
        directory / f"{number}.{'parquet' if kind == 'parquet' else 'jsonl'}"
        for number, (kind, _) in enumerate(corpus)
    ]
    records = [
        record
        for number, (path, given) in enumerate(zip(paths, corpus, strict=True))
        for record in write_input(path, number, *given)
    ]
    limits = {"limit": limit, "max_tokens": max_tokens}
    expected, rejected = twin(records, sample=sample or 1, seed=seed, **limits)

    def run():
        return run_tokenize(
            [str(path) for path in paths],
            str(directory / "out"),
            tokenizer=TOKENIZER,
            on_error="skip",
            unit_bytes=unit_bytes,
            provenance=provenance,
            executor=InlineExecutor(),
            **limits,
            **({} if sample is None else {"sample": sample, "sample_seed": seed}),
        )

    if not expected and (
        rejected or (max_tokens and twin(records, sample=sample or 1, seed=seed, limit=1)[0])
    ):
        with pytest.raises((InputError, UsageError)):
            run()
        return
    report = run()
    assert documents(directory / "out") == expected
    listed = directory / "out.tokshard/rejected.jsonl"
    found = (
        [json.loads(line)["offset"] for line in listed.read_bytes().splitlines()] if listed.exists() else []
    )
    assert found == rejected
    left = sum(report.rejected.values()) + sum(report.excluded.values())
    assert report.records == report.documents + left
    assert findings(directory / "out") == set()
    assert run().up_to_date
