"""What Megatron's builder would build for a recipe: every index, every blend, and what each draws.

The cases are those of Megatron Core: one prefix without a weight is a plain dataset; weights make a
blend by weights, and need a size; no weights make a blend in proportion to the sources, or all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokshard.blending.config import BuilderConfig
from tokshard.blending.exhaustive import exhaustive_order
from tokshard.blending.greedy import greedy_order, normalize
from tokshard.blending.order import blend_blocks, count_draws
from tokshard.blending.outline import SplitOutline, index_request, outline_blend
from tokshard.blending.recipe import BlendRecipe, Mixture
from tokshard.blending.resolution import Resolved, SourceSupply, resolve
from tokshard.blending.sizes import smallest_surplus, with_surplus
from tokshard.blending.supply import Supply, refuse_duplicates
from tokshard.errors import UsageError
from tokshard.gpt_index.epochs import EpochPlan, warnings_of
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.description import BlendedDescription
from tokshard.index_cache.request import IndexRequest


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source of one split.

    Attributes:
        request: The index that it needs.
        epochs: What that index is.
        share: The share of the samples that is asked for, from 0 to 1.
        draws: How many samples are drawn from it: its first ones.
    """

    request: IndexRequest
    epochs: EpochPlan
    share: float
    draws: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One split, or one of several validation sets.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"single"`` (one source and no blend), ``"weighted"``, ``"proportional"`` or
            ``"exhaustive"``.
        sources: The sources, in order.
        weights: The weights of the blend as they enter its hash; None for a single source.
        size: The size of the blend as it enters its hash; None for a single source or all samples.
        samples: The samples of the split.
    """

    name: str
    split: str
    kind: str
    sources: tuple[SourcePlan, ...]
    weights: tuple[float, ...] | tuple[int, ...] | None
    size: int | None
    samples: int

    def description(self) -> BlendedDescription | None:
        """Return what the name of the blend's files depends on; None for a single source."""
        if self.weights is None:
            return None
        datasets = tuple(one.request.description() for one in self.sources)
        return BlendedDescription(datasets, self.split, self.weights, self.size)


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """Everything that a recipe comes to.

    Attributes:
        recipe: What was asked for.
        config: The builder's parameters, with the training size that follows from the recipe.
        resolved: What Megatron is told: one entry for all splits, or one for each (None without data).
        splits: The splits that have data.
        warnings: What the user should know, one sentence each.
    """

    recipe: BlendRecipe
    config: BuilderConfig
    resolved: tuple[Resolved | None, ...]
    splits: tuple[SplitPlan, ...]
    warnings: tuple[str, ...]

    @property
    def requests(self) -> tuple[IndexRequest, ...]:
        """All indexes that are needed."""
        return tuple(one.request for split in self.splits for one in split.sources)


def plan_blend(recipe: BlendRecipe, config: BuilderConfig) -> BlendPlan:
    """Work out everything that Megatron would build, and whether it would work, without building anything.

    The samples drawn from each source are counted exactly, which takes the time of one run of the order
    and memory that does not depend on its length.

    Raises:
        UsageError: The recipe contradicts itself or the sizes, a dataset is named twice, or a blend would
            draw more samples of a source than there will be: with the numbers and what would work.
        InputError: A dataset is missing, or has nothing in a split.
        IntegrityError: A dataset is damaged.
    """
    return _Planner(recipe, config).plan()


def shortfall_of(split: SplitPlan, config: BuilderConfig) -> str | None:
    """Say by how much a split has fewer samples than are asked for; None if it has them all."""
    asked = config.size_of(split.split)
    if asked is None or split.samples >= asked:
        return None
    return (
        f"{split.name} is asked for {asked:,} samples and will have {split.samples:,}: "
        "without weights a blend holds every dataset once"
    )


class _Planner:
    """The state of planning: the recipe, the parameters, and what the datasets hold."""

    def __init__(self, recipe: BlendRecipe, config: BuilderConfig) -> None:
        self._recipe = recipe
        self._config = config
        self._supply = Supply()
        self._warnings: dict[str, None] = {}

    def plan(self) -> BlendPlan:
        recipe = self._recipe
        for mixture in (recipe.mixture, *(recipe.per_split or ())):
            if mixture is not None:
                refuse_duplicates(mixture.sources, self._config.seed)
        self._check_validation_sets()
        if recipe.mixture is not None:
            shared = [name for name, share in zip(SPLITS, self._config.split.matrix, strict=True) if share]
            resolved: tuple[Resolved | None, ...] = (self._resolve(recipe.mixture, shared[0]),)
        else:
            mixtures = zip(SPLITS, recipe.per_split or (), strict=True)
            resolved = tuple(None if one is None else self._resolve(one, name) for name, one in mixtures)
        outlines = outline_blend(recipe, self._config, resolved)
        splits = tuple(self._plan_split(outline) for outline in outlines)
        for split in splits:
            if (shortfall := shortfall_of(split, self._config)) is not None:
                self._warn(shortfall)
        return BlendPlan(recipe, self._config, resolved, splits, tuple(self._warnings))

    def _check_validation_sets(self) -> None:
        mixture = self._recipe.for_split("valid")
        if not self._recipe.multiple_validation_sets or mixture is None:
            return
        if not mixture.is_plain:
            raise UsageError(
                "validation sets that stay apart have no caps, epochs, amounts or temperature",
                hint="leave them out, or let validation be one blend",
            )
        if mixture.weights is not None:
            self._warn("the weights of validation sets that stay apart have no effect")

    def _resolve(self, mixture: Mixture, name: str) -> Resolved:
        """Resolve a mixture by what a split has, and make the size that comes of it that of the split."""
        config, own = self._config, self._recipe.mixture is None
        supplies: list[SourceSupply] = []
        if not mixture.is_plain:
            for source in mixture.sources:
                epochs = self._supply.plan(index_request(name, source, None, config, own=own), 0)
                tokens, length = epochs.tokens_per_epoch, config.sequence_length
                supplies.append(SourceSupply(tokens, length, int(config.extra_token)))
        found = resolve(mixture, config.size_of(name), supplies, old=config.old_sizes)
        self._config = replace(config, sizes=replace(config.sizes, **{name: found.size}))
        return found

    def _plan_split(self, outline: SplitOutline) -> SplitPlan:
        if len(outline.requests) == 1 and outline.kind == "weighted":
            self._warn(
                f"{outline.name} is a blend of one source: without its weight it would be a plain dataset"
            )
        epochs = [self._index(request) for request in outline.requests]
        counts = [one.samples for one in epochs]
        weights: tuple[float, ...] | tuple[int, ...] | None = outline.shares
        size, total = outline.size, sum(counts)
        if outline.kind == "single":
            size, shares, draws = None, [1.0], counts
        elif outline.kind == "weighted":
            shares, draws, total = (
                list(outline.shares or ()),
                self._weighted_draws(outline, epochs),
                size or 0,
            )
        elif size is None:
            exhaustive_order(counts)
            weights, shares, draws = tuple(counts), [count / total for count in counts], counts
        else:
            size = total = min(size, total)
            shares = normalize(counts)
            weights, draws = tuple(shares), _proportional_draws(outline, shares, counts, size)
        planned = zip(outline.requests, epochs, shares, draws, strict=True)
        sources = tuple(SourcePlan(*one) for one in planned)
        return SplitPlan(outline.name, outline.split, outline.kind, sources, weights, size, total)

    def _index(self, request: IndexRequest) -> EpochPlan:
        epochs = self._supply.plan(request, request.num_samples)
        for warning in warnings_of(epochs):
            self._warn(f"{request.prefix}, {request.split_name}: {warning}")
        return epochs

    def _weighted_draws(self, outline: SplitOutline, epochs: Sequence[EpochPlan]) -> list[int]:
        """Count the draws of a blend by weights, and refuse one that draws what will not be there."""
        size, targets = outline.size or 0, outline.targets or ()
        counted = count_draws(greedy_order(outline.shares or (), size), size)
        draws = [int(count) for count in counted]
        beyond = [drawn - one.samples for drawn, one in zip(draws, epochs, strict=True)]
        if max(beyond) <= 0:
            return draws
        short = [place for place, missing in enumerate(beyond) if missing > 0]

        def fits(surplus: float) -> bool:
            return all(
                self._supply.plan(outline.requests[place], with_surplus(targets[place], surplus)).samples
                >= draws[place]
                for place in short
            )

        needed = None if self._config.old_sizes else smallest_surplus(fits)
        hint = "ask for another number of samples"
        if needed is not None:
            hint = f"--surplus {needed:.6f} is the smallest that works (it is {self._config.surplus:g})"
        worst = beyond.index(max(beyond))
        raise UsageError(
            f"the {outline.name} blend would draw {draws[worst]} samples of "
            f"{outline.requests[worst].prefix!r}, whose index will have {epochs[worst].samples}",
            hint=hint,
        )

    def _warn(self, message: str) -> None:
        self._warnings[message] = None


def _proportional_draws(
    outline: SplitOutline, shares: Sequence[float], counts: Sequence[int], size: int
) -> list[int]:
    """Count the draws of a blend in proportion, and refuse one that draws more than one epoch of a source.

    The order does not depend on the size, so that what comes before the first wrong draw is a legal blend.
    """
    order, limits, done = greedy_order(shares, size), np.array(counts), 0
    for sources, samples in blend_blocks(order, size):
        beyond = np.flatnonzero(samples >= limits[sources])
        if len(beyond):
            place, most = int(sources[beyond[0]]), done + int(beyond[0])
            raise UsageError(
                f"the {outline.name} blend of {size} samples would draw {counts[place] + 1} samples of "
                f"{outline.requests[place].prefix!r}, which has {counts[place]} in one epoch",
                hint=f"ask for at most {most} samples, or for none, which means every sample once",
            )
        done += len(sources)
    return [int(count) for count in order.draws()]
