"""The plan of a blend: every index and every order that Megatron would build for a recipe.

The cases are those of Megatron Core: one prefix without a weight is a plain dataset; weights make a
blend by weights, and need a size; no weights make a blend in proportion to the sources, or all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokshard.core.codec import Amount, Count, Record, Share
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, TokshardError, UsageError
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.order import BlendOrder, normalize
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source
from tokshard.samples.blend.sources import Kind
from tokshard.samples.blend.weights import (
    BlendWeights,
    resolve,
    shares_of,
    smallest_surplus,
    with_surplus,
)
from tokshard.samples.index.description import BlendedDescription
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import SplitSize, warnings_of
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.splits import SPLITS, whole_split
from tokshard.storage.fs import realpath
from tokshard.storage.paths import idx_path

PackingOf = Callable[[IndexRequest], Packing | None]
KIND_NAMES: dict[Kind, str] = {
    "single": "one dataset",
    "weighted": "weighted blend",
    "proportional": "proportional blend",
    "exhaustive": "every sample",
}


@dataclass(frozen=True, slots=True)
class SourcePlan(Record):
    """One source of one split."""

    path_prefix: str
    weight: Share
    draws: Count
    plan: EpochPlan
    epochs_drawn: Amount


@dataclass(frozen=True, slots=True)
class PlannedSplit(Record):
    """One split as it is planned."""

    name: str
    kind: Kind
    samples: Count
    size: Count | None
    sources: tuple[SourcePlan, ...]

    @property
    def kind_name(self) -> str:
        """The kind in words."""
        return KIND_NAMES[self.kind]


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One split, or one of several validation sets.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"single"`` (one source and no blend), ``"weighted"``, ``"proportional"`` or
            ``"exhaustive"``.
        requests: The index of each source, in order.
        weights: The weights of the blend as they enter its hash; None for a single source, and for blends
            without weights of which the datasets have not been read.
        size: The size of the blend as it enters its hash; None for a single source or all samples.
        targets: The samples that a weighted blend counts on from each source; None otherwise.
        sources: The sources with their draws; empty where the datasets have not been read.
    """

    name: str
    split: str
    kind: Kind
    requests: tuple[IndexRequest, ...]
    weights: tuple[float, ...] | tuple[int, ...] | None
    size: int | None
    targets: tuple[int, ...] | None = None
    sources: tuple[SourcePlan, ...] = ()

    @property
    def samples(self) -> int:
        """The samples of the split."""
        return sum(source.draws for source in self.sources)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that is asked of each source; their sum is 1."""
        return (1.0,) if self.weights is None else shares_of(self.weights, self.size)

    @property
    def planned(self) -> PlannedSplit:
        """The split as reports show it."""
        return PlannedSplit(self.name, self.kind, self.samples, self.size, self.sources)

    def description(self) -> BlendedDescription | None:
        """Return the description of the blend, which names its files.

        None for a single source, and for blends without weights, whose name depends on the data.
        """
        if self.weights is None:
            return None
        datasets = tuple(request.description() for request in self.requests)
        return BlendedDescription(datasets, self.split, self.weights, self.size)

    def with_tokenizer(self, identifiers: dict[str, Any] | None) -> SplitPlan:
        """Return the same plan for other identifiers of the tokenizer."""
        requests = tuple(replace(request, tokenizer=identifiers) for request in self.requests)
        return replace(self, requests=requests)


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """Everything that Megatron would build for a recipe.

    Attributes:
        recipe: The recipe.
        builder: The builder's parameters, with the training size that follows from the recipe.
        resolved: The weights that Megatron is given: one entry for all splits, or one for each (None
            without data).
        splits: The splits that have data.
        warnings: Messages for the user.
    """

    recipe: BlendRecipe
    builder: BuilderConfig
    resolved: tuple[BlendWeights | None, ...]
    splits: tuple[SplitPlan, ...]
    warnings: tuple[str, ...]

    @property
    def requests(self) -> tuple[IndexRequest, ...]:
        """All indexes that are needed."""
        return tuple(request for split in self.splits for request in split.requests)


def plan_blend(
    recipe: BlendRecipe,
    config: BuilderConfig,
    *,
    only: str | None = None,
    packing_of: PackingOf | None = None,
) -> BlendPlan:
    """Plan everything that Megatron would build, and check that it would work, without building anything.

    The samples drawn from each source are counted exactly, which takes the time of one run of the order
    and memory that does not depend on its length.

    Args:
        recipe: The recipe.
        config: The builder's parameters.
        only: The only split to plan and check, for recipes that Megatron understands as they are.
        packing_of: Returns the packing of an index that exists; None for that of the recipe.

    Raises:
        UsageError: The recipe contradicts itself or the sizes, a dataset is named twice, or a blend would
            draw more samples of a source than there will be: with the numbers and what would work.
        InputError: A dataset is missing, or has nothing in a split.
        IntegrityError: A dataset is damaged.
    """
    return _Planner(recipe, config, only, packing_of).plan()


def plan_requests(
    recipe: BlendRecipe, config: BuilderConfig, resolved: Sequence[BlendWeights | None] | None = None
) -> tuple[SplitPlan, ...]:
    """Plan the indexes that Megatron would build for a recipe. No dataset is opened and nothing is checked.

    Args:
        recipe: The recipe.
        config: The builder's parameters.
        resolved: The weights that Megatron is given: one entry for all splits, or one for each. None for
            recipes that Megatron understands as they are.

    Raises:
        UsageError: There are weights and no number of samples, or the recipe has caps, epochs, amounts or
            a temperature, and ``resolved`` is not given.

    Example:
        >>> from tokshard.samples.blend.options import BlendOptions
        >>> from tokshard.samples.index.sizes import Sizes
        >>> words = ("0.7", "data/web", "0.3", "data/code")
        >>> options = BlendOptions(sources=words, seq_length=64, num_samples=Sizes(100, 0, 0))
        >>> for split in plan_requests(*options.resolve()):
        ...     print(split.name, split.kind, split.size, [request.num_samples for request in split.requests])
        train weighted 100 [71, 31]
        valid weighted 0 [0, 0]
        test weighted 0 [0, 0]
    """
    if recipe.mixture is not None:
        weights = _weights(recipe.mixture, resolved[0] if resolved else None)
        for name in SPLITS:
            # Megatron asks this of splits without a share, too.
            _check_size(name, weights, config.size_of(name))
        shares = zip(SPLITS, config.shares.matrix, strict=True)
        return tuple(_request_split(recipe.mixture, weights, name, config) for name, share in shares if share)
    found: list[SplitPlan] = []
    for place, name in enumerate(SPLITS):
        mixture = recipe.for_split(name)
        if mixture is None:
            continue
        weights = _weights(mixture, resolved[place] if resolved else None)
        _check_size(name, weights, config.size_of(name))
        if len(mixture.sources) == 1:
            found.append(_request_single(name, name, mixture.sources[0], config, own=True))
        elif recipe.multiple_validation_sets and name == "valid":
            found += [
                _request_single(f"valid.{number}", name, source, config, own=True)
                for number, source in enumerate(mixture.sources)
            ]
        else:
            found.append(_request_split(mixture, weights, name, config, own=True))
    return tuple(found)


def _weights(mixture: Mixture, resolved: BlendWeights | None) -> tuple[float, ...] | None:
    if resolved is not None:
        return resolved.weights
    if not mixture.is_plain:
        raise UsageError("the weights of this recipe depend on its datasets: pass `resolved`")
    return mixture.weights


def _check_size(split: str, weights: tuple[float, ...] | None, size: int | None) -> None:
    if weights is not None and size is None:
        raise UsageError(
            f"the number of samples is required for a blend with weights ({split})",
            hint="pass --num-samples, or omit the weights for one epoch of every source",
        )


def _request_split(
    mixture: Mixture,
    weights: tuple[float, ...] | None,
    split: str,
    config: BuilderConfig,
    *,
    own: bool = False,
) -> SplitPlan:
    size = config.size_of(split)
    if weights is None or size is None:
        if len(mixture.sources) == 1:
            return _request_single(split, split, mixture.sources[0], config, own=own)
        requests = tuple(_request(split, source, None, config, own=own) for source in mixture.sources)
        kind: Kind = "exhaustive" if size is None else "proportional"
        return SplitPlan(split, split, kind, requests, None, size)
    # The builder normalizes, and the blend normalizes what it gets: the last bits of both are in the hash.
    once = normalize(weights)
    targets = tuple(math.ceil(size * weight) for weight in once)
    requests = tuple(
        _request(split, source, with_surplus(target, config.surplus), config, own=own)
        for source, target in zip(mixture.sources, targets, strict=True)
    )
    return SplitPlan(split, split, "weighted", requests, tuple(normalize(once)), sum(targets), targets)


def _request_single(name: str, split: str, source: Source, config: BuilderConfig, *, own: bool) -> SplitPlan:
    request = _request(split, source, config.size_of(split), config, own=own)
    return SplitPlan(name, split, "single", (request,), None, None)


def _request(
    split: str, source: Source, num_samples: int | None, config: BuilderConfig, *, own: bool
) -> IndexRequest:
    return IndexRequest(
        prefix=source.prefix,
        training_path=config.training_path(source.prefix),
        split_name=split,
        split=whole_split(split) if own else config.shares,
        num_samples=num_samples,
        sequence_length=config.sequence_length,
        seed=config.seed,
        tokenizer=config.tokenizer,
        extra_token=config.extra_token,
        drop_last_partial=config.drop_last_partial,
        packing=config.packing if source.pack == "best-fit" else None,
    )


class _Planner:
    def __init__(
        self, recipe: BlendRecipe, config: BuilderConfig, only: str | None, packing_of: PackingOf | None
    ) -> None:
        self._packing_of = packing_of
        self._recipe = recipe
        self._config = config
        self._only = only
        self._sizes = _DatasetSizes()
        self._warnings: dict[str, None] = {}

    def plan(self) -> BlendPlan:
        recipe = self._recipe
        names = SPLITS if self._only is None else (self._only,)
        for mixture in dict.fromkeys(recipe.for_split(name) for name in names):
            if mixture is not None:
                _refuse_duplicates(mixture.sources)
        if "valid" in names:
            self._check_validation_sets()
        if recipe.mixture is not None:
            matrix = self._config.shares.matrix
            first = next(name for name, share in zip(SPLITS, matrix, strict=True) if share)
            resolved: tuple[BlendWeights | None, ...] = (self._resolve(recipe.mixture, first),)
        else:
            mixtures = ((name, recipe.for_split(name)) for name in SPLITS)
            resolved = tuple(
                self._resolve(mixture, name) if mixture is not None and name in names else None
                for name, mixture in mixtures
            )
        requested = plan_requests(recipe, self._config, resolved)
        splits = tuple(self._plan_split(split) for split in requested if split.split in names)
        for split in splits:
            self._warn(shortfall_of(split, self._config))
        return BlendPlan(recipe, self._config, resolved, splits, tuple(self._warnings))

    def _check_validation_sets(self) -> None:
        mixture = self._recipe.for_split("valid")
        if not self._recipe.multiple_validation_sets or mixture is None:
            return
        if not mixture.is_plain:
            raise UsageError(
                "separate validation sets cannot have caps, epochs, amounts or a temperature",
                hint="remove them, or blend the validation sets",
            )
        if mixture.weights is not None:
            self._warn("weights of separate validation sets have no effect")

    def _resolve(self, mixture: Mixture, name: str) -> BlendWeights:
        config, own = self._config, self._recipe.mixture is None
        epochs: list[EpochPlan] = []
        if not mixture.is_plain:
            requests = (_request(name, source, None, config, own=own) for source in mixture.sources)
            epochs = [self._sizes.plan(request, 0) for request in requests]
        weights = resolve(mixture, config.size_of(name), epochs)
        self._config = replace(config, sizes=replace(config.sizes, **{name: weights.size}))
        return weights

    def _plan_split(self, split: SplitPlan) -> SplitPlan:
        if self._packing_of is not None:
            packed = (replace(request, packing=self._packing_of(request)) for request in split.requests)
            split = replace(split, requests=tuple(packed))
        if len(split.requests) == 1 and split.kind == "weighted":
            self._warn(
                f"{split.name} is a blend of 1 source; remove the weight to read it as a plain dataset"
            )
        epochs = [self._plan_index(request) for request in split.requests]
        counts = [index.samples for index in epochs]
        weights, size, draws = split.weights, split.size, counts
        if split.kind == "weighted":
            draws = self._weighted_draws(split, epochs)
        elif split.kind == "exhaustive":
            weights = tuple(counts)
            BlendOrder(weights, None)
        elif split.kind == "proportional":
            size = min(size or 0, sum(counts))
            weights = tuple(normalize(counts))
            draws = _proportional_draws(split, weights, counts, size)
        split = replace(split, weights=weights, size=size)
        planned = zip(split.requests, split.shares, draws, epochs, strict=True)
        sources = tuple(
            SourcePlan(request.prefix, share, drawn, plan, plan.epochs_of(drawn))
            for request, share, drawn, plan in planned
        )
        return replace(split, sources=sources)

    def _plan_index(self, request: IndexRequest) -> EpochPlan:
        epochs = self._sizes.plan(request, request.num_samples)
        for warning in warnings_of(epochs):
            self._warn(f"{request.prefix}, {request.split_name}: {warning}")
        return epochs

    def _weighted_draws(self, split: SplitPlan, epochs: Sequence[EpochPlan]) -> list[int]:
        draws = _count_draws(BlendOrder(split.weights or (), split.size))
        missing = [drawn - index.samples for drawn, index in zip(draws, epochs, strict=True)]
        if max(missing) > 0:
            sources = zip(split.requests, split.targets or (), draws, epochs, strict=True)
            surplus = max(self._surplus_for(*source) for source in sources)
            worst = missing.index(max(missing))
            raise UsageError(
                f"the {split.name} blend would draw {draws[worst]:,} samples of "
                f"{split.requests[worst].prefix!r}, whose index has {epochs[worst].samples:,}",
                hint=f"pass --surplus {surplus:.6f} "
                f"(the smallest that works; currently {self._config.surplus:g})",
            )
        return draws

    def _surplus_for(self, request: IndexRequest, target: int, draws: int, epochs: EpochPlan) -> float:
        """Return the smallest surplus with which the index of a source has the samples that are drawn."""
        samples = 0
        while epochs.samples < draws:
            samples = epochs.samples_of_epochs(epochs.epochs) + 1  # requires one more epoch
            epochs = self._sizes.plan(request, samples)
        return smallest_surplus(target, samples)

    def _warn(self, message: str | None) -> None:
        if message is not None:
            self._warnings[message] = None


def shortfall_of(split: SplitPlan, config: BuilderConfig) -> str | None:
    """Return a warning if a split has fewer samples than requested, else None."""
    asked = config.size_of(split.split)
    if asked is None or split.samples >= asked:
        return None
    return (
        f"{split.name} has {split.samples:,} of the {asked:,} samples requested: "
        "a blend without weights contains every dataset once"
    )


def _proportional_draws(
    split: SplitPlan, weights: Sequence[float], counts: Sequence[int], size: int
) -> list[int]:
    # The order does not depend on the size, so all draws before the first wrong one are a legal blend.
    order, limits, done = BlendOrder(weights, size), np.array(counts), 0
    for sources, samples in order.blocks():
        beyond = np.flatnonzero(samples >= limits[sources])
        if len(beyond):
            place, most = int(sources[beyond[0]]), done + int(beyond[0])
            raise UsageError(
                f"the {split.name} blend of {size:,} samples would draw {counts[place] + 1:,} samples of "
                f"{split.requests[place].prefix!r}, which has {counts[place]:,} in one epoch",
                hint=f"request at most {most:,} samples, or none for every sample once",
            )
        done += len(sources)
    draws: list[int] = order.draws.tolist()
    return draws


def _count_draws(order: BlendOrder) -> list[int]:
    for _ in order.blocks():
        pass
    draws: list[int] = order.draws.tolist()
    return draws


class _DatasetSizes:
    # Each dataset is opened once and closed again; for packed samples, once per sequence length.
    def __init__(self) -> None:
        self._sizes: dict[tuple[object, ...], dict[str, SplitSize]] = {}

    def plan(self, request: IndexRequest, num_samples: int | None) -> EpochPlan:
        size = self._of(request)
        try:
            return replace(request, num_samples=num_samples).plan(size)
        except (UsageError, InputError) as error:
            raise _named(error, request) from error

    def _of(self, request: IndexRequest) -> SplitSize:
        packing = request.packing and (request.packing, request.sequence_length)
        key = request.prefix, request.split, packing
        if key not in self._sizes:
            table = IndexedDataset(request.prefix).index
            ranges = zip(SPLITS, request.split.ranges(table.sequence_count), strict=True)
            self._sizes[key] = {
                name: replace(request, split_name=name).size(table) for name, part in ranges if part
            }
        return self._sizes[key].get(request.split_name, SplitSize(0, 0))


def _named(error: TokshardError, request: IndexRequest) -> TokshardError:
    return type(error)(f"{request.prefix}, {request.split_name}: {error.message}", hint=error.hint)


def _refuse_duplicates(sources: Iterable[Source]) -> None:
    # Two uses of a dataset would give the same samples.
    seen: dict[str, Source] = {}
    for source in sources:
        key = realpath(idx_path(source.prefix))  # the same for all spellings of a dataset
        if key in seen:
            first = seen[key]
            also = "" if first.prefix == source.prefix else f" (also as {first.prefix!r})"
            same_pack = (first.pack or "concat") == (source.pack or "concat")
            same = "samples in the same order" if same_pack else "file names, whatever their packing is"
            raise UsageError(
                f"{source.prefix!r} is in the mixture twice{also}: both would have the same {same}",
                hint="name it once with the total weight",
            )
        seen[key] = source
