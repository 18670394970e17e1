"""What a job asks of its data, split by split, even where the data or the blend has a defect."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokshard.blending import recipe_files
from tokshard.blending.options import BuilderConfig
from tokshard.blending.plan import SplitPlan, plan_blend, plan_requests, shortfall_of
from tokshard.blending.recipe import BlendRecipe, Mixture
from tokshard.core.findings import Finding
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, IntegrityError, TokshardError
from tokshard.preflight.launch.arguments import LaunchArguments


@dataclass(frozen=True, slots=True)
class Places:
    """Where this machine has what the job names: pairs (path here, path at training time)."""

    path_as: tuple[tuple[str, str], ...] = ()

    def local(self, path: str) -> str:
        """Return the path here.

        Example:
            >>> Places((("out", "/data/v1"),)).local("/data/v1/web")
            'out/web'
        """
        return PathMapping(self.path_as).inverse().map(path)

    def localised(self, recipe: BlendRecipe) -> BlendRecipe:
        """Return a recipe with the prefixes of this machine."""
        if recipe.per_split is None:
            return replace(recipe, mixture=self._mixture(recipe.mixture))
        train, valid, test = map(self._mixture, recipe.per_split)
        return replace(recipe, per_split=(train, valid, test))

    def _mixture(self, mixture: Mixture | None) -> Mixture | None:
        if mixture is None:
            return None
        sources = (replace(one, prefix=self.local(one.prefix)) for one in mixture.sources)
        return replace(mixture, sources=tuple(sources))


def recipe_of_launch(launch: LaunchArguments, places: Places) -> BlendRecipe:
    """Return the recipe that a launch command gives, with the prefixes of this machine.

    Raises:
        UsageError: Megatron would misread it, or nothing is given.
        InputError: A file that it names cannot be read.
    """
    several = launch.multiple_validation_sets
    if launch.data_args_path is not None:
        recipe = recipe_files.read_data_args(places.local(launch.data_args_path))
    elif launch.data_path is not None:
        recipe = recipe_files.parse_words(launch.data_path)
    elif launch.per_split_data_args_path is not None:
        path = places.local(launch.per_split_data_args_path)
        recipe = recipe_files.read_per_split(path, multiple_validation_sets=several)
    else:
        words = (launch.train_data_path, launch.valid_data_path, launch.test_data_path)
        recipe = recipe_files.parse_per_split_words(*words, multiple_validation_sets=several)
    return places.localised(recipe)


def forecast_splits(recipe: BlendRecipe, config: BuilderConfig) -> tuple[list[SplitPlan], list[Finding]]:
    """Return the plan of each split and findings; one split's defect hides no other's.

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
