"""The command line: options, one call of the public API, rendering."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; name the missing package if tokshard was installed without its dependencies."""
    try:
        from tokshard.cli.main import main
    except ModuleNotFoundError as error:
        if (error.name or "tokshard").startswith("tokshard"):
            raise
        print(  # noqa: T201 - what prints errors may be what is missing
            f"error: the tokshard command requires the package {error.name}, which is not installed\n"
            "hint: install tokshard again without --no-deps (tokshard.loader requires numpy only)",
            file=sys.stderr,
        )
        sys.exit(2)
    main()
