"""The option ``--from-launch`` of the commands that build indexes, and what it excludes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tokshard import BlendOptions, BuildIndicesOptions, DoctorOptions
from tokshard.cli import options
from tokshard.cli.declarations import text
from tokshard.core.formatting import shown_path
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError

if TYPE_CHECKING:
    import typer

    from tokshard.checks.doctor.from_launch import LaunchIndexes

MAX_STDIN_BYTES = 64 << 20

FromLaunch = Annotated[
    str | None,
    text(
        "--from-launch",
        metavar="LAUNCH",
        help="Build what the job of a launch script looks up, as tokshard doctor reads it: the path of a "
        "script, the script with its parameters or a whole command in quotes, or - for stdin.",
    ),
]

_TOGETHER = frozenset(
    {
        *("from_launch", "variables", "iteration", "megatron", "like", "tokenizer_identifiers"),
        *("tokenizer", "path_as"),
        *("output", "cache_dir", "rebuild", "allow_tokenizer_mismatch", "force", "dry_run"),
        *("lock", "pack", "max_documents_per_sample", "pad_multiple"),
        *("emit", "workers"),
        *("as_json", "quiet", "no_progress"),
    }
)
OptionsT = TypeVar("OptionsT", BlendOptions, BuildIndicesOptions)


def read_launch(word: str) -> str:
    """Return the value of ``--from-launch``, or the text on stdin for a hyphen."""
    if word != "-":
        return word
    # Text ends with a newline, so that it cannot be the name of a file.
    return sys.stdin.buffer.read(MAX_STDIN_BYTES).decode("utf-8", "surrogateescape") + "\n"


def indexes_of(context: typer.Context, values: Mapping[str, Any]) -> LaunchIndexes | None:
    """Return the indexes of the job that ``--from-launch`` names; None without it.

    Args:
        context: The context of the command.
        values: The values of its options, by their names in Python.

    Raises:
        UsageError: An option is given that the launch command decides about, or see
            :func:`~tokshard.checks.doctor.from_launch.indexes_of_launch`.
        InputError, StorageError: See there.
    """
    launch = values["from_launch"]
    if launch is None:
        for option, name in (("--set", "variables"), ("--iteration", "iteration")):
            if values[name] not in (None, []):
                raise UsageError(f"{option} requires --from-launch", hint="pass --from-launch SCRIPT")
        return None
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _TOGETHER or not _is_given(context, name):
            continue
        if parameter.param_type_name == "argument":
            script = shlex.quote(" ".join([launch, *values[name]]))
            raise UsageError(
                f"--from-launch and the argument {values[name][0]!r} exclude each other",
                hint=f"quote a script together with its parameters: --from-launch {script}",
            )
        raise UsageError(
            f"--from-launch and {parameter.opts[0]} exclude each other",
            hint=f"remove {parameter.opts[0]}: the launch command decides about it",
        )
    from tokshard.checks.doctor.from_launch import indexes_of_launch

    return indexes_of_launch(
        DoctorOptions(
            read_launch(launch),
            megatron=values["megatron"],
            like=values["like"],
            tokenizer_identifiers=values["tokenizer_identifiers"],
            path_as=options.parse_path_as(values["path_as"]),
            variables=options.parse_variables(values["variables"]),
            iteration=values["iteration"],
        )
    )


def adjusted(chosen: OptionsT, values: Mapping[str, Any], **changes: Any) -> OptionsT:
    """Return the options of a launch script's indexes with those of the command line.

    Raises:
        UsageError: Both name a cache directory.
    """
    if (directory := values["cache_dir"]) is not None:
        if chosen.cache_directory is not None:
            raise UsageError(
                "--from-launch and --cache-dir exclude each other: the launch command has --data-cache-path "
                f"{os.fspath(chosen.cache_directory)}",
                hint="remove --cache-dir; pass --path-as LOCAL=TRAINING if the cache has another path here",
            )
        changes["cache_directory"] = directory
    if values["tokenizer"] is not None:
        changes["naming"] = replace(chosen.naming, tokenizer=values["tokenizer"])
    return replace(chosen, **changes)


def check_packing(indexes: LaunchIndexes, pack: str | None) -> None:
    """Refuse to pack samples for a job that cannot read them.

    Raises:
        UsageError: The job computes the sizes of indexes from token counts.
    """
    if pack == "best-fit" and indexes.defers_index_loading:
        raise UsageError(
            "--pack best-fit and --dataloader-defer-npy-index-mmap in the launch command exclude each other: "
            "deferred loading computes the number of samples from token counts",
            hint="remove --dataloader-defer-npy-index-mmap from the launch command",
        )


def packing_words(values: Mapping[str, Any]) -> list[str]:
    """Return the options of the packing as they were given."""
    given = {"--pack": values["pack"] if values["pack"] != "concat" else None}
    given["--max-documents-per-sample"] = values["max_documents_per_sample"]
    given["--pad-multiple"] = values["pad_multiple"]
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def following(indexes: LaunchIndexes, cache: str | os.PathLike[str] | None, values: Mapping[str, Any]) -> str:
    """Return the next step: the doctor, after the launch command names the cache."""
    words = ["tokshard", "doctor"]
    for option in ("--megatron", "--like", "--tokenizer-identifiers"):
        value = values[option[2:].replace("-", "_")]
        words += [] if value is None else [option, value]
    for option, name in (("--set", "variables"), ("--path-as", "path_as")):
        words += [word for pair in values[name] or () for word in (option, pair)]
    words += [] if values["iteration"] is None else ["--iteration", str(values["iteration"])]
    command = f"check the launch script with `{shlex.join([*words, values['from_launch']])}`"
    if indexes.cache_directory is not None or cache is None:
        return command
    directory = PathMapping.of(options.parse_path_as(values["path_as"])).map(os.fspath(cache))
    return f"add --data-cache-path {shlex.quote(shown_path(directory))} to the launch command; {command}"


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
