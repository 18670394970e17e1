"""``tokshard doctor``: options, one library call, one rendering."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard import NamingOptions
from tokshard.cli import failures, options, terminal
from tokshard.cli.events import recorded
from tokshard.cli.options import LogJson
from tokshard.errors import MissingFileError, UsageError

if TYPE_CHECKING:
    from tokshard.blending.plan import SplitPlan
    from tokshard.preflight.candidates import Candidate
    from tokshard.preflight.examination import Diagnosis
    from tokshard.preflight.launch.arguments import LaunchArguments
    from tokshard.preflight.lookups import Lookup, Nearest

FOUND_PROBLEMS = 1
_SHOWN_LOOKUPS = 12
_SHOWN_DIFFERENCES = 6
_SHOWN_VALUE = 60


def doctor(
    launch: Annotated[
        list[str],
        typer.Argument(
            metavar="LAUNCH...",
            help="A launch command; or one file with it: a script, arguments, a log, JSON; or - for stdin.",
            show_default=False,
        ),
    ],
    megatron: options.MegatronVersion = None,
    like: options.Like = None,
    tokenizer_identifiers: options.TokenizerIdentifiers = None,
    path_as: options.PathAs = None,
    as_json: options.AsJson = False,
    log_json: LogJson = None,
) -> None:
    """Say what a Megatron job will find in its cache of indexes, and what its data arguments will do.

    [bold]Examples[/bold]

    tokshard doctor launch.sh

    tokshard doctor --megatron 0.19 torchrun --nproc-per-node 8 pretrain_gpt.py --data-path data/web ...

    grep -A999 'arguments ---' job.log | tokshard doctor -

    Nothing is written and no index is built. The exit code is 1 if there are findings but notes. The version
    of Megatron, if it is not told, is that under whose names most files are there.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "doctor") as log:
        ways = {"--like": like, "--megatron": megatron, "--tokenizer-identifiers": tokenizer_identifiers}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} say the same thing: give one of them")
        arguments = _read(launch)
        from tokshard.preflight.examination import diagnose

        diagnosis = diagnose(
            arguments,
            tokenizer=_candidate(arguments, megatron, like, tokenizer_identifiers),
            path_as=options.parse_path_as(path_as),
        )
        log.warnings(f"{one.code}: {one.message}" for one in diagnosis.findings if one.is_problem)
        terminal.say_json(diagnosis.to_json()) if as_json else _show(diagnosis)
        if not diagnosis.is_healthy:
            raise typer.Exit(FOUND_PROBLEMS)


def _read(words: list[str]) -> LaunchArguments:
    from tokshard.preflight.launch.text import read_launch, read_launch_words
    from tokshard.storage.small_files import MAX_TEXT_BYTES, read_small_file

    if words == ["-"]:
        return read_launch(sys.stdin.buffer.read(MAX_TEXT_BYTES).decode("utf-8", "surrogateescape"))
    if len(words) > 1:
        return read_launch_words(words)
    if os.path.lexists(words[0]):
        return read_launch(read_small_file(words[0], "launch script").decode("utf-8", "surrogateescape"))
    if " " not in words[0].strip():
        raise MissingFileError(
            f"there is no file {words[0]}",
            path=words[0],
            hint="name a file that holds the launch command, or give the command itself",
        )
    return read_launch(words[0])


def _candidate(
    launch: LaunchArguments, megatron: str | None, like: str | None, identifiers: str | None
) -> Candidate | None:
    from tokshard.preflight.candidates import Candidate, identifiers_of_launch

    if megatron is not None:
        return Candidate(f"Megatron {megatron}", identifiers_of_launch(launch, megatron))
    names = NamingOptions(like=like, tokenizer_identifiers=identifiers)
    found = names.identifiers()
    return None if found is None else Candidate(f"as in {like or identifiers}", found)


def _show(diagnosis: Diagnosis) -> None:
    _show_job(diagnosis)
    for part in diagnosis.splits:
        _show_split(part)
    if diagnosis.lookups:
        terminal.say("")
        terminal.say(f"cache files, by the names of {terminal.safe(diagnosis.tokenizer)}:")
    missing_first = sorted(diagnosis.lookups, key=lambda one: one.state == "fresh")
    for lookup in missing_first[:_SHOWN_LOOKUPS]:
        _show_lookup(lookup)
    if len(missing_first) > _SHOWN_LOOKUPS:
        terminal.say(f"  and {len(missing_first) - _SHOWN_LOOKUPS} more (--json lists all)")
    terminal.say("")
    for finding in sorted(diagnosis.findings, key=lambda one: _ORDER[one.severity]):
        terminal.say(f"{finding.severity}: {finding.code}: {terminal.safe(finding.message)}")
        if finding.hint:
            terminal.say(f"  hint: {terminal.safe(finding.hint)}")
    if diagnosis.is_healthy:
        seen = "by the arguments that are seen " if diagnosis.launch.unseen else ""
        terminal.say(f"{seen}the job will find everything, and nothing about its data looks wrong")


_ORDER = {"error": 0, "warning": 1, "note": 2}


def _show_job(diagnosis: Diagnosis) -> None:
    launch, sizes = diagnosis.launch, diagnosis.sizes
    parts = []
    if launch.world_size is not None:
        parts.append(_plural(launch.world_size, "process", "processes"))
    if launch.data_parallel_size is not None:
        parts.append(_plural(launch.data_parallel_size, "data-parallel rank", "data-parallel ranks"))
    if launch.batch_size is not None:
        parts.append(f"batches of {terminal.count(launch.batch_size)}")
    if launch.sequence_length is not None:
        parts.append(f"samples of {terminal.count(launch.sequence_length)} tokens")
    terminal.say(f"job: {', '.join(parts) or 'nothing is known of it'}")
    if sizes is not None:
        asked = (f"{name} {_number(getattr(sizes, name))}" for name in ("train", "valid", "test"))
        terminal.say(f"asks for: {', '.join(asked)} samples")


def _show_split(plan: SplitPlan) -> None:
    if not plan.sources:
        terminal.say(f"{plan.name}: cannot be told, see below")
        return
    kinds = {
        "single": "one dataset",
        "exhaustive": "every sample of",
        "proportional": "a proportional blend of",
    }
    kind = kinds.get(plan.kind, "a blend by weights of")
    count = "" if plan.kind == "single" else f" {terminal.count(len(plan.sources))} datasets"
    terminal.say(f"{plan.name}: {kind}{count}, {terminal.count(plan.samples)} samples")


def _show_lookup(lookup: Lookup) -> None:
    state = lookup.state or "not known"
    reason = "" if state in {"fresh", "missing"} else f": it {terminal.safe(lookup.reason)}"
    terminal.say(f"  {state:<8} {lookup.split} of {terminal.safe(lookup.name)}{reason}")
    stem = os.path.join(lookup.entry.directory, lookup.entry.stem)
    terminal.say(f"           {terminal.safe(stem)}-*")
    if lookup.nearest is not None:
        _show_nearest(lookup.nearest)


def _show_nearest(nearest: Nearest) -> None:
    terminal.say(f"           nearest that is there: {terminal.safe(os.path.basename(nearest.path))}")
    for name, wanted, there in nearest.differences[:_SHOWN_DIFFERENCES]:
        terminal.say(
            f"             {terminal.safe(name)}: {_value(wanted)} is looked up, {_value(there)} is there"
        )
    if len(nearest.differences) > _SHOWN_DIFFERENCES:
        terminal.say(f"             and {len(nearest.differences) - _SHOWN_DIFFERENCES} more")


def _value(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return terminal.safe(text if len(text) <= _SHOWN_VALUE else text[:_SHOWN_VALUE] + "...")


def _plural(count: int, one: str, several: str) -> str:
    return f"{terminal.count(count)} {one if count == 1 else several}"


def _number(size: int | None) -> str:
    return "one epoch of" if size is None else terminal.count(size)
