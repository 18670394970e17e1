"""Options of ``tokshard doctor``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tokshard.core.options import Option
from tokshard.errors import UsageError
from tokshard.samples.index.options import NAMES, NamingOptions


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
    group=NAMES,
)
ITERATION = Option(
    "The iteration of the checkpoint that the job resumes from. With --phase-transition-iterations, it "
    "decides the number of samples.",
    default="0",
    group=NAMES,
)


@dataclass(frozen=True)
class DoctorOptions:
    """Options of :func:`tokshard.doctor`.

    Attributes:
        launch: The path of a launch script, a log, JSON or YAML; a launch command; the words of one; or the
            words that call a script: its path and its parameters.
        megatron: The version of Megatron Core of the job. Without one of these three options it is the one
            under whose names most files exist.
        like: A description that the job wrote.
        tokenizer_identifiers: A JSON file with the tokenizer's identifiers, or these themselves.
        variables: Pairs (name, value) of variables in the environment of the launch script. All others are
            unknown, except that the script's own defaults (``${NAME:-default}``) count.
        path_as: Pairs (path here, path at training time) of data and cache that this machine names otherwise.
        iteration: The iteration of the checkpoint that the job resumes from; None for what the text says, or
            a start from the beginning. It decides which phase a job with ``--phase-transition-iterations``
            is in.

    Raises:
        UsageError: Several options give the tokenizer, or the iteration is negative.
    """

    launch: str | os.PathLike[str] | tuple[str, ...]
    megatron: str | None = None
    like: str | os.PathLike[str] | None = None
    tokenizer_identifiers: str | os.PathLike[str] | dict[str, Any] | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    iteration: int | None = None

    def __post_init__(self) -> None:
        if self.iteration is not None and self.iteration < 0:
            raise UsageError(f"--iteration must be at least 0, got {self.iteration}")
        self.naming  # noqa: B018 - raises where options exclude each other

    @property
    def naming(self) -> NamingOptions:
        """The tokenizer of the job."""
        return NamingOptions(
            like=self.like, tokenizer_identifiers=self.tokenizer_identifiers, megatron=self.megatron
        )
