"""Commands of all kinds on small inputs in one directory, for tests of limits and of deleted directories."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "sample_data"
MIX = ["--split", "1,0,0", "--seq-length", "32", "--num-samples", "100"]
WEB = ["tokenize", "in/a.jsonl", "in/b.jsonl.gz", "-o", "web", "--tokenizer", "tok", "--unit-size", "16K"]
COMMANDS = [
    [*WEB, "--workers", "1"],  # a bad record ends it
    [*WEB, "--workers", "1", "--on-error", "skip"],
    [
        "tokenize",
        "in/b.jsonl.gz",
        "-o",
        "pooled",
        "--tokenizer",
        "tok",
        "--unit-size",
        "8K",
        "--workers",
        "2",
    ],
    ["tokenize", "in/b.jsonl.gz", "-o", "code", "--tokenizer", "tok", "--workers", "1"],
    ["tokenize", "in/table.parquet", "-o", "table", "--tokenizer", "tok", "--workers", "1"],
    ["merge", "web", "code", "-o", "both"],
    ["convert", "both.bin", "--from", "olmo", "--source-dtype", "uint16", "--eod-id", "0", "-o", "converted"],
    ["build-indices", "both", *MIX, "--cache-dir", "cache"],
    ["blend", "recipe.toml", *MIX, "-o", "mix"],
    ["blend", "recipe.toml", *MIX, "-o", "mix"],  # everything is up to date
    ["shard-plan", "mix", "--data-parallel", "2", "-o", "plan"],
    ["replan", "plan", "--consumed-samples", "20", "--data-parallel", "1", "-o", "next"],
    ["verify", "--recursive", ".", "--level", "deep"],
    ["inspect", "web", "--document", "2"],
    ["inspect", "mix"],
    ["inspect", "plan", "--rank", "1", "--step", "2"],
    ["inspect", "tok"],
    ["diff", "plan", "next"],
    ["trace", "plan", "--step", "1"],
    ["trace", "plan", "in/b.jsonl.gz:3"],
    ["doctor", "launch.sh"],
]
LAUNCH = (
    "torchrun pretrain_gpt.py --data-path 0.6 web 0.4 code --split 1,0,0 --seq-length 32 --train-iters 10 "
    "--global-batch-size 10 --eval-iters 0 --data-cache-path mix/cache --tokenizer-type NullTokenizer "
    "--vocab-size 5000\n"
)
RECIPE = '[[source]]\nprefix = "web"\nweight = 0.6\n[[source]]\nprefix = "code"\nweight = 0.4\n'
# Times and rates.
VARIABLE = re.compile(r"\b\d+(\.\d+)? m?s\b|[\d.,]+\w* \w*/s")


def make_inputs():
    for name in ("in", "tok"):
        os.mkdir(name)
    lines = (SAMPLE / "stories.jsonl").read_bytes().splitlines(keepends=True)
    Path("in/a.jsonl").write_bytes(b"".join(lines[:60]) + b'{"text": 7}\n')
    Path("in/b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[60:100]), mtime=0))
    write_table("in/table.parquet", [json.loads(line)["text"] for line in lines[:9]])
    for path in Path("in").iterdir():
        os.utime(path, (1, 1))  # it stands in the manifest
    Path("launch.sh").write_text(LAUNCH)
    Path("recipe.toml").write_text(RECIPE)
    shutil.copy(SAMPLE / "tokenizer.json", "tok")


def write_table(path, texts):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": texts}), path)


def invoke(arguments):
    """Run a command in this process; return its exit code and what it says."""
    from tokshard.cli.main import main

    sys.argv = ["tokshard", *arguments]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return code, out.getvalue() + err.getvalue()
