"""Runs every command once, in one process, in a new directory: what it makes, and what it says.

    python every_command.py DIRECTORY [NAIVE]

Prints a JSON object: the exit code and the output of each command, and the digest of what the ranks read.
With a second argument, only the first command is run, with a naive reader, which takes the first bytes that
a read returns for all of them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
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
    ["trace", "--plan", "plan", "--step", "1"],
    ["trace", "--plan", "plan", "--source", "in/b.jsonl.gz:3"],
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


def run(arguments):
    from tokshard.text.tokenize import run as tokenization

    tokenization.INLINE_BYTES = 0 if "pooled" in arguments else 4 << 20  # in worker processes
    code, shown = invoke(arguments)
    for path in (*Path().glob("*.bin"), *Path().glob("*.idx")):
        os.utime(path, (1, 1))  # the manifest of a merge depends on it
    return [" ".join(arguments), code, VARIABLE.sub("...", shown.replace(os.getcwd(), "DIRECTORY"))]


def batches():
    """Return the digest of what the ranks read, or the error."""
    from tokshard.errors import TokshardError
    from tokshard.loader import RankLoader

    state = hashlib.sha256()
    try:
        for mmap in (True, False):
            for rank in range(2):
                loader = RankLoader.open("plan", rank=rank, mmap=mmap)
                for step in range(loader.steps):
                    state.update(loader.batch(step)["tokens"].tobytes())
    except TokshardError as error:
        return str(error)
    return state.hexdigest()


def read_naively():
    """Replace the reader before any module imports it."""
    from tokshard.storage import reading

    reading.read_at = os.pread
    reading.read_into = lambda file, target, offset: os.preadv(file, [target], offset)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        read_naively()
    os.mkdir(sys.argv[1])
    os.chdir(sys.argv[1])
    make_inputs()
    results = [run(arguments) for arguments in (COMMANDS if len(sys.argv) == 2 else COMMANDS[:1])]
    print(json.dumps({"commands": results, "batches": batches()}))
