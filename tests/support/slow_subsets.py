"""Slow twins of subsets: all records are read, chosen and encoded one by one."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import tokenizers
import xxhash
from pyarrow import parquet

from support.corpus_units import COMPRESS
from support.tokenize_runs import TOKENIZER
from tokshard import VerifyOptions, verify
from tokshard.errors import InputError, UsageError

LIBRARY = tokenizers.Tokenizer.from_file(TOKENIZER)
EOD = LIBRARY.token_to_id("<|endoftext|>")


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


def write_input(path: Path, number: int, kind: str, content: list):
    """Write an input; return its records as the twin takes them."""
    if kind == "parquet":
        schema = pa.schema({"text": pa.string(), "key": pa.int32()})
        parquet.write_table(pa.Table.from_pylist(content, schema), path, row_group_size=2)
        return [(number, row, None if value["text"] is None else value) for row, value in enumerate(content)]
    data = b"".join(line + b"\n" for line in content)
    path.write_bytes(COMPRESS[kind](data))
    return [*records_of(number, data)]


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


def findings(prefix) -> set[str]:
    report = verify(VerifyOptions(path=str(prefix), level="deep"))
    return {finding.code for product in report.products for finding in product.findings}


def rejected_positions(prefix) -> list[int]:
    listed = Path(f"{prefix}.tokshard/rejected.jsonl")
    return (
        [json.loads(line)["offset"] for line in listed.read_bytes().splitlines()] if listed.exists() else []
    )
