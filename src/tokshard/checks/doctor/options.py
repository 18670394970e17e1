"""Options of ``tokshard doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import Count
from tokshard.core.options import Option, Options, StrPaths, several
from tokshard.samples.index.options import (
    Like,
    MegatronVersion,
    NamingOptions,
    PathAs,
    TokenizerIdentifiers,
)

_LAUNCH = "Launch script"


def parse_variable(text: str) -> tuple[str, str]:
    """Return the name and the value of a pair of ``--set``; the value may be empty.

    Raises:
        ValueError: It is not such a pair.

    Example:
        >>> parse_variable("SLURM_NNODES=8"), parse_variable("EXTRA=")
        (('SLURM_NNODES', '8'), ('EXTRA', ''))
    """
    name, separator, value = text.partition("=")
    if not (separator and name.isidentifier()):
        raise ValueError(f"must be NAME=VALUE such as SLURM_NNODES=8, got {text!r}")
    return name, value


VARIABLES = Option(
    "Set a variable of the launch script's environment, for example SLURM_NNODES=8.",
    name="--set",
    metavar="NAME=VALUE",
    parse=parse_variable,
    group=_LAUNCH,
)
ITERATION = Option(
    "Assume that the job resumes from the checkpoint of iteration N. It decides the consumed samples of a "
    "plan and, with --phase-transition-iterations, the number of samples.",
    default="0",
    group=_LAUNCH,
)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """Options of :func:`tokshard.doctor`.

    A single ``launch`` is a path, or the text of a launch command; several are the words of a command, or a
    script and its parameters. Without ``megatron``, ``like`` and ``tokenizer_identifiers``, the version of
    Megatron is the one under whose names most files exist. ``tokenizer_identifiers`` is a path or the
    identifiers themselves. Variables that are not given are unknown, except that a script's own defaults
    (``${NAME:-default}``) count. Without ``iteration`` the launch text decides, or the job starts from the
    beginning.

    Raises:
        UsageError: Several options give the tokenizer, or a value is invalid.
    """

    launch: Annotated[
        StrPaths,
        Option(
            "The job's arguments after --, in place of the launcher and the program; a launch script with "
            "its parameters; a log, or a JSON or YAML file of arguments; a launch command; or - for stdin.",
            is_argument=True,
            metavar="LAUNCH...",
        ),
    ]
    megatron: MegatronVersion = None
    like: Like = None
    tokenizer_identifiers: TokenizerIdentifiers = None
    path_as: PathAs = ()
    variables: Annotated[tuple[tuple[str, str], ...], VARIABLES] = ()
    iteration: Annotated[Count | None, ITERATION] = None

    @property
    def launch_words(self) -> tuple[str, ...]:
        """The launch command, script or text."""
        return several(self.launch)

    @property
    def naming(self) -> NamingOptions:
        """The tokenizer of the job."""
        return NamingOptions(
            like=self.like, tokenizer_identifiers=self.tokenizer_identifiers, megatron=self.megatron
        )
