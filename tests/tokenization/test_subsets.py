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
    """Yield (input, position, record) of each record of JSON lines; the record is None for a bad one."""
    position = 0
    for line in data.split(b"\n"):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            usable = isinstance(record, dict) and isinstance(record.get("text"), str | list)
            yield number, position, record if usable else None
        position += len(line) + 1


def encoded(value) -> list[list[int]]:
    """Return the sequences of a document."""
    kept = [ids for text in [value] * isinstance(value, str) or value if (ids := LIBRARY.encode(text).ids)]
    return [*kept[:-1], [*kept[-1], EOD]] if kept else []


def is_valid(record, holdout, key, seed) -> bool:
    """Tell whether a document belongs to the validation split."""
    value = record["text"] if key is None else record[key]
    text = (
        b"\xff".join(text.encode() for text in [value] * (not isinstance(value, list)) or value)
        if key is None
        else str(value).encode()
    )
    return xxhash.xxh3_64_intdigest(text, seed) < holdout * 2**64


def twin(records, *, sample=1.0, seed=1234, limit=None, max_tokens=None, holdout=None, key=None):
    """Return the documents of each split, and the positions of the rejected records before the end."""
    found, rejected, count, total = ([], []), [], 0, 0
    for number, position, record in records:
        if count == limit or total == max_tokens:
            break
        if xxhash.xxh3_64_intdigest(struct.pack("<QQ", number, position), seed) >= sample * 2**64:
            continue
        if record is None or (key is not None and not isinstance(record.get(key), str | int)):
            rejected.append(position)
            continue
        sequences = encoded(record["text"])
        tokens = sum(map(len, sequences))
        if max_tokens is not None and total + tokens > max_tokens:
            if not count:
                raise UsageError("the first document is too large")
            break
        total += tokens
        count += 1
        found[holdout is not None and is_valid(record, holdout, key, seed)].append(sequences)
    if rejected and not count:
        raise InputError("every record was rejected")
    return found, rejected


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


def write_input(path: Path, number: int, kind: str, content: list):
    """Write an input; return its records as the twin takes them."""
    if kind == "parquet":
        schema = pa.schema({"text": pa.string(), "key": pa.int32()})
        parquet.write_table(pa.Table.from_pylist(content, schema), path, row_group_size=2)
        return [(number, row, None if value["text"] is None else value) for row, value in enumerate(content)]
    data = b"".join(line + b"\n" for line in content)
    path.write_bytes(COMPRESS[kind](data))
    return [*records_of(number, data)]


def findings(prefix) -> set[str]:
    report = verify(VerifyOptions(str(prefix), level="deep"))
    return {finding.code for product in report.products for finding in product.findings}


def rejected_positions(prefix) -> list[int]:
    listed = Path(f"{prefix}.tokshard/rejected.jsonl")
    return (
        [json.loads(line)["offset"] for line in listed.read_bytes().splitlines()] if listed.exists() else []
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


def options_of(subset) -> dict:
    """Return a subset as options of tokenize."""
    options = {"limit": subset["limit"], "max_tokens": subset["max_tokens"]}
    if subset["sample"] is not None:
        options |= {"sample": subset["sample"], "sample_seed": subset["seed"]}
    if subset["holdout"] is not None:
        options |= {
            "holdout": subset["holdout"],
            "holdout_key": subset["key"],
            "holdout_seed": subset["seed"],
        }
    return options


def write_corpus(directory: Path, corpus) -> tuple[list[str], list]:
    """Write the inputs; return their paths, and all records as the twin takes them."""
    paths, records = [], []
    for number, (kind, content) in enumerate(corpus):
        paths.append(directory / f"{number}.{'parquet' if kind == 'parquet' else 'jsonl'}")
        records += write_input(paths[-1], number, kind, content)
    return [str(path) for path in paths], records


@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    corpus=st.lists(inputs, min_size=1, max_size=3),
    subset=subsets,
    unit_bytes=st.integers(1, 90),
    provenance=st.booleans(),
)
def test_subsets_equal_the_twin(tmp_path_factory, corpus, subset, unit_bytes, provenance):
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
            unit_bytes=unit_bytes,
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
    left = sum(report.rejected.values()) + sum(report.excluded.values())
    assert report.records == report.documents + left
    assert report.documents == sum(map(len, expected))
    assert run().up_to_date
