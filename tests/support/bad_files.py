"""Files of each kind that commands read, the commands that read them, and the ways in which a file is bad."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from support.command_line import SAMPLE, tokshard
from tokshard.core.json_text import MAX_JSON_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TOKENIZE = ("--tokenizer", "tok/tokenizer.json", "-o", "new/web", "--workers", "1", "--quiet")
SAMPLES = ("--split", "1,0,0", "--seq-length", "32", "--num-samples", "20", "--quiet")
LAUNCH = (
    "torchrun pretrain_gpt.py --data-path 0.6 web 0.4 code --split 1,0,0 --seq-length 32 --train-iters 2 "
    "--global-batch-size 8 --eval-iters 0 --data-cache-path mix/cache --tokenizer-type NullTokenizer "
    "--vocab-size 5000 --megatron 0.16\n"
)
RECIPE = '[[source]]\nweight = 0.6\nprefix = "web"\n[[source]]\nweight = 0.4\nprefix = "code"\n# of both\n'
CONVERT = ("-o", "new/web", "--tokenizer", "tok/tokenizer.json", "--quiet")

_TEXT = (
    ("tokenize", "FILE", *TOKENIZE),
    ("tokenize", "FILE", *TOKENIZE, "--dry-run"),
    ("tokenize", "FILE", *TOKENIZE, "--on-error", "skip"),
    ("tokenize", "FILE", *TOKENIZE, "--array-task", "0/1"),
    ("tokenize", "in/good.jsonl", "FILE", *TOKENIZE, "--limit", "70"),
)
_DATASET = (
    ("inspect", "web"),
    ("inspect", "web", "--document", "3"),
    ("verify", "web"),
    ("merge", "web", "code", "-o", "new/all"),
    ("export", "web", "--to", "olmo", "-o", "new/export"),
    ("build-indices", "web", *SAMPLES, "--cache-dir", "new/cache"),
    ("blend", "0.6", "web", "0.4", "code", *SAMPLES, "-o", "new/mix"),
    ("trace", "web", "--document", "3"),
    ("doctor", "launch.sh"),
)
_INDEX = (
    ("inspect", "mix/cache"),
    ("verify", "mix/cache"),
    ("diff", "mix", "mix2"),
    ("doctor", "launch.sh"),
    ("shard-plan", "mix", "--data-parallel", "2", "-o", "new/plan"),
    ("trace", "mix", "--sample", "3"),
)
_BLEND = (
    ("inspect", "mix"),
    ("verify", "mix"),
    ("shard-plan", "mix", "--data-parallel", "2", "-o", "new/plan"),
    ("trace", "mix", "--sample", "3"),
    ("export", "mix", "--samples", "--to", "olmo", "-o", "new/export"),
)
_PLAN = (
    ("inspect", "plan", "--rank", "1"),
    ("verify", "plan"),
    ("diff", "plan", "plan2"),
    ("trace", "plan", "--step", "1"),
    ("replan", "plan", "--consumed-samples", "8", "--data-parallel", "1", "-o", "new/plan"),
)
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "in/a.jsonl": _TEXT,
    "in/a.jsonl.gz": _TEXT,
    "in/a.jsonl.bz2": _TEXT,
    "in/a.jsonl.xz": _TEXT,
    "in/a.jsonl.zst": _TEXT,
    "in/a.parquet": _TEXT,
    "in/a.arrow": _TEXT,
    "in/a.arrows": _TEXT,
    "in/list.txt": (("tokenize", "@FILE", *TOKENIZE),),
    "tok/tokenizer.json": (
        ("tokenize", "in/good.jsonl", *TOKENIZE),
        ("tokenize", "in/good.jsonl", *TOKENIZE, "--dry-run"),
        ("tokenize", "in/good.jsonl", "-o", "new/web", "--tokenizer", "tok"),
        ("inspect", "FILE"),
        ("inspect", "web", "--document", "3"),
        ("convert", "olmo", "--from", "olmo", *CONVERT),
    ),
    "web.bin": _DATASET,
    "web.idx": _DATASET,
    "web.tokshard/manifest.json": _DATASET,
    "mix/cache/*-GPTDataset-train-description.txt": _INDEX,
    "mix/cache/*-GPTDataset-train-sample_index.npy": _INDEX,
    "mix/cache/*-BlendedDataset-train-dataset_index.npy": _INDEX,
    "mix/blend.json": _BLEND,
    "plan/plan.json": _PLAN,
    "plan/rank-00001.json": _PLAN,
    "recipe.toml": (("blend", "FILE", *SAMPLES, "-o", "new/mix"),),
    "launch.sh": (
        ("doctor", "FILE"),
        ("build-indices", "--from-launch", "FILE", "--cache-dir", "new/cache"),
        ("shard-plan", "mix", "--from-launch", "FILE", "-o", "new/plan"),
    ),
    "olmo/*.npy": (
        ("convert", "FILE", "--from", "olmo", *CONVERT),
        ("convert", "olmo", "--from", "olmo", *CONVERT),
        ("verify", "olmo"),
    ),
    "olmo/*.csv.gz": (
        ("convert", "olmo", "--from", "olmo", *CONVERT),
        ("verify", "olmo"),
    ),
    "nanogpt/*.bin": (
        ("convert", "FILE", "--from", "nanogpt", *CONVERT),
        ("verify", "nanogpt"),
    ),
    "datatrove/*.ds": (
        ("convert", "FILE", "--from", "datatrove", *CONVERT),
        ("verify", "datatrove"),
    ),
    "datatrove/*.index": (("convert", "datatrove", "--from", "datatrove", *CONVERT),),
}
"""The commands that read each file; FILE is its name."""


def write_good_files(directory: Path) -> None:
    """Write one good file of each kind, in a directory from which all commands run."""
    import pyarrow as pa
    from pyarrow import parquet

    for name in ("in", "tok", "new"):
        (directory / name).mkdir()
    lines = (SAMPLE / "stories.jsonl").read_bytes().splitlines(keepends=True)[:80]
    text = b"".join(lines)
    (directory / "in/good.jsonl").write_bytes(b"".join(lines[:60]))
    (directory / "in/a.jsonl").write_bytes(text)
    (directory / "in/a.jsonl.gz").write_bytes(gzip.compress(text))
    (directory / "in/a.jsonl.bz2").write_bytes(bz2.compress(text))
    (directory / "in/a.jsonl.xz").write_bytes(lzma.compress(text))
    (directory / "in/a.jsonl.zst").write_bytes(zstd.compress(text))
    (directory / "in/list.txt").write_text("in/good.jsonl\n")
    table = pa.table({"text": [json.loads(line)["text"] for line in lines]})
    parquet.write_table(table, directory / "in/a.parquet", row_group_size=40)
    with pa.ipc.new_file(directory / "in/a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    with pa.ipc.new_stream(directory / "in/a.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    shutil.copy(SAMPLE / "tokenizer.json", directory / "tok")
    (directory / "launch.sh").write_text(LAUNCH)
    (directory / "recipe.toml").write_text(RECIPE)
    tokenizer = ("--tokenizer", "tok/tokenizer.json", "--workers", "1")
    for arguments in (
        ("tokenize", "in/a.jsonl", "-o", "web", *tokenizer),
        ("tokenize", "in/good.jsonl", "-o", "code", *tokenizer),
        ("blend", "0.6", "web", "0.4", "code", *SAMPLES, "-o", "mix"),
        ("shard-plan", "mix", "--data-parallel", "2", "-o", "plan"),
        ("export", "web", "--to", "olmo", "-o", "olmo"),
        ("export", "web", "--to", "nanogpt", "-o", "nanogpt"),
        ("export", "web", "--to", "datatrove", "-o", "datatrove"),
    ):
        done = tokshard(*arguments, cwd=directory)
        assert done.returncode == 0, done.stderr
    for product in ("mix", "plan"):
        shutil.copytree(directory / product, directory / f"{product}2")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(len(content) // 3, len(content), max(1, len(content) // 20)):
        content[position] ^= 0x5A
    path.write_bytes(content)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BAD: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "truncated": _cut,
    "damaged": _damage,
    "image": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200)),
    "compressed": lambda path: path.write_bytes(gzip.compress(path.read_bytes())),
    "tar": lambda path: path.write_bytes(b"x".ljust(257, b"\0") + b"ustar\x0000" + bytes(248)),
    "directory": _directory,
    "pipe": _pipe,
    "unreadable": lambda path: path.chmod(0),
}


def _first(field: bytes) -> Callable[[bytes], bytes]:
    """Return a function that inserts a field into a JSON object, as the first one."""
    return lambda content: content.replace(b"{", b"{" + field + b", ", 1)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "huge": (
        lambda content: content.ljust(MAX_JSON_BYTES + 1),
        "must have at most 67,108,864 bytes, got more",
    ),
    "deep arrays": (lambda _: b"[" * MAX_JSON_BYTES, "is nested too deeply"),
    "deep objects": (lambda _: b'{"a":' * (MAX_JSON_BYTES // 5), "is nested too deeply"),
    "wide": (_first(b'"x": [' + b"[[]]," * 200_000 + b"0]"), "x is unknown"),
    "nested": (_first(b'"x": ' + b"[" * 900 + b"]" * 900), "x is unknown"),
    "long key": (_first(b'"%s": 0' % (b"x" * 100_000)), "x" * 80 + " is unknown"),
    "long number": (_first(b'"x": ' + b"9" * 5000), "9" * 40 + "... is out of range"),
    "float out of range": (_first(b'"x": 1e999'), "1e999 is out of range"),
    "NaN": (_first(b'"x": NaN'), "NaN is not a JSON number"),
    "duplicate key": (_first(b'"x": 0, "x": 0'), "duplicate key 'x'"),
    "invalid UTF-8": (_first(b'"x": "\xff"'), "can't decode byte 0xff"),
    "lone surrogate": (_first(rb'"\ud800": 0'), r"\ud800 is unknown"),
    "NUL": (_first(b'"x": "\0"'), "Invalid control character"),
    "array": (lambda content: b"[" + content + b"]", "is not a JSON object"),
}
"""Ways in which the content of a JSON file is hostile, and what the error says of each."""
