"""How long the command line and the library take to start."""

from __future__ import annotations

import argparse
import sys

from measure import Contender, compare, machine


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    command = [sys.executable, "-c", "import sys; from tokshard.cli.main import main; main()"]
    results = compare(
        [
            Contender("python -c pass", [sys.executable, "-c", "pass"], 1),
            Contender("import tokshard", [sys.executable, "-c", "import tokshard"], 1),
            Contender("tokshard --version", [*command, "--version"], 1),
            Contender("tokshard --help", [*command, "--help"], 1),
            Contender("tokshard tokenize --help", [*command, "tokenize", "--help"], 1),
        ],
        options.rounds,
    )
    print(machine("tokshard", "typer", "rich"))
    print(f"{'command':<28}{'seconds':>9}{'peak MB':>9}")
    for name, result in results.items():
        print(f"{name:<28}{result.seconds:>9.3f}{result.peak_bytes / 1e6:>9.0f}")
