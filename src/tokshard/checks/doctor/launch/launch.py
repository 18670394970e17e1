"""A launch command: its program and its data arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokshard.checks.doctor.launch.arguments import KINDS, LaunchArguments
from tokshard.checks.doctor.launch.launchers import LAUNCHERS, world_size_of
from tokshard.checks.doctor.launch.option_names import check_options, intended_option
from tokshard.checks.doctor.launch.options import parse_options
from tokshard.checks.doctor.launch.unknown import Unknown
from tokshard.checks.doctor.shell.values import Word
from tokshard.core.formatting import listed

# Real commands have a third of this number.
_MOST_OPTIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch command of a training job.

    Attributes:
        arguments: Its data arguments.
        program: The program that it starts, as written, or None.
        others: Its other options by their names in Megatron, and the text of their first operand.
        words: The command as it was understood; empty for a log or a file of arguments.
        line: The line of the script, from 1, or None if the text is no script.
        undecided: The lines of the script's launch commands under an undecided condition, and the expansions
            that decide it. They include the line of this command only if there is no other.
        unread: Scripts that the script runs or sources and that were not found.
    """

    arguments: LaunchArguments
    program: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    words: tuple[Word, ...] = ()
    line: int | None = None
    undecided: tuple[tuple[int, str], ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command as it was understood; unknown expansions stay as they are written."""
        return " ".join(word.text if word.unknown else shlex.quote(word.text) for word in self.words)

    def undecided_commands(self) -> list[Unknown]:
        """Return the launch commands of the script that run only under an undecided condition."""
        return [
            Unknown.depending_on(
                [reasons], f"the command on line {line} may not run: it depends on {reasons}"
            )
            for line, reasons in self.undecided
        ]

    def unread_scripts(self) -> Unknown | None:
        """Return the scripts that were not found and may set variables, or None."""
        if not self.unread:
            return None
        scripts = listed(self.unread)
        reason = f"not found: {scripts}; they may set variables or start jobs"
        return Unknown(reason, "run doctor on a machine and in a directory where the script finds them")

    @property
    def program_name(self) -> str:
        """The last part of the program's path."""
        return (self.program or "").rsplit("/", 1)[-1]


def launch_of_words(
    words: Sequence[Word],
    wrappers: Sequence[Word] = (),
    variables: Mapping[str, str] | None = None,
) -> Launch:
    """Parse the words of a launch command.

    Args:
        words: The command.
        wrappers: The words of the wrappers that run it.
        variables: Variables of the job scheduler.

    Example:
        >>> launch = launch_of_words([Word("torchrun"), Word("pretrain_gpt.py"), Word("--seed=7")])
        >>> launch.program, launch.arguments.seed, launch.arguments.world_size
        ('pretrain_gpt.py', 7, 1)
    """
    start = next((at + 1 for at, word in enumerate(words) if _is_program(words, at)), None)
    program = None if start is None else words[start - 1].text
    before = words[:start]
    if start is None:
        start = next((at for at, word in enumerate(words) if word.text.startswith("--")), len(words))
    parsed = parse_options(words[start:])
    # Without a program, the options may be those of a launcher.
    given = parsed.given[:_MOST_OPTIONS] if program is not None or start == 0 else []
    # mpirun separates several programs with a colon; their processes are one job.
    colons = [word for word in words[start:] if word.text == ":"]
    world = world_size_of((*wrappers, *before, *colons), variables or {})
    unknown = dict(parsed.unknown)
    for name, _ in given:
        attribute = (intended_option(name) or "").replace("-", "_")
        if attribute in KINDS and attribute not in parsed.values:
            unknown.setdefault(attribute, f"--{name}")
    if isinstance(world, str):
        unknown["world_size"] = world
    arguments = LaunchArguments(
        **parsed.values,
        world_size=world if isinstance(world, int) else None,
        unknown=tuple(unknown.items()),
        unseen=tuple(parsed.unseen),
        problems=(*parsed.problems, *check_options(given)),
    )
    return Launch(arguments=arguments, program=program, others=parsed.others, words=(*wrappers, *words))


def _is_program(words: Sequence[Word], at: int) -> bool:
    text, before = words[at].text, words[at - 1].text if at else ""
    if before == "-m":
        return text not in LAUNCHERS
    return text.endswith(".py") and not text.startswith("-") and before != "-c"
