"""scripts/bench startup: startup time of the command line and of the library."""

from __future__ import annotations

import argparse
import sys

from measure import Contender, compare, machine


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
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
        ],
        options.rounds,
    )
    print(machine("tokshard", "typer"))
    print(f"{'command':<31}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}")
    for name, result in results.items():
        times = f"{result.seconds:>9.3f}{result.cpu_seconds:>9.3f}"
        print(f"{name:<31}{times}{result.peak_bytes / 1e6:>9.0f}")
