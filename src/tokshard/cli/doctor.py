"""``tokshard doctor``: options, one library call, one rendering."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tokshard
from tokshard import DoctorOptions
from tokshard.cli import options, rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import switch
from tokshard.cli.from_launch import read_launch
from tokshard.core.formatting import count, counted

if TYPE_CHECKING:
    from tokshard.checks.doctor.job import DoctorReport, JobDiagnosis
    from tokshard.checks.doctor.launch.rules import SkippedCheck
    from tokshard.checks.doctor.lookups import CacheLookup

_SHOWN_LOOKUPS = 12
_KINDS = {
    "single": "one dataset",
    "exhaustive": "every sample of",
    "proportional": "proportional blend of",
}
_SHOWN_DIFFERENCES = 6
_SHOWN_VALUE = 60


def doctor(
    launch: Annotated[
        list[str],
        typer.Argument(
            metavar="LAUNCH...",
            help="A launch script with its parameters; a file with arguments, a log, JSON or YAML; a launch "
            "command; or - for stdin.",
            show_default=False,
        ),
    ],
    megatron: options.MegatronVersion = None,
    like: options.Like = None,
    tokenizer_identifiers: options.TokenizerIdentifiers = None,
    path_as: options.PathAs = None,
    variables: options.Variables = None,
    iteration: options.Iteration = None,
    strict: Annotated[
        bool, switch("--strict", help="Exit with code 1 if checks were skipped, too.", group=options.RUN)
    ] = False,
    show_command: Annotated[
        bool,
        switch(
            "--show-command",
            help="Print the launch command as it was understood, and stop.",
            group=options.RUN,
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a Megatron launch script: what its data arguments will do, and which cached indexes it will find.

    Nothing is run, written or built. Variables that the script does not set are unknown; checks that need
    them are listed as skipped. The exit code is 1 if there are errors or warnings.

    Examples:
        tokshard doctor launch.sh
        tokshard doctor --set SLURM_NNODES=8 launch.sh 7b /data/web
        tokshard doctor --megatron 0.19 torchrun pretrain_gpt.py --data-path web ...
        grep -A999 'arguments ---' job.log | tokshard doctor -
    """
    with command_run(as_json=as_json) as run:
        chosen = DoctorOptions(
            launch=tuple(launch) if len(launch) > 1 else read_launch(launch[0]),
            megatron=megatron,
            like=like,
            tokenizer_identifiers=tokenizer_identifiers,
            path_as=options.parse_path_as(path_as),
            variables=options.parse_variables(variables),
            iteration=iteration,
        )
        report = tokshard.doctor(chosen)
        run.show(report, _show_commands if show_command else _show)
        if not show_command and not (report.healthy and (report.complete or not strict)):
            run.found_problems()


def _show_commands(report: DoctorReport) -> None:
    for job in report.jobs:
        if len(report.jobs) > 1:
            rendering.line(f"# {_place(job)}")
        rendering.line(job.command or json.dumps(job.arguments, ensure_ascii=False))


def _place(job: JobDiagnosis) -> str:
    where = "" if job.line is None else f"line {job.line}: "
    return f"{where}{job.program or 'the job'}"


def _show(report: DoctorReport) -> None:
    for number, job in enumerate(report.jobs, 1):
        if len(report.jobs) > 1:
            rendering.line(f"job {number} of {len(report.jobs)}, {_place(job)}")
        _show_job(job)
        if len(report.jobs) > 1:
            rendering.line()
    if len(report.jobs) > 1:
        _show_end(report.healthy, report.skipped, sum(len(job.lookups) for job in report.jobs))


def _show_job(job: JobDiagnosis) -> None:
    _show_sizes(job)
    for split in job.splits:
        if not split.sources:
            rendering.line(f"{split.name}: unknown, see below")
            continue
        kind = _KINDS.get(split.kind, "weighted blend of")
        datasets = "" if split.kind == "single" else f" {counted(len(split.sources), 'dataset')}"
        rendering.line(f"{split.name}: {kind}{datasets}, {count(split.samples)} samples")
    if job.lookups:
        rendering.line()
        rendering.line(f"cache files, by the names of {job.tokenizer.label}:")
    missing_first = sorted(job.lookups, key=lambda lookup: lookup.condition == "fresh")
    for lookup in missing_first[:_SHOWN_LOOKUPS]:
        _show_lookup(lookup)
    if len(missing_first) > _SHOWN_LOOKUPS:
        rendering.line(f"  and {len(missing_first) - _SHOWN_LOOKUPS} more (--json lists all)")
    rendering.line()
    rendering.findings(job.findings)
    for skipped in job.skipped:
        rendering.line(f"not checked: {skipped.check}: {skipped.reason}")
        if skipped.hint:
            rendering.line(f"  hint: {skipped.hint}")
    _show_end(job.healthy, job.skipped, len(job.lookups))


def _show_end(healthy: bool, skipped: Sequence[SkippedCheck], lookups: int) -> None:
    indexes = counted(lookups, "cached index", "cached indexes")
    checks = f"{counted(len(skipped), 'check was', 'checks were')} skipped"
    if not healthy:
        if skipped:
            rendering.line(checks)
    elif skipped:
        rendering.line(f"everything checked is fine; {checks}")
    else:
        rendering.line(f"no problems found: the job will find its {indexes}")


def _show_sizes(job: JobDiagnosis) -> None:
    sizes = job.sizes
    parts = []
    if (processes := job.arguments.get("world_size")) is not None:
        parts.append(counted(processes, "process", "processes"))
    if job.data_parallel_size is not None:
        parts.append(counted(job.data_parallel_size, "data-parallel rank"))
    if job.batch_size is not None:
        parts.append(f"batches of {count(job.batch_size)}")
    if job.sequence_length is not None:
        parts.append(f"samples of {count(job.sequence_length)} tokens")
    rendering.line(f"job: {', '.join(parts) or 'unknown'}")
    if sizes is not None:
        asked = (f"{name} {_number(getattr(sizes, name))}" for name in ("train", "valid", "test"))
        rendering.line(f"requests: {', '.join(asked)} samples")


def _show_lookup(lookup: CacheLookup) -> None:
    state = lookup.condition or "unknown"
    reason = "" if state in {"fresh", "missing"} else f": it {lookup.detail}"
    rendering.line(f"  {state:<8} {lookup.split} of {lookup.name}{reason}")
    rendering.line(f"           {lookup.stem}-*")
    nearest = lookup.nearest
    if nearest is None:
        return
    rendering.line(f"           most similar entry: {os.path.basename(nearest.path)}")
    for found in nearest.differences[:_SHOWN_DIFFERENCES]:
        rendering.line(f"             {found.field}: job {_value(found.wanted)}, cache {_value(found.found)}")
    if len(nearest.differences) > _SHOWN_DIFFERENCES:
        rendering.line(f"             and {len(nearest.differences) - _SHOWN_DIFFERENCES} more")


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else text[:_SHOWN_VALUE] + "..."


def _number(size: int | None) -> str:
    return "one epoch of" if size is None else count(size)
