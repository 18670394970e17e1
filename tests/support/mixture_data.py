"""Small datasets for the commands about indexes and blends, and what Megatron says of its tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from typer.testing import CliRunner

from support.index_caches import write_dataset
from tokshard.cli.main import app

WEB = [5, 0, 17, 3, 40, 1, 9, 26, 2, 31, 8, 12] * 5
CODE = [7, 21, 2, 2, 33, 11, 0, 4] * 6
NAMES = ("--megatron", "0.19", "--tokenizer-model", "/models/llama")
JOB_TOKENIZER = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/models/llama")


@dataclass
class Done:
    """What a command has done; the same names as those of a process that has ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self):
        return json.loads(self.stdout)


def run(*arguments, stdin=None):
    """Run a command in this process and directory, in a tenth of the time of a process of its own."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    return Done(result.exit_code, result.stdout, result.stderr)


def write_mixture(directory):
    """Write ``data/web`` (770 tokens) and ``data/code`` (480 tokens)."""
    write_dataset(str(directory / "data/web"), WEB)
    write_dataset(str(directory / "data/code"), CODE, first_token=1000)
    return directory


def files_of(directory):
    """Return the content of each file in a cache but our own."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if not path.name.endswith("-tokshard.json")
    }
