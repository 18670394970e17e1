"""scripts/bench startup: startup time of the command line and of the library."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import ROOT, TOKSHARD, Contender, compare, machine

TOKENIZED_BYTES = 6_500_000


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tokenizer", default=str(ROOT / "sample_data/tokenizer.json"), metavar="FILE")
    parser.add_argument("--text", type=Path, default=ROOT / "sample_data/stories.jsonl", metavar="FILE")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tokshard-startup-") as directory:
        _measure(options, Path(directory))


def _measure(options: argparse.Namespace, directory: Path) -> None:
    from tokshard.cli.main import COMMANDS

    python = [sys.executable, "-c"]
    command = [*python, "import sys; from tokshard.cli.main import main; main()"]
    helps = [(f"tokshard {name} --help", [name, "--help"]) for name in COMMANDS]
    results = compare(
        [
            Contender("python -c pass", [*python, "pass"], 1),
            Contender("import tokshard", [*python, "import tokshard"], 1),
            Contender("tokshard --version", [*command, "--version"], 1),
            Contender("tokshard --help", [*command, "--help"], 1),
            *(Contender(name, [*command, *words], 1) for name, words in helps),
            _tokenize(options, directory),
        ],
        options.rounds,
    )
    print(machine("tokshard", "typer"))
    print(f"{'command':<31}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}")
    for name, result in results.items():
        times = f"{result.seconds:>9.3f}{result.cpu_seconds:>9.3f}"
        print(f"{name:<31}{times}{result.peak_bytes / 1e6:>9.0f}")


def _tokenize(options: argparse.Namespace, directory: Path) -> Contender:
    text, output = directory / "text.jsonl", directory / "out"
    with text.open("wb") as file:
        while file.tell() < TOKENIZED_BYTES:  # line by line: a small process measures the peaks of others
            with options.text.open("rb") as lines:
                for line in lines:
                    file.write(line)
                    if file.tell() >= TOKENIZED_BYTES:
                        break
    words = ["tokenize", str(text), "-o", str(output / "x"), "--tokenizer", options.tokenizer, "--quiet"]
    # As in an installed package, modules are compiled once: the first round does it.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    remove = partial(shutil.rmtree, output, ignore_errors=True)
    return Contender("tokshard tokenize (6.5 MB)", [*TOKSHARD, *words], 1, remove, environment=compiled)
