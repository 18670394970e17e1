"""``tokshard completion``: completion of commands, options and choices in a shell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tokshard.cli import terminal
from tokshard.cli.command_run import command_run
from tokshard.errors import UsageError

_VARIABLE = "_TOKSHARD_COMPLETE"
"""Set by the script that a shell runs, when it asks for completions."""

_SHELLS = ("bash", "zsh", "fish")


def _shells(incomplete: str) -> list[str]:
    return [shell for shell in _SHELLS if shell.startswith(incomplete)]


def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="SHELL", help="The shell that runs the script: bash, zsh or fish.", autocompletion=_shells
        ),
    ],
) -> None:
    """Print a completion script for bash, zsh or fish.

    The script completes commands, options and their choices. Load it in the startup file of the shell, as
    below, and open a new shell.

    Examples:
        echo 'eval "$(tokshard completion bash)"' >> ~/.bashrc
        echo 'eval "$(tokshard completion zsh)"' >> ~/.zshrc    # after compinit
        tokshard completion fish > ~/.config/fish/completions/tokshard.fish
    """
    from typer._completion_shared import get_completion_script

    with command_run():
        if shell not in _SHELLS:
            raise UsageError(
                f"the shell must be bash, zsh or fish, got {shell!r}", hint="run `tokshard completion bash`"
            )
        script = get_completion_script(prog_name="tokshard", complete_var=_VARIABLE, shell=shell)
        terminal.say(script.strip())


def prepare() -> None:
    """Let the option parser answer the script, if that runs this process."""
    if _VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def items(summaries: Mapping[str, str], incomplete: str) -> list[Any]:
    """Return the commands that a text can be completed to."""
    from typer._click.shell_completion import CompletionItem

    return [
        CompletionItem(name, help=text) for name, text in summaries.items() if name.startswith(incomplete)
    ]
