"""Checks of a Megatron launch command: the cached indexes it will find, and the effect of its data arguments.

Reads a launch command, computes the names of all cache files as Megatron does, examines those that exist, and
for missing ones finds the fields of the description that differ from the nearest existing one.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tokshard.checks.doctor.build_command import BuildCommand
from tokshard.checks.doctor.forecast import Forecast, forecast_of, forecast_splits, is_blend, prefixes_of
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.programs import unchecked_options, unsupported_data
from tokshard.checks.doctor.launch.rules import (
    Result,
    check_arguments,
    check_processes,
    unknown_names,
)
from tokshard.checks.doctor.launch.source import read_job
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.lookups import (
    CacheLookup,
    Candidate,
    JobCache,
    TokenizerNames,
    candidates_of_launch,
    chosen_candidate,
)
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.checks.doctor.packing import common_packing, findings_of_packing, packed_prefixes
from tokshard.checks.doctor.tokenizers import findings_of_tokenizers, read_launch_tokenizer
from tokshard.core.codec import Document, Record
from tokshard.core.findings import Finding, finding_lines
from tokshard.core.formatting import count, counted, listed
from tokshard.core.path_mapping import PathMapping
from tokshard.core.presentation import Section
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.plan import PlannedSplit, SplitPlan, shortfall_of
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing, pack_words
from tokshard.samples.index.sizes import Sizes

_SHOWN_SOURCES = 5
_SHOWN_LOOKUPS = 12
_KINDS = {
    "single": "one dataset",
    "exhaustive": "every sample of",
    "proportional": "proportional blend of",
}


@dataclass(frozen=True, slots=True)
class JobDiagnosis(Record):
    """The diagnosis of one launch command."""

    line: int | None
    program: str | None
    command: str
    arguments: dict[str, Any]
    unknown: dict[str, str]
    sizes: Sizes | None
    tokenizer: TokenizerNames
    lookups: tuple[CacheLookup, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[SkippedCheck, ...]
    splits: tuple[PlannedSplit, ...]
    data_parallel_size: int | None = None
    batch_size: int | None = None
    sequence_length: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing that was checked is wrong."""
        return not any(finding.is_problem for finding in self.findings)

    @property
    def title(self) -> str:
        """The program and its line in the script."""
        return ("" if self.line is None else f"line {self.line}: ") + (self.program or "the job")

    def sections(self, title: str = "") -> list[Section]:
        """Return the diagnosis for people."""
        sections = [Section(title, list(self._data_lines()))]
        if self.lookups:
            missing_first = sorted(self.lookups, key=lambda lookup: lookup.condition == "fresh")
            lines = [line for lookup in missing_first[:_SHOWN_LOOKUPS] for line in lookup.lines()]
            if len(missing_first) > _SHOWN_LOOKUPS:
                lines.append(f"  and {len(missing_first) - _SHOWN_LOOKUPS} more (--json lists all)")
            sections.append(Section(f"cache files, by the names of {self.tokenizer.label}:", lines))
        lines = list(finding_lines(self.findings))
        for check in self.skipped:
            lines.append(f"not checked: {check.check}: {check.reason}")
            lines += [f"  hint: {check.hint}"] if check.hint else []
        return [*sections, Section("", [*lines, *_verdict(self, len(self.lookups))])]

    def _data_lines(self) -> Iterator[str]:
        parts = []
        if (processes := self.arguments.get("world_size")) is not None:
            parts.append(counted(processes, "process", "processes"))
        if self.data_parallel_size is not None:
            parts.append(counted(self.data_parallel_size, "data-parallel rank"))
        if self.batch_size is not None:
            parts.append(f"batches of {count(self.batch_size)}")
        if self.sequence_length is not None:
            parts.append(f"samples of {count(self.sequence_length)} tokens")
        yield f"job: {', '.join(parts) or 'unknown'}"
        if self.sizes is not None:
            requests = {name: getattr(self.sizes, name) for name in ("train", "valid", "test")}
            sizes = (
                f"{name} {'one epoch of' if size is None else count(size)}" for name, size in requests.items()
            )
            yield f"requests: {', '.join(sizes)} samples"
        for split in self.splits:
            if not split.sources:
                yield f"{split.name}: unknown, see below"
                continue
            kind = _KINDS.get(split.kind, "weighted blend of")
            datasets = "" if split.kind == "single" else f" {counted(len(split.sources), 'dataset')}"
            yield f"{split.name}: {kind}{datasets}, {counted(split.samples, 'sample')}"


@dataclass(frozen=True, slots=True)
class DoctorReport(Document):
    """The diagnosis of a launch script before it is started."""

    SCHEMA = "tokshard.doctor/2"

    healthy: bool
    complete: bool
    jobs: tuple[JobDiagnosis, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all jobs, each once."""
        return tuple(dict.fromkeys(finding for job in self.jobs for finding in job.findings))

    @property
    def skipped(self) -> tuple[SkippedCheck, ...]:
        """The skipped checks of all jobs, each once."""
        return tuple(dict.fromkeys(skipped for job in self.jobs for skipped in job.skipped))

    def sections(self) -> list[Section]:
        """Return the diagnosis of all jobs for people."""
        if len(self.jobs) == 1:
            return self.jobs[0].sections()
        titles = [f"job {number} of {len(self.jobs)}, {job.title}" for number, job in enumerate(self.jobs, 1)]
        diagnoses = [job.sections(title) for job, title in zip(self.jobs, titles, strict=True)]
        lookups = sum(len(job.lookups) for job in self.jobs)
        verdict = Section("", list(_verdict(self, lookups)))
        return [*(section for diagnosis in diagnoses for section in diagnosis), verdict]

    def command_sections(self) -> list[Section]:
        """Return the launch commands as they were understood."""
        lines = []
        for job in self.jobs:
            lines += [f"# {job.title}"] if len(self.jobs) > 1 else []
            lines.append(job.command or json.dumps(job.arguments, ensure_ascii=False))
        return [Section("", lines)]


def _verdict(diagnosis: JobDiagnosis | DoctorReport, lookups: int) -> Iterator[str]:
    checks = f"{counted(len(diagnosis.skipped), 'check was', 'checks were')} skipped"
    if not diagnosis.healthy:
        yield from [checks] if diagnosis.skipped else []
    elif diagnosis.skipped:
        yield f"everything checked is fine; {checks}"
    else:
        found = counted(lookups, "cached index", "cached indexes")
        yield f"no problems found: the job will find its {found}"


def doctor(job: str | os.PathLike[str] | DoctorOptions) -> DoctorReport:
    """Check a Megatron launch script or command. Nothing is written, run or built.

    Args:
        job: The path of a launch script, a launch command, or options.

    Raises:
        UsageError: The text contains no launch command.
        InputError: A file cannot be read.
        StorageError: The cache cannot be read.
    """
    options = job if isinstance(job, DoctorOptions) else DoctorOptions(launch=job)
    launches = read_job(options)
    jobs = tuple(
        diagnose(
            launch,
            tokenizer=_chosen(launch, options),
            path_as=options.path_as,
            command=BuildCommand.of(options, launch, is_only=len(launches) == 1),
        )
        for launch in launches
    )
    return DoctorReport(
        healthy=all(job.healthy for job in jobs),
        complete=not any(job.skipped for job in jobs),
        jobs=jobs,
    )


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
) -> JobDiagnosis:
    """Check a job before it is launched.

    Args:
        launch: Its launch command.
        tokenizer: The identifiers of its tokenizer; None to try those of each version of Megatron and those
            in the cache, and to use the best match.
        path_as: Pairs (path here, path at training time), for data or caches at other paths here.
        command: The command that builds what is missing, for the hints.

    Raises:
        UsageError: An option is invalid.
        StorageError: The cache cannot be read.
    """
    arguments = launch.arguments
    version = tokenizer.names.versions[0] if tokenizer and tokenizer.names.versions else None
    results = _Results()
    unsupported = unsupported_data(launch)
    is_checked = unsupported is None or unsupported.has_other_names_only
    if unsupported is not None:
        results.add(SkippedCheck("cache" if is_checked else "data", unsupported.reason))
    results.add(*(check_arguments(arguments, version) if is_checked else check_processes(arguments)))
    results.add(*(undecided.skipped("launch") for undecided in launch.undecided_commands()))
    if (scripts := launch.unread_scripts()) is not None:
        results.add(scripts.skipped("scripts"))
    if options := unchecked_options(launch):
        results.add(SkippedCheck("options", f"the effect of {', '.join(options)} is not checked"))
    paths = PathMapping(path_as)
    forecast = forecast_of(arguments, version, paths) if is_checked else Forecast()
    results.add(*forecast.results)
    splits = forecast.splits if unsupported is None else []
    if splits and tokenizer is None and (unknown := unknown_names(arguments)) is not None:
        results.add(unknown.skipped("cache"))
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
    results.add(*defects, *findings_of_packing(arguments, packed_prefixes(splits)))
    lookups, is_named = cache.lookups(splits), tokenizer is not None or cache.has_names_of(splits)
    results.add(*_of_sizes(splits, forecast.config))
    told = command.text(
        is_blend=is_blend(splits),
        names=candidate.names,
        is_named=is_named or len(candidates_of_launch(arguments)) == 1,
        rebuild=any(lookup.condition == "differs" for lookup in lookups),
        packing=common_packing(packings.values()),
    )
    told = f"run {told}"
    if len(set(packings.values())) > 1:
        told = (
            "use the recipe or the options of the other indexes, whose packing differs "
            f"({pack_words(packings.values())}), or remove all of them and {told}"
        )
    if arguments.data_cache_path is None and splits:
        # The directory is the command's default for a blend, so that the order of both does not matter.
        with_path = f"add --data-cache-path {command.output}/cache to the launch command, and {told}"
        results.findings = [
            replace(finding, hint=with_path) if finding.code == "no-cache-path" else finding
            for finding in results.findings
        ]
        told = with_path if is_blend(splits) else told
    results.add(*_of_cache(arguments, lookups, splits, told))
    if tokenizer is None and splits:
        results.add(*_of_tokenizer(candidate.names, is_named=is_named))
    if forecast.recipe is not None:
        job, recorded = read_launch_tokenizer(arguments, path_as), cache.allowed_mismatches(lookups)
        prefixes = prefixes_of(forecast.recipe)
        results.add(*findings_of_tokenizers(arguments, job, prefixes, recorded))
    return JobDiagnosis(
        line=launch.line,
        program=launch.program,
        command=launch.command,
        arguments=_given(arguments),
        unknown=dict(arguments.unknown),
        sizes=forecast.sizes,
        tokenizer=candidate.names,
        lookups=tuple(lookups),
        findings=tuple(results.findings),
        skipped=tuple(results.skipped),
        splits=tuple(split.planned for split in splits),
        data_parallel_size=arguments.data_parallel_size,
        batch_size=arguments.batch_size,
        sequence_length=arguments.sequence_length,
    )


@dataclass(slots=True)
class _Results:
    findings: list[Finding] = field(default_factory=list)
    skipped: list[SkippedCheck] = field(default_factory=list)

    def add(self, *results: Result) -> None:
        for result in results:
            if isinstance(result, SkippedCheck):
                self.skipped.append(result)
            else:
                self.findings.append(result)


def _given(launch: LaunchArguments) -> dict[str, Any]:
    hidden = {"unknown", "unseen", "problems"}
    given = {field.name: getattr(launch, field.name) for field in fields(launch) if field.name not in hidden}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
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
        reads = listed([f"{path} {times[path]:.2f} times" for path in often], _SHOWN_SOURCES)
        yield Finding("epochs", "note", f"{plan.name} reads {reads}")


def _of_cache(
    launch: LaunchArguments, lookups: Sequence[CacheLookup], splits: Sequence[SplitPlan], remedy: str
) -> Iterator[Finding]:
    if launch.data_cache_path is None and is_blend(splits):
        yield Finding(
            "no-cache-path",
            "warning",
            "without --data-cache-path every rank builds the blend again at every start",
            remedy,
        )
    differing = [lookup for lookup in lookups if lookup.condition == "differs"]
    unverified = [lookup for lookup in differing if lookup.is_unverified]
    directories = dict.fromkeys(os.path.dirname(lookup.stem) for lookup in unverified)
    verify = "; ".join(f"`tokshard verify --level deep {shlex.quote(path)}`" for path in directories)
    rules: tuple[tuple[str, Any, str, list[CacheLookup], str], ...] = (
        (
            "cache-missing",
            "warning",
            "the job will build {}",
            [lookup for lookup in lookups if lookup.condition == "missing"],
            f"build them: {remedy}",
        ),
        (
            "cache-differs",
            "error",
            "the job will fail on, or misread, {}",
            [lookup for lookup in differing if not lookup.is_unverified],
            f"replace them: {remedy}",
        ),
        (
            "cache-unverified",
            "note",
            "the job will read {}, whose content is not recorded",
            unverified,
            f"build and compare them: run {verify}",
        ),
    )
    for code, severity, text, those, hint in rules:
        if those:
            names = listed([f"{lookup.split} of {lookup.name}" for lookup in those], 3)
            subject = " " if len(those) == 1 else "; the first "
            reason = f"{subject}{those[0].reason}" if severity == "error" else ""
            sets = f"{len(those)} of {len(lookups)} sets of files ({names}{reason})"
            yield Finding(code, severity, text.format(sets), hint)


def _of_tokenizer(names: TokenizerNames, *, is_named: bool) -> Iterator[Result]:
    hint = "pass --megatron VERSION, --like or --tokenizer-identifiers"
    if not is_named:
        yield SkippedCheck(
            "cache-names",
            "no cached index matches a known version of Megatron; the names shown are those of "
            f"{names.label}",
            hint,
        )
    elif names.source == "cache":
        yield Finding(
            "tokenizer-assumed",
            "note",
            "the names are those of the cache's tokenizer: no preset matches the job's tokenizer",
            hint,
        )
