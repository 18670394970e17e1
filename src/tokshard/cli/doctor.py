"""``tokshard doctor``: options, one library call, one rendering."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tokshard
from tokshard import DoctorOptions
from tokshard.cli import options, rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.options import LogJson
from tokshard.core.formatting import count, counted

if TYPE_CHECKING:
    from tokshard import CacheLookup, DoctorReport

MAX_STDIN_BYTES = 64 << 20
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
            help="A launch command; or one file that contains it: a script, arguments, a log or JSON; "
            "or - for stdin.",
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
    """Check a Megatron launch command: which cached indexes it will find, and what its data arguments will do.

    Nothing is written and no index is built. The exit code is 1 if there are errors or warnings. Without
    --megatron, the version whose file names match most cached files is used.

    Examples:
        tokshard doctor launch.sh
        tokshard doctor --megatron 0.19 torchrun pretrain_gpt.py --data-path web ...
        grep -A999 'arguments ---' job.log | tokshard doctor -
    """  # noqa: E501 - one line, as in the list of commands
    with command_run("doctor", as_json=as_json, log_json=log_json) as run:
        chosen = DoctorOptions(
            launch=_launch(launch),
            megatron=megatron,
            like=like,
            tokenizer_identifiers=tokenizer_identifiers,
            path_as=options.parse_path_as(path_as),
        )
        report = tokshard.doctor(chosen)
        run.log.warnings(f"{found.code}: {found.message}" for found in report.findings if found.is_problem)
        run.show(report, _show)
        if not report.is_healthy:
            run.found_problems()


def _launch(words: list[str]) -> str | tuple[str, ...]:
    if words == ["-"]:
        # Text ends with a newline, so that it cannot be the name of a file.
        return sys.stdin.buffer.read(MAX_STDIN_BYTES).decode("utf-8", "surrogateescape") + "\n"
    return tuple(words) if len(words) > 1 else words[0]


def _show(report: DoctorReport) -> None:
    _show_job(report)
    for split in report.splits:
        if not split.sources:
            rendering.line(f"{split.name}: unknown, see below")
            continue
        kind = _KINDS.get(split.kind, "weighted blend of")
        datasets = "" if split.kind == "single" else f" {counted(len(split.sources), 'dataset')}"
        rendering.line(f"{split.name}: {kind}{datasets}, {count(split.samples)} samples")
    if report.lookups:
        rendering.line()
        rendering.line(f"cache files, by the names of {report.tokenizer.label}:")
    missing_first = sorted(report.lookups, key=lambda lookup: lookup.condition == "fresh")
    for lookup in missing_first[:_SHOWN_LOOKUPS]:
        _show_lookup(lookup)
    if len(missing_first) > _SHOWN_LOOKUPS:
        rendering.line(f"  and {len(missing_first) - _SHOWN_LOOKUPS} more (--json lists all)")
    rendering.line()
    rendering.findings(report.findings)
    if report.is_healthy:
        seen = "in the visible arguments" if report.launch.unseen else "found"
        indexes = counted(len(report.lookups), "cached index", "cached indexes")
        rendering.line(f"no problems {seen}: the job will find its {indexes}")


def _show_job(report: DoctorReport) -> None:
    launch, sizes = report.launch, report.sizes
    parts = []
    if launch.world_size is not None:
        parts.append(counted(launch.world_size, "process", "processes"))
    if launch.data_parallel_size is not None:
        parts.append(counted(launch.data_parallel_size, "data-parallel rank"))
    if launch.batch_size is not None:
        parts.append(f"batches of {count(launch.batch_size)}")
    if launch.sequence_length is not None:
        parts.append(f"samples of {count(launch.sequence_length)} tokens")
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
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else text[:_SHOWN_VALUE] + "..."


def _number(size: int | None) -> str:
    return "one epoch of" if size is None else count(size)
