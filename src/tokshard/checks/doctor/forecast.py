"""Forecast of the data that a job will read, by its launch command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.rules import Result, has_data, unknown_data, unknown_sizes
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.missing_data import check_data_exists
from tokshard.core import megatron_rules
from tokshard.core.findings import Finding
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import (
    InputError,
    IntegrityError,
    MissingFileError,
    TokshardError,
    UsageError,
    raise_exhaustion,
)
from tokshard.samples.blend import recipe_files
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.plan import (
    PackingOf,
    SplitPlan,
    plan_blend,
    plan_requests,
    repeats_of,
    shortfall_of,
)
from tokshard.samples.blend.recipe import BlendRecipe, Mixture
from tokshard.samples.index.sizes import Sizes

_DEFAULT_HINTS = {
    "arguments": "correct the arguments of the launch command",
    "data": "run `tokshard verify` on the dataset",
    "blend": "change the data arguments of the launch command, or add data",
}
# About 5 s in one split: 0.7 ms each for the dataset and the name of its index, 1.5 ms if its files exist.
_MAX_SOURCES = 5_000
_MANY_SOURCES_HINT = (
    "merge datasets with `tokshard merge`, or build the indexes with `tokshard blend --from-launch`, which "
    "reuses those that are up to date"
)
_AFTER_ERRORS = SkippedCheck(
    "cache",
    "the cached indexes depend on arguments that are reported as errors",
    "correct these arguments, and run doctor again",
)


@dataclass(slots=True)
class Forecast:
    """Data that a job will read; unknown parts are None or empty.

    Attributes:
        sizes: The samples that it requests.
        config: The parameters of its dataset builder.
        recipe: Its mixture.
        splits: The plan of each split; that of a split with a defect has no sources.
        results: Findings, and the checks that were skipped.
        defects: Findings about the splits.
    """

    sizes: Sizes | None = None
    config: BuilderConfig | None = None
    recipe: BlendRecipe | None = None
    splits: list[SplitPlan] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    defects: list[Finding] = field(default_factory=list)


def forecast_of(launch: LaunchArguments, version: str | None, paths: PathMapping) -> Forecast:
    """Return the forecast of a job; of its datasets, only the ``.idx`` files are opened.

    Args:
        launch: The arguments of the job.
        version: The version of Megatron Core, if it is known.
        paths: Paths here and at training time.
    """
    forecast = Forecast()
    try:
        _complete(forecast, launch, version, paths)
    except TokshardError as error:
        forecast.results += finding_of_error("arguments", error), _AFTER_ERRORS
    return forecast


def _complete(forecast: Forecast, launch: LaunchArguments, version: str | None, paths: PathMapping) -> None:
    """Fill in a forecast up to the first part that is unknown or wrong."""
    results = forecast.results
    unknown = unknown_sizes(launch)
    if unknown is None:
        forecast.sizes = launch.sizes(version)
    else:
        results.append(unknown.skipped("sizes"))
    if (data := unknown_data(launch)) is not None:
        results.append(data.skipped("cache"))
        return
    if not has_data(launch):
        results.append(_AFTER_ERRORS)
        return
    recipe = local_recipe(launch, paths)
    if not isinstance(recipe, BlendRecipe):
        results += [recipe, _AFTER_ERRORS] if isinstance(recipe, Finding) else [recipe]
        return
    if (sources := len(recipe.sources)) > _MAX_SOURCES:
        reason = f"the job reads {sources:,} datasets, and doctor opens at most {_MAX_SOURCES:,}"
        results.append(SkippedCheck("cache", reason, _MANY_SOURCES_HINT))
        return
    forecast.recipe = recipe
    if unknown is not None:
        results.append(unknown.skipped("cache"))
        return
    forecast.config = config_of_launch(launch, version, paths.pairs)
    forecast.splits, forecast.defects = forecast_splits(recipe, forecast.config)


def config_of_launch(
    launch: LaunchArguments, version: str | None, path_as: tuple[tuple[str, str], ...]
) -> BuilderConfig:
    """Return the parameters of the job's dataset builder, without the identifiers of its tokenizer.

    Args:
        launch: The arguments of the job.
        version: The version of Megatron Core, if it is known.
        path_as: Pairs (path here, path at training time).

    Raises:
        UsageError: The sequence length is missing, or a value is invalid.
    """
    if launch.sequence_length is None:
        raise UsageError("the sequence length is required", hint="add --seq-length to the launch command")
    surplus = launch.mid_level_dataset_surplus
    return BuilderConfig(
        sequence_length=launch.sequence_length,
        sizes=launch.sizes(version),
        tokenizer={},
        split=launch.split or megatron_rules.SPLIT,
        seed=megatron_rules.SEED if launch.seed is None else launch.seed,
        surplus=megatron_rules.SURPLUS if surplus is None else surplus,
        extra_token=True,
        drop_last_partial=True,
        path_as=path_as,
    )


def recipe_of_launch(launch: LaunchArguments, paths: PathMapping) -> BlendRecipe:
    """Return the recipe of a launch command, with the path prefixes of this machine.

    Raises:
        UsageError: Megatron would misread it, or it has no data.
        InputError: A file of the command cannot be read.
    """
    local = paths.inverse()
    if launch.data_args_path is not None:
        recipe = recipe_files.read_data_args(local.map(launch.data_args_path))
    elif launch.data_path is not None:
        recipe = recipe_files.parse_words(launch.data_path)
    elif launch.per_split_data_args_path is not None:
        recipe = recipe_files.read_per_split(local.map(launch.per_split_data_args_path))
    else:
        words = (launch.train_data_path, launch.valid_data_path, launch.test_data_path)
        recipe = recipe_files.parse_words(*words)
    recipe = recipe.map(partial(_mapped, paths=local))
    return replace(recipe, multiple_validation_sets=recipe.is_per_split and launch.multiple_validation_sets)


def local_recipe(launch: LaunchArguments, paths: PathMapping) -> BlendRecipe | Result:
    """Return the recipe of a launch command, or the error or skipped check if its data does not exist here.

    Raises:
        UsageError, InputError: See :func:`recipe_of_launch`.
    """
    try:
        recipe = recipe_of_launch(launch, paths)
    except MissingFileError as error:
        if (result := check_data_exists([error.filename], launch, paths, is_file=True)) is None:
            raise
        return result
    return check_data_exists(prefixes_of(recipe), launch, paths) or recipe


def prefixes_of(recipe: BlendRecipe) -> list[str]:
    """Return the path prefixes of all sources of a recipe, in order."""
    return [source.prefix for source in recipe.sources]


def _mapped(mixture: Mixture, paths: PathMapping) -> Mixture:
    sources = (replace(source, prefix=paths.map(source.prefix)) for source in mixture.sources)
    return replace(mixture, sources=tuple(sources))


def forecast_splits(
    recipe: BlendRecipe,
    config: BuilderConfig,
    packing_of: PackingOf | None = None,
) -> tuple[list[SplitPlan], list[Finding]]:
    """Return the plan of each split, and findings about all splits.

    The plan of a split with a defect has no sources. ``packing_of`` returns the packing of an existing
    index; without it, all documents are concatenated.

    Raises:
        UsageError: The recipe and the sizes contradict each other.
    """
    requested = plan_requests(recipe, config)
    planned: dict[str, SplitPlan] = {}
    findings: dict[str, Finding] = {}
    for name in dict.fromkeys(split.split for split in requested):
        try:
            plan = plan_blend(recipe, config, only=name, packing_of=packing_of)
        except TokshardError as error:
            code = "data" if isinstance(error, InputError | IntegrityError) else "blend"
            findings.setdefault(error.message, finding_of_error(code, error))
            continue
        # Other findings report these with the paths and options of the job.
        of_sizes = {shortfall_of(split, plan.builder) for split in plan.splits}
        of_sizes |= {repeats_of(split) for split in plan.splits}
        for warning in (warning for warning in plan.warnings if warning not in of_sizes):
            findings.setdefault(warning, Finding("blend", "warning", warning, _DEFAULT_HINTS["blend"]))
        planned |= {split.name: split for split in plan.splits}
    return [planned.get(split.name, split) for split in requested], list(findings.values())


def is_blend(splits: Sequence[SplitPlan]) -> bool:
    """Return whether a split has weights or several datasets."""
    return any(split.kind != "single" for split in splits)


def finding_of_error(code: str, error: TokshardError) -> Finding:
    """Return the finding that reports an error."""
    raise_exhaustion(error)
    return Finding(code, "error", error.message, error.hint or _DEFAULT_HINTS[code])
