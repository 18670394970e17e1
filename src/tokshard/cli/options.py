"""Options that several commands share: indexes, names and messages."""

from __future__ import annotations

from typing import Annotated, Literal

from tokshard.cli import declarations
from tokshard.cli.help_page import MESSAGES
from tokshard.errors import UsageError

NAMES = "File names that a Megatron job looks up"
RUN = "Run"

Like = Annotated[
    str | None,
    declarations.text(
        "--like",
        metavar="DESCRIPTION.txt",
        help="Take the tokenizer identifiers, and settings not given here, from a description in the job's "
        "cache.",
        group=NAMES,
    ),
]
TokenizerIdentifiers = Annotated[
    str | None,
    declarations.text(
        "--tokenizer-identifiers",
        metavar="FILE.json",
        help="Read the tokenizer identifiers from the output of `python -m "
        "tokshard.dump_tokenizer_identifiers`.",
        group=NAMES,
    ),
]
MegatronVersion = Annotated[
    str | None,
    declarations.text(
        "--megatron",
        metavar="VERSION",
        help="Use the file names of this Megatron Core version: 0.15, 0.16, 0.17, 0.18, 0.19 or "
        "main-20260822.",
        group=NAMES,
    ),
]
PathAs = Annotated[
    list[str] | None,
    declarations.text(
        "--path-as",
        metavar="LOCAL=TRAINING",
        help="Record data below LOCAL under the path TRAINING, which the job uses.",
        group=NAMES,
    ),
]
Variables = Annotated[
    list[str] | None,
    declarations.text(
        "--set",
        metavar="NAME=VALUE",
        help="Set a variable of the launch script's environment, for example SLURM_NNODES=8.",
        group=NAMES,
    ),
]
Iteration = Annotated[
    int | None,
    declarations.integer(
        "--iteration",
        help="The iteration of the checkpoint that the job resumes from. With --phase-transition-iterations, "
        "it decides the number of samples.",
        default="0",
        group=NAMES,
    ),
]
LockChoice = Literal["flock", "none"]
Lock = Annotated[
    LockChoice,
    declarations.choice(
        LockChoice,
        "--lock",
        help="Lock the output with flock, or not at all (none): for a file system that refuses locks, if "
        "only one run writes this output at a time.",
        group=RUN,
    ),
]
Force = Annotated[bool, declarations.switch("--force", help="Replace an existing output.", group=RUN)]
DryRun = Annotated[
    bool, declarations.switch("--dry-run", help="Print what would be done, and stop.", group=RUN)
]
AsJson = Annotated[bool, declarations.switch("--json", help="Print the result as JSON.", group=MESSAGES)]
Quiet = Annotated[bool, declarations.switch("--quiet", "-q", help="Print only errors.", group=MESSAGES)]
NoProgress = Annotated[
    bool, declarations.switch("--no-progress", help="Hide the progress bar.", group=MESSAGES)
]


def parse_path_as(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (path here, path at training time) of ``--path-as``.

    Raises:
        UsageError: The form of a pair is invalid.

    Example:
        >>> parse_path_as(["out=/data/v1"])
        (('out', '/data/v1'),)
    """
    return _parse_pairs("--path-as", "LOCAL=TRAINING", "out=/data/v1", pairs)


def parse_moved(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (old path, new path) of ``--moved``.

    Raises:
        UsageError: The form of a pair is invalid.
    """
    return _parse_pairs("--moved", "OLD=NEW", "/scratch/data=/mnt/data", pairs)


def parse_variables(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs (name, value) of ``--set``; values may be empty.

    Raises:
        UsageError: The form of a pair is invalid.

    Example:
        >>> parse_variables(["SLURM_NNODES=8", "EXTRA="])
        (('SLURM_NNODES', '8'), ('EXTRA', ''))
    """
    found = []
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not (separator and name.isidentifier()):
            raise UsageError(
                f"--set must be NAME=VALUE, got {pair!r}", hint="pass a pair such as --set SLURM_NNODES=8"
            )
        found.append((name, value))
    return tuple(found)


def _parse_pairs(
    option: str, form: str, example: str, pairs: list[str] | None
) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in pairs or []:
        first, separator, second = pair.partition("=")
        if not (first and separator and second):
            raise UsageError(
                f"{option} must be {form}, got {pair!r}", hint=f"pass a pair such as {option} {example}"
            )
        found.append((first, second))
    return tuple(found)
