"""Checks of a Megatron launch command: the cached indexes it will find, and the effect of its data arguments.

Reads a launch command, computes the names of all cache files as Megatron does, examines those that exist, and
for missing ones finds the fields of the description that differ from the nearest existing one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from tokshard.blending import recipe_files
from tokshard.blending.options import BuilderConfig
from tokshard.blending.plan import SplitPlan, plan_blend, plan_requests, shortfall_of
from tokshard.blending.recipe import BlendRecipe, Mixture
from tokshard.core import megatron_defaults
from tokshard.core.codec import Document, Key, NotStored
from tokshard.core.findings import Finding
from tokshard.core.formatting import listed
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.preflight.launch.arguments import LaunchArguments
from tokshard.preflight.launch.launch import Launch
from tokshard.preflight.launch.programs import unchecked_options, unsupported_data
from tokshard.preflight.launch.rules import (
    Result,
    SkippedCheck,
    check_arguments,
    reason_data_unknown,
    reason_sizes_unknown,
    skipped,
)
from tokshard.preflight.launch.source import read_job
from tokshard.preflight.lookups import CacheLookup, Candidate, JobCache, TokenizerNames, identifiers_of_launch
from tokshard.preflight.options import DoctorOptions
from tokshard.preflight.tokenizers import findings_of_tokenizers, read_launch_tokenizer
from tokshard.storage.paths import is_remote

_SHOWN_SOURCES = 5


@dataclass(frozen=True, slots=True)
class JobDiagnosis:
    """The diagnosis of one launch command.

    Attributes:
        launch: The command.
        splits: The plan of each split; that of a split with a defect has no sources.
    """

    line: Annotated[
        int | None, Key("line", "Line of the launch command in the script; null for other texts.")
    ]
    branches: Annotated[
        tuple[str, ...],
        Key("branches", "Undetermined conditions that lead to the command, as written in the script."),
    ]
    program: Annotated[str | None, Key("program", "The program that is started, as written.")]
    command: Annotated[str, Key("command", "The command as it was understood; empty for a log or a file.")]
    arguments: Annotated[
        dict[str, Any], Key("arguments", "Arguments about data that are given, by Megatron's names.")
    ]
    unknown: Annotated[
        dict[str, str],
        Key("unknown", "Arguments about data whose value is unknown, and what it depends on, as written."),
    ]
    sizes: Annotated[
        Sizes | None, Key("sizes", "Samples that the job asks for; null where they are not known.")
    ]
    tokenizer: Annotated[TokenizerNames, Key("tokenizer", "Tokenizer under whose names files are looked up.")]
    lookups: Annotated[tuple[CacheLookup, ...], Key("lookups", "Cache entries that the job looks up.")]
    findings: Annotated[tuple[Finding, ...], Key("findings", "What is wrong or worth knowing.")]
    skipped: Annotated[tuple[SkippedCheck, ...], Key("skipped", "Checks that were not possible.")]
    launch: Annotated[Launch, NotStored()]
    splits: Annotated[tuple[SplitPlan, ...], NotStored()] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing that was checked is wrong."""
        return not any(finding.is_problem for finding in self.findings)


@dataclass(frozen=True, slots=True)
class DoctorReport(Document):
    """The diagnosis of a launch script before it is started."""

    SCHEMA = "tokshard.doctor/1"

    is_healthy: Annotated[bool, Key("healthy", "Whether nothing that was checked is wrong.")]
    is_complete: Annotated[bool, Key("complete", "Whether no check was skipped.")]
    jobs: Annotated[
        tuple[JobDiagnosis, ...],
        Key("jobs", "The launch commands; several if a condition decides that depends on something unknown."),
    ]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all jobs, each once."""
        return tuple(dict.fromkeys(finding for job in self.jobs for finding in job.findings))

    @property
    def skipped(self) -> tuple[SkippedCheck, ...]:
        """The skipped checks of all jobs, each once."""
        return tuple(dict.fromkeys(skipped for job in self.jobs for skipped in job.skipped))


def doctor(job: str | os.PathLike[str] | DoctorOptions) -> DoctorReport:
    """Check a Megatron launch script or command. Nothing is written, run or built.

    Args:
        job: The path of a launch script, a launch command, or options.

    Raises:
        UsageError: The text contains no launch command.
        InputError: A file cannot be read.
        StorageError: The cache cannot be read.
    """
    options = job if isinstance(job, DoctorOptions) else DoctorOptions(job)
    launches = read_job(options)
    jobs = tuple(
        diagnose(launch, tokenizer=_candidate(launch.arguments, options), path_as=options.path_as)
        for launch in launches
    )
    return DoctorReport(
        is_healthy=all(job.is_healthy for job in jobs),
        is_complete=not any(job.skipped for job in jobs),
        jobs=jobs,
    )


def _candidate(launch: LaunchArguments, options: DoctorOptions) -> Candidate | None:
    if options.megatron is not None:
        identifiers = identifiers_of_launch(launch, options.megatron)
        return Candidate(TokenizerNames("megatron", (options.megatron,)), identifiers)
    found = options.naming.identifiers()
    path = options.like or options.tokenizer_identifiers
    return None if found is None else Candidate(TokenizerNames("file", path=str(path)), found)


def diagnose(
    launch: Launch,
    *,
    tokenizer: Candidate | None = None,
    path_as: tuple[tuple[str, str], ...] = (),
) -> JobDiagnosis:
    """Check a job before it is launched.

    Args:
        launch: Its launch command.
        tokenizer: The identifiers of its tokenizer; None to try those of each version of Megatron and those
            in the cache, and to use the best match.
        path_as: Pairs (path here, path at training time), for data or caches at other paths here.

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
    if is_checked:
        results.add(*check_arguments(arguments, version))
    if options := unchecked_options(launch):
        results.add(SkippedCheck("options", f"the effect of {', '.join(options)} is not checked"))
    paths = PathMapping(path_as)
    forecast = _forecast(arguments, version, paths, results) if is_checked else _Forecast()
    has_cache = unsupported is None
    splits = forecast.splits if has_cache else []
    cache = JobCache(arguments, paths)
    candidate = tokenizer or cache.likeliest(splits)
    splits = [split.with_tokenizer(candidate.identifiers) for split in splits]
    lookups = cache.lookups(splits)
    results.add(*_of_sizes(splits, forecast.config), *_of_cache(arguments, lookups, splits))
    if tokenizer is None and splits:
        results.add(*_of_tokenizer(candidate.names, lookups))
    if forecast.recipe is not None:
        job, recorded = read_launch_tokenizer(arguments, path_as), cache.allowed_mismatches(lookups)
        prefixes = prefixes_of(forecast.recipe)
        results.add(*findings_of_tokenizers(arguments, job, prefixes, recorded))
    return JobDiagnosis(
        line=launch.line,
        branches=launch.branches,
        program=launch.program,
        command=launch.command,
        arguments=_given(arguments),
        unknown=dict(arguments.unknown),
        sizes=forecast.sizes,
        tokenizer=candidate.names,
        lookups=tuple(lookups),
        findings=tuple(results.findings),
        skipped=tuple(results.skipped),
        launch=launch,
        splits=tuple(splits),
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


@dataclass(slots=True)
class _Forecast:
    # What a job will read, as far as it is known.
    sizes: Sizes | None = None
    config: BuilderConfig | None = None
    recipe: BlendRecipe | None = None
    splits: list[SplitPlan] = field(default_factory=list)


def _forecast(
    launch: LaunchArguments, version: str | None, paths: PathMapping, results: _Results
) -> _Forecast:
    forecast = _Forecast()
    if (reason := reason_sizes_unknown(launch)) is not None:
        results.add(skipped("sizes", reason))
    data_reason = reason_data_unknown(launch)
    try:
        if reason is None:
            forecast.sizes = launch.sizes(version)
        if data_reason is None and (reason is None or launch.reason_unknown("split") is None):
            forecast.recipe = recipe_of_launch(launch, paths)
    except TokshardError as error:
        if isinstance(error, MissingFileError) and _not_here([error.filename]):
            data_reason = _not_on_this_machine([error.filename])
        else:
            results.add(Finding.of_error("arguments", error))
            return forecast
    if forecast.recipe is not None and (missing := _not_here(prefixes_of(forecast.recipe))):
        data_reason = _not_on_this_machine(missing)
    if data_reason is not None or forecast.sizes is None or forecast.recipe is None:
        results.add(_without_cache(data_reason or reason or "the datasets are unknown"))
        return forecast
    try:
        forecast.config = _config(launch, forecast.sizes, paths.pairs)
        forecast.splits, defects = forecast_splits(forecast.recipe, forecast.config)
        results.add(*defects)
    except TokshardError as error:
        results.add(Finding.of_error("arguments", error))
    return forecast


def _without_cache(reason: str) -> SkippedCheck:
    if "not on this machine" in reason:
        hint = "run doctor where the data is, or pass --path-as LOCAL=TRAINING"
        return SkippedCheck("cache", reason, hint)
    return skipped("cache", reason)


def _not_on_this_machine(paths: Sequence[str]) -> str:
    return f"not on this machine: {listed(paths, _SHOWN_SOURCES)}"


def _not_here(prefixes: Iterable[str]) -> list[str]:
    # Where even the directory is missing, the data is on another machine; in an existing one it is an error.
    return [
        prefix
        for prefix in dict.fromkeys(prefixes)
        if not is_remote(prefix) and not os.path.isdir(os.path.dirname(prefix) or ".")
    ]


def _given(launch: LaunchArguments) -> dict[str, Any]:
    hidden = {"unknown", "unseen", "problems"}
    given = {field.name: getattr(launch, field.name) for field in fields(launch) if field.name not in hidden}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None and value is not False
    }


def _config(launch: LaunchArguments, sizes: Sizes, path_as: tuple[tuple[str, str], ...]) -> BuilderConfig:
    if launch.sequence_length is None:
        raise UsageError("the sequence length is required", hint="add --seq-length to the launch command")
    surplus = launch.mid_level_dataset_surplus
    return BuilderConfig(
        sequence_length=launch.sequence_length,
        sizes=sizes,
        tokenizer={},
        split=launch.split or megatron_defaults.SPLIT,
        seed=megatron_defaults.SEED if launch.seed is None else launch.seed,
        surplus=megatron_defaults.SURPLUS if surplus is None else surplus,
        path_as=path_as,
    )


def recipe_of_launch(launch: LaunchArguments, paths: PathMapping) -> BlendRecipe:
    """Return the recipe of a launch command, with the path prefixes of this machine.

    Raises:
        UsageError: Megatron would misread it, or it has no data.
        InputError: A file of the command cannot be read.
    """
    here, several = paths.inverse(), launch.multiple_validation_sets
    if launch.data_args_path is not None:
        recipe = recipe_files.read_data_args(here.map(launch.data_args_path))
    elif launch.data_path is not None:
        recipe = recipe_files.parse_words(launch.data_path)
    elif launch.per_split_data_args_path is not None:
        path = here.map(launch.per_split_data_args_path)
        recipe = recipe_files.read_per_split(path, multiple_validation_sets=several)
    else:
        words = (launch.train_data_path, launch.valid_data_path, launch.test_data_path)
        recipe = recipe_files.parse_per_split_words(*words, multiple_validation_sets=several)
    if recipe.per_split is None:
        return replace(recipe, mixture=_mapped(recipe.mixture, here))
    train, valid, test = (_mapped(mixture, here) for mixture in recipe.per_split)
    return replace(recipe, per_split=(train, valid, test))


def prefixes_of(recipe: BlendRecipe) -> list[str]:
    """Return the path prefixes of all sources of a recipe, in order."""
    mixtures = [recipe.mixture] if recipe.per_split is None else recipe.per_split
    return [source.prefix for mixture in mixtures if mixture is not None for source in mixture.sources]


def _mapped(mixture: Mixture | None, paths: PathMapping) -> Mixture | None:
    if mixture is None:
        return None
    sources = (replace(source, prefix=paths.map(source.prefix)) for source in mixture.sources)
    return replace(mixture, sources=tuple(sources))


def forecast_splits(recipe: BlendRecipe, config: BuilderConfig) -> tuple[list[SplitPlan], list[Finding]]:
    """Return the plan of each split, and findings of all splits.

    The plan of a split with a defect has no sources.

    Raises:
        UsageError: The recipe and the sizes contradict each other.
    """
    requested = plan_requests(recipe, config)
    planned: dict[str, SplitPlan] = {}
    findings: dict[str, Finding] = {}
    for name in dict.fromkeys(split.split for split in requested):
        try:
            plan = plan_blend(recipe, config, only=name)
        except TokshardError as error:
            code = "data" if isinstance(error, InputError | IntegrityError) else "blend"
            findings.setdefault(error.message, Finding.of_error(code, error))
            continue
        shortfalls = {shortfall_of(split, plan.config) for split in plan.splits}  # findings of their own
        for warning in (warning for warning in plan.warnings if warning not in shortfalls):
            findings.setdefault(warning, Finding("blend", "warning", warning))
        planned |= {split.name: split for split in plan.splits}
    return [planned.get(split.name, split) for split in requested], list(findings.values())


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
    times = {}
    for source in plan.sources:
        asked = source.request.num_samples
        drawn = source.draws if asked is None else min(source.draws, asked)
        times[source.request.training_path] = (
            drawn * source.epochs.sequence_length / source.epochs.tokens_per_epoch
        )
    often = sorted((path for path in times if times[path] > 1), key=lambda path: -times[path])
    if often:
        told = ", ".join(f"{path} {times[path]:.2f} times" for path in often[:_SHOWN_SOURCES])
        more = f", and {len(often) - _SHOWN_SOURCES} more" if len(often) > _SHOWN_SOURCES else ""
        yield Finding("epochs", "note", f"{plan.name} reads {told}{more}")


def _of_cache(
    launch: LaunchArguments, lookups: Sequence[CacheLookup], splits: Sequence[SplitPlan]
) -> Iterator[Finding]:
    if launch.data_cache_path is None and any(split.weights is not None for split in splits):
        yield Finding(
            "no-cache-path",
            "warning",
            "without --data-cache-path every rank builds the blend again at every start",
            "add --data-cache-path to the launch command, and build the cache with tokshard blend",
        )
    rules: tuple[tuple[str, str, Any, str, str | None], ...] = (
        (
            "missing",
            "cache-missing",
            "warning",
            "the job will build {}",
            "build them with tokshard build-indices or tokshard blend",
        ),
        (
            "stale",
            "cache-stale",
            "error",
            "the job will read {}, built from other content",
            "replace them: run tokshard build-indices or tokshard blend with --rebuild",
        ),
        (
            "damaged",
            "cache-damaged",
            "error",
            "the job will fail on, or misread, {}",
            "replace them: run tokshard build-indices or tokshard blend with --rebuild",
        ),
        (
            "foreign",
            "cache-foreign",
            "note",
            "the job will read {}, which were not built by tokshard and are unverified",
            None,
        ),
    )
    for condition, code, severity, text, hint in rules:
        those = [lookup for lookup in lookups if lookup.condition == condition]
        if those:
            names = ", ".join(f"{lookup.split} of {lookup.name}" for lookup in those[:3])
            more = f" and {len(those) - 3} more" if len(those) > 3 else ""
            count = f"{len(those)} of {len(lookups)} sets of files ({names}{more})"
            yield Finding(code, severity, text.format(count), hint)


def _of_tokenizer(names: TokenizerNames, lookups: Sequence[CacheLookup]) -> Iterator[Result]:
    hint = "pass --megatron VERSION, --like or --tokenizer-identifiers"
    if not any(lookup.will_be_found for lookup in lookups):
        yield SkippedCheck(
            "cache-names",
            "no cached index has the name that any known version of Megatron gives it; the names of "
            f"{names.label} are shown",
            hint,
        )
    elif names.source == "cache":
        yield Finding(
            "tokenizer-assumed",
            "note",
            "the names are those of the cache's tokenizer: no preset matches the job's tokenizer",
            hint,
        )
