"""scripts/bench startup: short commands as whole processes, from a help page to a job of a second.

The ratios refer to a Python process that only imports numpy. The first round is not counted: it compiles
modules to bytecode, and loops to machine code.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
from measure import ROOT, TOKSHARD, Contender, parser, session

from tokshard.cli.main import COMMANDS
from tokshard.dataset.index_file import write_index
from tokshard.storage.files import AtomicFile

TOKENIZED_BYTES = 6_500_000
DOCUMENTS = 900_000
LONGEST_DOCUMENT = 1000
SEQUENCE_LENGTH = 4096
DTYPE = np.dtype("<u2")


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the inputs, measure."""
    options = parser("startup", __doc__, rounds=11)
    options.set_defaults(discard=1)
    options.add_argument("--tokenizer", default=str(ROOT / "sample_data/tokenizer.json"), metavar="FILE")
    options.add_argument("--text", type=Path, default=ROOT / "sample_data/stories.jsonl", metavar="FILE")
    options.add_argument("--only", default="", help="rows whose name contains this")
    with session(options, arguments, "tokshard", "numpy", "typer", "fastokens", "tokenizers") as bench:
        directory = bench.directory
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
        rows = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import tokshard": [sys.executable, "-c", "import tokshard"],
            "tokshard --version": [*TOKSHARD, "--version"],
            "tokshard --help": [*TOKSHARD, "--help"],
            **{f"tokshard {name} --help": [*TOKSHARD, name, "--help"] for name in COMMANDS},
            **_jobs(bench.options, directory),
        }
        base = "import numpy"
        chosen = {name: command for name, command in rows.items() if bench.options.only in name}
        remove = partial(shutil.rmtree, directory / "out", ignore_errors=True)
        bench.compare(
            [
                Contender(name, command, before=remove, environment=environment)
                for name, command in {base: [sys.executable, "-c", base], **chosen}.items()
            ],
            base=base,
        )


def _jobs(options, directory: Path) -> dict[str, list[str]]:
    text, out = directory / "text.jsonl", str(directory / "out")
    _repeat(options.text, text)
    size = ["--seq-length", str(SEQUENCE_LENGTH), "--quiet"]
    whole = str(_dataset(directory / "whole", DOCUMENTS))
    parts = [str(_dataset(directory / f"part{number}", DOCUMENTS // 3)) for number in range(3)]
    weighted = [word for weight, part in zip("532", parts, strict=True) for word in (f"0.{weight}", part)]
    samples = str(DOCUMENTS * LONGEST_DOCUMENT // 2 // SEQUENCE_LENGTH // 2)
    tokenize = ["tokenize", str(text), "-o", f"{out}/x", "--tokenizer", options.tokenizer, "--quiet"]
    return {
        f"tokenize, {TOKENIZED_BYTES / 1e6} MB": [*TOKSHARD, *tokenize],
        f"build-indices, {DOCUMENTS:,} documents": [
            *[*TOKSHARD, "build-indices", whole, *size, "--epochs", "1", "--cache-dir", out]
        ],
        f"blend, 3 datasets, {DOCUMENTS:,} documents": [
            *[*TOKSHARD, "blend", "-o", out, *weighted, *size, "--num-samples", samples]
        ],
    }


def _repeat(source: Path, target: Path) -> None:
    lines = source.read_bytes().splitlines(keepends=True)
    with target.open("wb") as file:
        while file.tell() < TOKENIZED_BYTES:
            for line in lines:
                file.write(line)
                if file.tell() >= TOKENIZED_BYTES:
                    break


def _dataset(prefix: Path, documents: int) -> Path:
    # The tokens are not read: a hole of the right size.
    lengths = np.random.RandomState(documents).randint(1, LONGEST_DOCUMENT, size=documents, dtype="<i4")
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(int(lengths.sum(dtype=np.int64)) * DTYPE.itemsize)
    with AtomicFile(f"{prefix}.idx") as file:
        write_index(
            file,
            dtype=DTYPE,
            sequence_count=documents,
            document_count=documents,
            lengths=lambda: [lengths],
            sequences_per_document=lambda: [np.ones(documents, "<i4")],
        )
    return prefix
