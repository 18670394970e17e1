"""``tokshard help``."""

from __future__ import annotations

from typing import Annotated

import typer


def _commands(ctx: typer.Context, incomplete: str) -> list[str]:
    names = ctx.find_root().command.list_commands(ctx)  # type: ignore[attr-defined]
    return [name for name in names if name.startswith(incomplete)]


def help(  # noqa: A001 - the name of the command
    ctx: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="The command to explain.", autocompletion=_commands),
    ] = None,
) -> None:
    """Print the help of a command, or the list of all commands.

    Examples:
        tokshard help
        tokshard help tokenize
    """
    ctx.find_root().command.main([*([command] if command else []), "--help"])
