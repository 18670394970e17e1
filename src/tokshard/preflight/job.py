"""Checks of a Megatron launch command: the cached indexes it will find, and the effect of its data arguments.

Reads a launch command, computes the names of all cache files as Megatron does, examines those that exist, and
for missing ones finds the fields of the description that differ from the nearest existing one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from tokshard.blending import recipe_files
from tokshard.blending.options import BuilderConfig
from tokshard.blending.plan import SplitPlan, plan_blend, plan_requests, shortfall_of
from tokshard.blending.recipe import BlendRecipe, Mixture
from tokshard.core import megatron_defaults
from tokshard.core.codec import Document, Key, NotStored
from tokshard.core.findings import Finding
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.preflight.launch.arguments import LaunchArguments, findings_of_arguments
from tokshard.preflight.launch.text import read_launch, read_launch_words
from tokshard.preflight.lookups import CacheLookup, Candidate, JobCache, TokenizerNames, identifiers_of_launch
from tokshard.preflight.options import DoctorOptions
from tokshard.preflight.tokenizers import findings_of_tokenizers, read_launch_tokenizer
from tokshard.storage.small_files import read_small_file

_SHOWN_SOURCES = 5


@dataclass(frozen=True, slots=True)
class DoctorReport(Document):
    """The diagnosis of a job before it is started.

    Attributes:
        launch: The arguments of the job.
        splits: The plan of each split; that of a split with a defect has no sources.
    """

    SCHEMA = "tokshard.doctor/1"

    is_healthy: Annotated[bool, Key("healthy", "Whether there are no findings other than notes.")]
    arguments: Annotated[
        dict[str, Any], Key("arguments", "Arguments about data that are given, by Megatron's names.")
    ]
    sizes: Annotated[
        Sizes | None, Key("sizes", "Samples that the job asks for; null where they are not known.")
    ]
    tokenizer: Annotated[TokenizerNames, Key("tokenizer", "Tokenizer under whose names files are looked up.")]
    lookups: Annotated[tuple[CacheLookup, ...], Key("lookups", "Cache entries that the job looks up.")]
    findings: Annotated[tuple[Finding, ...], Key("findings", "What is wrong or worth knowing.")]
    launch: Annotated[LaunchArguments, NotStored()] = LaunchArguments()  # noqa: RUF009 - frozen
    splits: Annotated[tuple[SplitPlan, ...], NotStored()] = ()


def doctor(job: str | os.PathLike[str] | DoctorOptions) -> DoctorReport:
    """Check a Megatron launch command. Nothing is written, and no index is built.

    Args:
        job: The path of a launch script, a launch command, or options.

    Raises:
        UsageError: The command has no data arguments, or an invalid one.
        InputError: A file cannot be read.
        StorageError: The cache cannot be read.
    """
    options = job if isinstance(job, DoctorOptions) else DoctorOptions(job)
    launch = _read(options)
    return diagnose(launch, tokenizer=_candidate(launch, options), path_as=options.path_as)


def _read(options: DoctorOptions) -> LaunchArguments:
    if isinstance(options.launch, tuple):
        return read_launch_words(options.launch)
    text = os.fspath(options.launch)
    if "\n" in text:
        return read_launch(text)
    if os.path.lexists(text):
        return read_launch(read_small_file(text, "launch script").decode("utf-8", "surrogateescape"))
    if " " not in text.strip():
        raise MissingFileError(
            f"launch script not found: {text}",
            path=text,
            hint="pass a file with the launch command, or the command itself",
        )
    return read_launch(text)


def _candidate(launch: LaunchArguments, options: DoctorOptions) -> Candidate | None:
    if options.megatron is not None:
        identifiers = identifiers_of_launch(launch, options.megatron)
        return Candidate(TokenizerNames("megatron", (options.megatron,)), identifiers)
    found = options.naming.identifiers()
    path = options.like or options.tokenizer_identifiers
    return None if found is None else Candidate(TokenizerNames("file", path=str(path)), found)


def diagnose(
    launch: LaunchArguments,
    *,
    tokenizer: Candidate | None = None,
    path_as: tuple[tuple[str, str], ...] = (),
) -> DoctorReport:
    """Check a job before it is launched.

    Args:
        launch: Its arguments.
        tokenizer: The identifiers of its tokenizer; None to try those of each version of Megatron and those
            in the cache, and to use the best match.
        path_as: Pairs (path here, path at training time), for data or caches at other paths here.

    Raises:
        UsageError: An option is invalid.
        StorageError: The cache cannot be read.
    """
    version = tokenizer.names.versions[0] if tokenizer and tokenizer.names.versions else None
    findings = findings_of_arguments(launch, version)
    paths = PathMapping(path_as)
    splits: list[SplitPlan] = []
    recipe = None
    sizes = config = None
    if not (launch.mock_data or launch.sft):
        try:
            sizes = launch.sizes(version)
            config = _config(launch, sizes, path_as)
            recipe = recipe_of_launch(launch, paths)
            splits, defects = forecast_splits(recipe, config)
            findings += defects
        except TokshardError as error:
            if not any(found.message == error.message or found.code == "no-data" for found in findings):
                findings.append(Finding.of_error("arguments", error))
    cache = JobCache(launch, paths)
    candidate = tokenizer or cache.likeliest(splits)
    splits = [split.with_tokenizer(candidate.identifiers) for split in splits]
    lookups = cache.lookups(splits)
    findings += [*_of_sizes(splits, config), *_of_cache(launch, lookups, splits)]
    if tokenizer is None and splits:
        findings += _of_tokenizer(candidate.names, lookups)
    if recipe is not None:
        job, recorded = read_launch_tokenizer(launch, path_as), cache.allowed_mismatches(lookups)
        findings += findings_of_tokenizers(launch, job, prefixes_of(recipe), recorded)
    given = {field.name: getattr(launch, field.name) for field in fields(launch)}
    del given["unseen"]  # a finding names them
    return DoctorReport(
        is_healthy=not any(finding.is_problem for finding in findings),
        arguments={
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value not in (None, False, ())
        },
        sizes=sizes,
        tokenizer=candidate.names,
        lookups=tuple(lookups),
        findings=tuple(findings),
        launch=launch,
        splits=tuple(splits),
    )


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


def _of_tokenizer(names: TokenizerNames, lookups: Sequence[CacheLookup]) -> Iterator[Finding]:
    hint = "pass --megatron VERSION, --like or --tokenizer-identifiers"
    if not any(lookup.will_be_found for lookup in lookups):
        yield Finding(
            "tokenizer-unknown",
            "warning",
            f"no files found under the names of any known version of Megatron; {names.label} is shown",
            hint,
        )
    elif names.source == "cache":
        yield Finding(
            "tokenizer-assumed",
            "note",
            "the names are those of the cache's tokenizer: no preset matches the job's tokenizer",
            hint,
        )
