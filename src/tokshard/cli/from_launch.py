"""The option ``--from-launch`` of the commands that build indexes, and the options that it replaces."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tokshard import BlendOptions, BuildIndicesOptions, DoctorOptions, ShardPlanOptions
from tokshard.checks.doctor.options import ITERATION, VARIABLES
from tokshard.cli.command_run import CommandRun
from tokshard.cli.generate import Given
from tokshard.core.codec import Count
from tokshard.core.options import Option, Options
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard.checks.doctor.from_launch import LaunchIndexes

MAX_STDIN_BYTES = 64 << 20
_NEUTRAL_NOTE = "Megatron will not find these files: the job's tokenizer was not specified"
_NEUTRAL_HINT = (
    "for Megatron pass --like DESCRIPTION.txt of that job's cache, --tokenizer-identifiers FILE.json, or "
    "--megatron 0.19 --tokenizer-type HuggingFaceTokenizer --tokenizer-model PATH"
)
OptionsT = TypeVar("OptionsT", BlendOptions, BuildIndicesOptions)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(Options):
    """Options about a launch script."""

    from_launch: Annotated[
        str | None,
        Option(
            "Take everything about the job from a launch script, as tokshard doctor reads it: the path of a "
            "script, the script with its parameters or a whole command in quotes, or - for stdin.",
            metavar="LAUNCH",
        ),
    ] = None
    variables: Annotated[
        tuple[tuple[str, str], ...], replace(VARIABLES, group=None, is_rare=True, requires="from_launch")
    ] = ()
    iteration: Annotated[
        Count | None, replace(ITERATION, group=None, is_rare=True, requires="from_launch")
    ] = None

    def indexes(self, given: Given[Any]) -> LaunchIndexes | None:
        """Return the indexes of the job that ``--from-launch`` names; None without it.

        Args:
            given: The options of the command.

        Raises:
            UsageError: An option is given that the launch command decides about, or see
                :func:`~tokshard.checks.doctor.from_launch.indexes_of_launch`.
            InputError, StorageError: See there.
        """
        if self.from_launch is None:
            return None
        self._refuse(given)
        from tokshard.checks.doctor.from_launch import indexes_of_launch

        names = ("megatron", "like", "tokenizer_identifiers", "path_as")
        passed = {name: given.values[name] for name in names if name in given.values}
        indexes = indexes_of_launch(self._job(self.from_launch, **passed))
        if given.values.get("pack") == "best-fit" and indexes.defers_index_loading:
            raise UsageError(
                "--pack best-fit cannot be used with --dataloader-defer-npy-index-mmap in the launch "
                "command: deferred loading computes the number of samples from token counts",
                hint="remove --dataloader-defer-npy-index-mmap from the launch command",
            )
        return indexes

    def plan(self, given: Given[ShardPlanOptions]) -> tuple[ShardPlanOptions, tuple[str, ...]]:
        """Return the options of a plan, with ``--from-launch`` those of its job, and warnings.

        Raises:
            UsageError, InputError: See :func:`~tokshard.checks.doctor.from_launch.plan_of_launch`.
        """
        if self.from_launch is None:
            return given.make(), ()
        from tokshard.checks.doctor.from_launch import plan_of_launch

        return plan_of_launch(self._job(self.from_launch), given.values)

    def _job(self, launch: str, **passed: Any) -> DoctorOptions:
        return DoctorOptions(
            launch=read_launch(launch), variables=self.variables, iteration=self.iteration, **passed
        )

    def _refuse(self, given: Given[Any]) -> None:
        """Refuse options that the launch command decides about."""
        for field, value in given.values.items():
            found = given.declared[field]
            if found.option.is_argument:
                script = shlex.quote(" ".join([str(self.from_launch), *value]))
                raise UsageError(
                    f"the argument {value[0]!r} cannot be used with --from-launch",
                    hint=f"quote a script together with its parameters: --from-launch {script}",
                )
            if not found.option.with_launch:
                name = found.words(value)[0]
                raise UsageError(
                    f"{name} cannot be used with --from-launch",
                    hint=f"remove {name}: the launch command decides about it",
                )


def read_launch(word: str) -> str:
    """Return the value of ``--from-launch``, or the text on stdin for a hyphen."""
    if word != "-":
        return word
    # Text ends with a newline, so that it cannot be the name of a file.
    return sys.stdin.buffer.read(MAX_STDIN_BYTES).decode("utf-8", "surrogateescape") + "\n"


def adjusted(options: OptionsT, given: Given[Any]) -> OptionsT:
    """Return the options of a launch script's indexes with those of the command line.

    Raises:
        UsageError: Both name a cache directory.
    """
    own = {field.name for field in fields(options)}
    changes = {name: value for name, value in given.values.items() if name in own}
    changes.pop("path_as", None)  # the options of the indexes have the pairs that change a path
    if "cache_dir" in changes and options.cache_dir is not None:
        raise UsageError(
            "--cache-dir cannot be used with --from-launch: the launch command has --data-cache-path "
            f"{os.fspath(options.cache_dir)}",
            hint="remove --cache-dir; pass --path-as LOCAL=TRAINING if the cache has another path here",
        )
    if "tokenizer" in given.values:
        changes["naming"] = replace(options.naming, tokenizer=given.values["tokenizer"])
    return replace(options, **changes)


def warn_early(options: OptionsT, run: CommandRun, *, names: bool = True) -> None:
    """Print the warnings that a user needs before the work begins, with ``names`` also about file names."""
    run.warn(options.early_warnings())
    if names and not options.naming.are_given:
        run.warn((_NEUTRAL_NOTE,), _NEUTRAL_HINT)
