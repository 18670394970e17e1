"""One run of a command: errors become messages, progress is drawn, the result is shown."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NoReturn

import typer

from tokshard.cli import failures, rendering, terminal
from tokshard.cli.help_page import MESSAGES
from tokshard.cli.meters import make_meter
from tokshard.core.options import RUN, Option, Options
from tokshard.core.presentation import Section
from tokshard.core.progress import Progress
from tokshard.errors import OlderVersionWarning


@dataclass(frozen=True, kw_only=True)
class DryRun(Options):
    """The option of commands that can plan only."""

    dry_run: Annotated[bool, Option("Print what would be done, and stop.", group=RUN, with_launch=True)] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class CommandRun(Options):
    """The common part of a command: its progress, warnings and result."""

    as_json: Annotated[bool, Option("Print the result as JSON.", name="--json", group=MESSAGES)] = False
    quiet: Annotated[bool, Option("Print only errors.", aliases=("-q",), group=MESSAGES)] = False
    no_progress: Annotated[bool, Option("Hide the progress bar.", group=MESSAGES)] = False

    @cached_property
    def progress(self) -> Progress:
        """The listener to work that takes long."""
        return make_meter(quiet=self.quiet, animated=not self.no_progress)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Run the block as a command: errors in it become messages and exit codes."""
        with failures.reported(as_json=self.as_json), _notes_shown(quiet=self.quiet):
            yield

    def warn(self, warnings: Sequence[str], hint: str | None = None) -> None:
        """Print warnings, with a hint to the last of them, on stderr."""
        if self.quiet or not warnings:
            return
        for warning in warnings:
            rendering.tell(f"warning: {warning}")
        if hint is not None:
            rendering.tell(f"hint: {hint}")

    def show(self, report: Any, view: Callable[[Any], Sequence[Section]] | None = None) -> None:
        """Print a result: as JSON, as sections (its own if there is no ``view``), or not at all."""
        if self.as_json:
            terminal.say_json(report.to_json())
        elif not self.quiet:
            rendering.show(view(report) if view else report.sections())

    def found_problems(self) -> NoReturn:
        """End with exit code 1."""
        raise typer.Exit(1)


@contextmanager
def _notes_shown(*, quiet: bool) -> Iterator[None]:
    """Print one note for each file of an earlier version when the block ends."""
    notes: dict[str, str] = {}

    def show(message: Warning | str, category: type[Warning], *where: Any, **named: Any) -> None:
        if isinstance(message, OlderVersionWarning):
            notes.setdefault(os.path.abspath(message.path or ""), str(message))
        else:
            show_other(message, category, *where, **named)

    with warnings.catch_warnings():
        warnings.simplefilter("always", OlderVersionWarning)
        show_other, warnings.showwarning = warnings.showwarning, show
        try:
            yield
        finally:
            for note in () if quiet else sorted(notes.values()):  # threads find them in any order
                rendering.tell(f"note: {note}")
