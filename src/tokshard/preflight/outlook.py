"""What a job asks of its data, split by split, even where the data or the blend has a defect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tokshard.blending import forms
from tokshard.blending.builder import SplitPlan, plan_blend, shortfall_of
from tokshard.blending.config import BuilderConfig
from tokshard.blending.outline import SplitOutline, outline_blend
from tokshard.blending.recipe import BlendRecipe, Mixture
from tokshard.core.findings import Finding
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, IntegrityError, TokshardError
from tokshard.gpt_index.splits import SPLITS, Split
from tokshard.index_cache.description import BlendedDescription
from tokshard.index_cache.request import IndexRequest
from tokshard.preflight.launch.arguments import LaunchArguments


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one split (or one of several validation sets) will be.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        requests: The indexes it needs.
        weights: The weights of its blend as they enter the hash; None for a plain dataset, or where
            they cannot be told.
        size: The size of the blend as it enters the hash.
        plan: Everything else; None where there is a defect.
    """

    name: str
    split: str
    requests: tuple[IndexRequest, ...]
    weights: tuple[float, ...] | tuple[int, ...] | None
    size: int | None
    plan: SplitPlan | None

    def blend(self) -> BlendedDescription | None:
        """Return the description of the blend, if it is one."""
        if self.weights is None:
            return None
        return BlendedDescription(
            tuple(one.description() for one in self.requests), self.split, self.weights, self.size
        )

    def with_tokenizer(self, tokenizer: dict[str, Any] | None) -> Outlook:
        """Return the same for other identifiers of the tokenizer."""
        return replace(self, requests=tuple(replace(one, tokenizer=tokenizer) for one in self.requests))


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
        recipe = forms.read_data_args(places.local(launch.data_args_path))
    elif launch.data_path is not None:
        recipe = forms.parse_words(launch.data_path)
    elif launch.per_split_data_args_path is not None:
        path = places.local(launch.per_split_data_args_path)
        recipe = forms.read_per_split(path, multiple_validation_sets=several)
    else:
        words = (launch.train_data_path, launch.valid_data_path, launch.test_data_path)
        recipe = forms.parse_per_split_words(*words, multiple_validation_sets=several)
    return places.localised(recipe)


def outlooks(recipe: BlendRecipe, config: BuilderConfig) -> tuple[list[Outlook], list[Finding]]:
    """Return what each split will be, and what is wrong with it; one split's defect hides no other's.

    Raises:
        UsageError: The recipe and the sizes do not go together.
    """
    outlines = outline_blend(recipe, config)
    plans: dict[str, SplitPlan] = {}
    findings: dict[str, Finding] = {}
    for split in dict.fromkeys(outline.split for outline in outlines):
        try:
            plan = plan_blend(*_alone(recipe, config, split))
        except TokshardError as error:
            code = "data" if isinstance(error, InputError | IntegrityError) else "blend"
            findings.setdefault(error.message, Finding.of_error(code, error))
            continue
        shortfalls = {shortfall_of(one, plan.config) for one in plan.splits}  # a finding of its own
        for warning in (one for one in plan.warnings if one not in shortfalls):
            findings.setdefault(warning, Finding("blend", "warning", warning))
        plans |= {one.name: one for one in plan.splits}
    return [_outlook(one, plans.get(one.name)) for one in outlines], list(findings.values())


def _outlook(outline: SplitOutline, plan: SplitPlan | None) -> Outlook:
    weights = plan.weights if plan is not None else outline.shares
    size = plan.size if plan is not None else outline.size
    return Outlook(outline.name, outline.split, outline.requests, weights, size, plan)


def _alone(recipe: BlendRecipe, config: BuilderConfig, name: str) -> tuple[BlendRecipe, BuilderConfig]:
    """Return a recipe and parameters in which no other split is built."""
    place = SPLITS.index(name)
    if recipe.per_split is not None:
        train, valid, test = (one if at == place else None for at, one in enumerate(recipe.per_split))
        several = recipe.multiple_validation_sets and name == "valid"
        return replace(recipe, per_split=(train, valid, test), multiple_validation_sets=several), config
    train_share, valid_share, test_share = (
        one if at == place else None for at, one in enumerate(config.split.matrix)
    )
    return recipe, replace(config, split=Split(config.split.text, (train_share, valid_share, test_share)))
