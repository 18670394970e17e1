"""Checks of a Megatron job: the cached indexes that it will find, and the effect of its data arguments.

Reads a launch command, computes the names of all cache files as Megatron does, examines those that exist, and
for missing ones finds the fields of the description that differ from the nearest existing one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from tokshard.checks.doctor.build_command import BuildCommand
from tokshard.checks.doctor.causes import Causes
from tokshard.checks.doctor.forecast import Forecast, forecast_of, forecast_splits, is_blend, prefixes_of
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.programs import unchecked_options, unsupported_data
from tokshard.checks.doctor.launch.rules import Result, check_launch, unknown_names
from tokshard.checks.doctor.launch.source import is_file, read_job, script_call, with_environment
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.lookups import (
    CacheLookup,
    Candidate,
    JobCache,
    TokenizerNames,
    candidates_of_launch,
    chosen_candidate,
)
from tokshard.checks.doctor.near_paths import near_path
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.checks.doctor.packing import common_packing, findings_of_packing
from tokshard.checks.doctor.report import DoctorReport, JobDiagnosis
from tokshard.checks.doctor.tokenizers import findings_of_tokenizers, read_launch_tokenizer
from tokshard.core.findings import Finding
from tokshard.core.formatting import counted, listed
from tokshard.core.path_mapping import PathMapping
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.plan import SplitPlan, shortfall_of
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing, pack_words

_SHOWN_LOOKUPS = 3
_COMMAND = "the launch command"


def doctor(job: str | os.PathLike[str] | DoctorOptions) -> DoctorReport:
    """Check a Megatron launch script or command. Nothing is written, run or built.

    Args:
        job: The path of a launch script, a launch command, or options.

    Raises:
        UsageError: The text contains no launch command.
        InputError: A file cannot be read.
        StorageError: The cache cannot be read.
    """
    options = with_environment(job if isinstance(job, DoctorOptions) else DoctorOptions(launch=job))
    launches = read_job(options)
    jobs = [
        diagnose(
            launch,
            tokenizer=_chosen(launch, options),
            path_as=options.path_as,
            command=BuildCommand.of(options, launch, is_only=len(launches) == 1),
            name=_name(options.launch_words),
        )
        for launch in launches
    ]
    return DoctorReport.of(jobs)


def _name(words: tuple[str, ...]) -> str:
    call = [words[0]] if len(words) == 1 and is_file(words[0]) else script_call(words)
    return _COMMAND if call is None else os.path.basename(call[0])


def _chosen(launch: Launch, options: DoctorOptions) -> Candidate | None:
    if options.megatron is not None and unknown_names(launch.arguments) is not None:
        return None
    return chosen_candidate(launch.arguments, options)


def diagnose(
    launch: Launch,
    *,
    tokenizer: Candidate | None = None,
    path_as: tuple[tuple[str, str], ...] = (),
    command: BuildCommand = BuildCommand(),  # noqa: B008 - frozen
    name: str = _COMMAND,
) -> JobDiagnosis:
    """Check a job before it is launched.

    Args:
        launch: Its launch command.
        tokenizer: The identifiers of its tokenizer. If None, those of each version of Megatron and those in
            the cache are tried, and the best match is used.
        path_as: Pairs (path here, path at training time).
        command: The command that builds missing indexes, for the hints.
        name: The name of the script, for messages.

    Raises:
        UsageError: An option is invalid.
        StorageError: The cache cannot be read.
    """
    arguments = launch.arguments
    version = tokenizer.names.versions[0] if tokenizer and tokenizer.names.versions else None
    unsupported = unsupported_data(launch)
    is_checked = unsupported is None or unsupported.has_other_names_only
    results: list[Result] = list(_of_launch(launch))
    if unsupported is not None:
        results.append(SkippedCheck("cache" if is_checked else "data", unsupported.reason))
    results += check_launch(launch, version)
    paths = PathMapping(path_as)
    forecast = forecast_of(arguments, version, paths) if is_checked else Forecast()
    reported = {result.message for result in results if isinstance(result, Finding)}
    results += [result for result in forecast.results if getattr(result, "message", None) not in reported]
    splits = forecast.splits if unsupported is None else []
    if splits and tokenizer is None and (unknown := unknown_names(arguments)) is not None:
        results.append(unknown.skipped("cache"))
        splits = []
    cache = JobCache(arguments, paths)
    candidate = tokenizer or cache.likeliest(splits)
    splits = [split.with_tokenizer(candidate.identifiers) for split in splits]
    packings, defects = cache.packings(splits), forecast.defects
    if any(packings.values()) and forecast.recipe is not None and forecast.config is not None:

        def packing_of(request: IndexRequest) -> Packing | None:
            entry = cache.entry(replace(request, tokenizer=candidate.identifiers))
            return packings.get(entry, common_packing(packings.values()))

        planned, defects = forecast_splits(forecast.recipe, forecast.config, packing_of)
        splits = [split.with_tokenizer(candidate.identifiers) for split in planned]
    lookups = cache.lookups(splits)
    is_named = tokenizer is not None or cache.has_names_of(splits)
    results += [*defects, *findings_of_packing(arguments, splits)]
    results += _of_sizes(splits, forecast.config)
    candidates = candidates_of_launch(arguments)
    build = command.text(
        is_blend=is_blend(splits),
        names=candidate.names,
        is_named=is_named or len(candidates) == 1,
        rebuild=any(lookup.condition == "differs" for lookup in lookups),
        packing=common_packing(packings.values()),
    )
    remedy = f"run {build}"
    if len(set(packings.values())) > 1:
        remedy = (
            "use the recipe or the options of the other indexes, whose packing differs "
            f"({pack_words(packings.values())}), or remove all of them and {remedy}"
        )
    if arguments.data_cache_path is None and is_blend(splits):
        # The directory is the command's default for a blend, so either step of the hint can be first.
        remedy = f"add --data-cache-path {command.output}/cache to the launch command, and {remedy}"
        message = "without --data-cache-path every rank builds the blend again at every start"
        results.append(Finding("no-cache-path", "warning", message, remedy))
    unweighted = {split.name for split in splits if split.kind == "proportional"}
    causes = Causes.of(lookups, arguments, candidate, candidates, unweighted)
    results += causes.findings(name, len(lookups), remedy)
    results += _of_missing(causes.unexplained, len(lookups), cache.directory, remedy)
    results += _of_existing(lookups, remedy)
    if tokenizer is None and splits:
        results += _of_tokenizer(candidate.names, is_named=is_named)
    if forecast.recipe is not None:
        job, recorded = read_launch_tokenizer(arguments, path_as), cache.allowed_mismatches(lookups)
        results += findings_of_tokenizers(arguments, job, prefixes_of(forecast.recipe), recorded)
    return JobDiagnosis(
        line=launch.line,
        program=launch.program,
        command=launch.command,
        arguments=_given(arguments),
        unknown=dict(arguments.unknown),
        sizes=forecast.sizes,
        tokenizer=candidate.names,
        lookups=tuple(lookups),
        findings=tuple(result for result in results if isinstance(result, Finding)),
        skipped=tuple(result for result in results if isinstance(result, SkippedCheck)),
        splits=tuple(split.planned for split in splits),
        data_parallel_size=arguments.data_parallel_size,
        batch_size=arguments.batch_size,
        sequence_length=arguments.sequence_length,
    )


def _of_launch(launch: Launch) -> Iterator[SkippedCheck]:
    for undecided in launch.undecided_commands():
        yield undecided.skipped("launch")
    if (scripts := launch.unread_scripts()) is not None:
        yield scripts.skipped("scripts")
    if options := unchecked_options(launch):
        yield SkippedCheck("options", f"{', '.join(options)} may change the samples or their order")


def _given(launch: LaunchArguments) -> dict[str, Any]:
    hidden = {"unknown", "unseen", "problems"}
    values = {field.name: getattr(launch, field.name) for field in fields(launch) if field.name not in hidden}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value is not False
    }


def _of_sizes(splits: Sequence[SplitPlan], config: BuilderConfig | None) -> Iterator[Finding]:
    for split in splits:
        if not split.sources or config is None:
            continue
        yield from _read_often(split)
        if (shortfall := shortfall_of(split, config)) is not None:
            yield Finding(
                "too-few-samples",
                "error" if split.split == "train" else "warning",
                shortfall,
                "add weights to --data-path: weighted datasets repeat as often as needed",
            )
        if config.size_of(split.split) == 0:
            yield Finding(
                "unused-split",
                "note",
                f"{split.name} requests no samples, but Megatron builds every split with a share",
            )


def _read_often(plan: SplitPlan) -> Iterator[Finding]:
    paths = (request.training_path for request in plan.requests)
    times = dict(zip(paths, plan.epochs_read, strict=True))
    often = sorted((path for path in times if times[path] > 1), key=lambda path: -times[path])
    if often:
        reads = listed([f"{path} {times[path]:.2f} times" for path in often])
        yield Finding("epochs", "note", f"{plan.name} reads {reads}")


def _of_missing(
    lookups: Sequence[CacheLookup], looked_up: int, directory: str | None, remedy: str
) -> Iterator[Finding]:
    """Yield the finding about missing indexes that no difference of an option explains."""
    if not lookups:
        return
    message = f"the job will build {_sets(lookups, looked_up)}"
    hint = f"build them: {remedy}"
    if directory is not None and not os.path.lexists(directory):
        message = f"cache directory not found: {directory}; {message}"
        if (near := near_path(directory)) is not None:
            cached = [lookup for lookup in lookups if lookup.is_in(near)]
            content = _sets(cached, len(lookups)) if cached else "none of them"
            hint = f"did you mean {near}? It has {content}. Otherwise {hint}"
    elif (nearest := lookups[0].nearest) is not None and nearest.fields:
        message += f"; the most similar one differs in {listed(nearest.fields)}"
    elif nearest is not None:
        message += f": {lookups[0].split} of {lookups[0].name} {lookups[0].reason}"
    yield Finding("cache-missing", "warning", message, hint)


def _of_existing(lookups: Sequence[CacheLookup], remedy: str) -> Iterator[Finding]:
    """Yield findings about existing indexes whose content differs or is not recorded."""
    differing = [lookup for lookup in lookups if lookup.condition == "differs" and not lookup.is_unverified]
    if differing:
        reason = f"{differing[0].split} of {differing[0].name} {differing[0].reason}"
        message = f"the job will fail on, or misread, {_sets(differing, len(lookups))}: {reason}"
        yield Finding("cache-differs", "error", message, f"replace them: {remedy}")
    unverified = [lookup for lookup in lookups if lookup.is_unverified]
    if unverified:
        directories = dict.fromkeys(os.path.dirname(lookup.stem) for lookup in unverified)
        commands = [f"`tokshard verify --level deep {shlex.quote(path)}`" for path in directories]
        reason = f"{unverified[0].split} of {unverified[0].name} {unverified[0].reason}"
        message = (
            f"the job will read {_sets(unverified, len(lookups))}, whose content is not recorded: {reason}"
        )
        hint = f"compare them with rebuilt ones: run {listed(commands, _SHOWN_LOOKUPS)}"
        yield Finding("cache-unverified", "note", message, hint)


def _sets(lookups: Sequence[CacheLookup], looked_up: int) -> str:
    number = counted(looked_up, "index", "indexes")
    if len(lookups) == looked_up:
        return f"all {number}" if looked_up > 1 else number
    names = listed([f"{lookup.split} of {lookup.name}" for lookup in lookups], _SHOWN_LOOKUPS)
    return f"{len(lookups)} of {number} ({names})"


def _of_tokenizer(names: TokenizerNames, *, is_named: bool) -> Iterator[Result]:
    if not is_named:
        yield SkippedCheck(
            "cache-names",
            f"no cached index matches a known version of Megatron; the names of {names.label} are assumed",
            "pass --megatron VERSION, --like DESCRIPTION.txt or --tokenizer-identifiers FILE.json",
        )
    elif names.source == "cache":
        yield Finding(
            "tokenizer-assumed",
            "note",
            "the tokenizer's names are taken from the cache: no known version of Megatron has them",
            "pass --like DESCRIPTION.txt or --tokenizer-identifiers FILE.json",
        )
