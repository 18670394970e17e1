"""The plan of a blend: every index and every order that Megatron would build for a recipe.

The cases are those of Megatron Core: one prefix without a weight is a plain dataset; weights make a
blend by weights, and need a size; no weights make a blend in proportion to the sources, or all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.codec import Amount, Count, Record, Share
from tokshard.core.formatting import listed
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, UsageError
from tokshard.samples.blend.globs import refuse_duplicates
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.order import BlendOrder, normalize
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source
from tokshard.samples.blend.sources import Kind
from tokshard.samples.blend.weights import BlendWeights, resolve, shares_of, smallest_surplus, with_surplus
from tokshard.samples.index.description import BlendedDescription
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import SplitSize, warnings_of
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.splits import SPLITS, whole_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_EVALUATION_EPOCHS = 2
_SHOWN_SOURCES = 5

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


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One split, or one of several validation sets.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"single"`` (one source and no blend), ``"weighted"``, ``"proportional"`` or
            ``"exhaustive"``.
        requests: The index of each source, in order.
        weights: The weights of the blend as they enter its hash. None for a single source, and for a blend
            without weights whose datasets have not been read.
        size: The size of the blend as it enters its hash. None for a single source or all samples.
        targets: The samples that a weighted blend expects of each source, or None for any other kind.
        sources: The sources with their draws. Empty if the datasets have not been read.
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
        """The requested share of each source in the samples; their sum is 1."""
        return (1.0,) if self.weights is None else shares_of(self.weights, self.size)

    @property
    def epochs_read(self) -> tuple[float, ...]:
        """The epochs of each source in the samples requested; the index of a single dataset can have more."""
        limits = (request.num_samples for request in self.requests)
        return tuple(
            source.plan.epochs_of(source.draws if limit is None else min(source.draws, limit))
            for source, limit in zip(self.sources, limits, strict=True)
        )

    @property
    def planned(self) -> PlannedSplit:
        """The record of the split in reports."""
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
        resolved: The weights passed to Megatron: one entry for all splits, or one for each (None without
            data).
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
    """Plan everything that Megatron would build, and check that it works. Nothing is built.

    The samples drawn from each source are counted exactly, which takes the time of one run of the order
    and memory that does not depend on its length.

    Args:
        recipe: The recipe.
        config: The builder's parameters.
        only: The only split to plan and check, for recipes that Megatron reads unchanged.
        packing_of: Returns the packing of an existing index. If None, the packing is that of the recipe.

    Raises:
        UsageError: The recipe contradicts itself or the sizes, a dataset is named twice, or a blend would
            draw more samples from a source than its index will have.
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
        resolved: The weights passed to Megatron: one entry for all splits, or one for each. None for recipes
            that Megatron reads unchanged.

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
    splits: list[SplitPlan] = []
    for number, name in enumerate(SPLITS):
        mixture = recipe.for_split(name)
        if mixture is None:
            continue
        weights = mixture.weights
        if resolved is not None and (blend_weights := resolved[number % len(resolved)]) is not None:
            weights = blend_weights.weights
        elif not mixture.is_plain:
            raise UsageError("the weights of this recipe depend on its datasets: pass `resolved`")
        if weights is not None and config.size_of(name) is None:
            # Megatron also requires it for splits without a share.
            raise UsageError(
                f"the number of samples is required for a blend with weights ({name})",
                hint="omit the weights for one epoch of every source, or pass --num-samples (in a launch "
                "command: remove --full-validation)",
            )
        if recipe.is_per_split or config.shares.matrix[number]:
            splits += _request_split(recipe, mixture.sources, weights, name, config)
    return tuple(splits)


def _request_split(
    recipe: BlendRecipe,
    sources: Sequence[Source],
    weights: tuple[float, ...] | None,
    split: str,
    config: BuilderConfig,
) -> list[SplitPlan]:
    """Return the plan of a split, or of each of several validation sets."""
    own = recipe.is_per_split
    size = config.size_of(split)
    is_single = len(sources) == 1 and (own or weights is None)
    if is_single or (recipe.multiple_validation_sets and split == "valid"):
        names = [split] if is_single else [f"{split}.{number}" for number in range(len(sources))]
        requests = [_request(split, source, size, config, own=own) for source in sources]
        return [
            SplitPlan(name, split, "single", (request,), None, None)
            for name, request in zip(names, requests, strict=True)
        ]
    if weights is None or size is None:
        requests = [_request(split, source, None, config, own=own) for source in sources]
        kind: Kind = "exhaustive" if size is None else "proportional"
        return [SplitPlan(split, split, kind, tuple(requests), None, size)]
    # The builder normalizes the weights, and the blend normalizes the result: the hash has the last bits.
    shares = normalize(weights)
    targets = tuple(math.ceil(size * share) for share in shares)
    requests = [
        _request(split, source, with_surplus(target, config.surplus), config, own=own)
        for source, target in zip(sources, targets, strict=True)
    ]
    hashed = tuple(normalize(shares))
    return [SplitPlan(split, split, "weighted", tuple(requests), hashed, sum(targets), targets)]


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
        self._sizes: dict[tuple[object, ...], dict[str, SplitSize]] = {}
        self._warnings: dict[str, None] = {}

    def plan(self) -> BlendPlan:
        recipe = self._recipe
        names = SPLITS if self._only is None else (self._only,)
        for mixture in dict.fromkeys(recipe.for_split(name) for name in names):
            if mixture is not None:
                refuse_duplicates((source, source.prefix) for source in mixture.sources)
        if "valid" in names:
            self._check_validation_sets()
        # A shared mixture has the weights of the first split with a share.
        deciding: Sequence[str] = SPLITS
        if not recipe.is_per_split:
            shares = zip(SPLITS, self._config.shares.matrix, strict=True)
            deciding = [next(name for name, share in shares if share)]
        resolved = tuple(
            self._resolve(mixture, name)
            if mixture is not None and (name in names or not recipe.is_per_split)
            else None
            for name, mixture in zip(deciding, recipe.mixtures, strict=True)
        )
        requested = plan_requests(recipe, self._config, resolved)
        splits = tuple(self._plan_split(split) for split in requested if split.split in names)
        for split in splits:
            self._warn(shortfall_of(split, self._config))
            self._warn(repeats_of(split))
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
        config, own = self._config, self._recipe.is_per_split
        epochs: list[EpochPlan] = []
        if not mixture.is_plain:
            requests = (_request(name, source, None, config, own=own) for source in mixture.sources)
            epochs = [self._epochs(request, 0) for request in requests]
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
        epochs = [self._epochs(request, request.num_samples) for request in split.requests]
        for request, index in zip(split.requests, epochs, strict=True):
            for warning in warnings_of(index):
                self._warn(f"{request.prefix}, {request.split_name}: {warning}")
        counts = [index.samples for index in epochs]
        if split.kind == "exhaustive":
            split = replace(split, weights=tuple(counts))
            BlendOrder(counts, None)
        elif split.kind == "proportional":
            size = min(split.size or 0, sum(counts))
            split = replace(split, weights=tuple(normalize(counts)), size=size)
        draws = self._draws(split, epochs) if split.kind in {"weighted", "proportional"} else counts
        sources = zip(split.requests, split.shares, draws, epochs, strict=True)
        planned = tuple(
            SourcePlan(request.prefix, share, drawn, index, index.epochs_of(drawn))
            for request, share, drawn, index in sources
        )
        return replace(split, sources=planned)

    def _epochs(self, request: IndexRequest, num_samples: int | None) -> EpochPlan:
        """Return the numbers of an index. A dataset is opened once; if packed, once per sequence length."""
        packing = request.packing and (request.packing, request.sequence_length)
        key = request.prefix, request.split, packing
        if key not in self._sizes:
            table = IndexedDataset(request.prefix).index
            ranges = zip(SPLITS, request.split.ranges(table.sequence_count), strict=True)
            self._sizes[key] = {
                name: replace(request, split_name=name).size(table) for name, part in ranges if part
            }
        size = self._sizes[key].get(request.split_name, SplitSize(0, 0))
        try:
            return replace(request, num_samples=num_samples).plan(size)
        except (UsageError, InputError) as error:
            message = f"{request.prefix}, {request.split_name}: {error.message}"
            raise type(error)(message, hint=error.hint) from error

    def _draws(self, split: SplitPlan, epochs: Sequence[EpochPlan]) -> list[int]:
        """Count the samples drawn from each source, which must not be more than its index has."""
        order = BlendOrder(split.weights or (), split.size)
        for _ in order.blocks():
            pass
        draws = order.draws
        excess = [drawn - index.samples for drawn, index in zip(draws, epochs, strict=True)]
        if max(excess) <= 0:
            return draws
        if split.targets is None:
            limits = np.array([index.samples for index in epochs])
            most = _legal_size(BlendOrder(split.weights or (), split.size), limits)
            hint = f"request at most {most:,} samples, or none for every sample once"
        else:
            sources = zip(split.requests, split.targets, draws, epochs, strict=True)
            surplus = max(self._surplus_for(*source) for source in sources)
            current = self._config.surplus
            hint = (
                f"pass --surplus {surplus:.6f} (the smallest that works; currently {current:g}), which is "
                "--mid-level-dataset-surplus in a launch command"
            )
        worst = excess.index(max(excess))
        raise UsageError(
            f"the {split.name} blend would draw {draws[worst]:,} samples of "
            f"{split.requests[worst].prefix!r}, whose index has {epochs[worst].samples:,}",
            hint=hint,
        )

    def _surplus_for(self, request: IndexRequest, target: int, draws: int, epochs: EpochPlan) -> float:
        """Return the smallest surplus with which the index of a source has the samples that are drawn."""
        samples = 0
        while epochs.samples < draws:
            samples = epochs.samples_of_epochs(epochs.epochs) + 1  # requires one more epoch
            epochs = self._epochs(request, samples)
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


def repeats_of(split: SplitPlan) -> str | None:
    """Return a warning if validation or test reads a source more than twice, else None."""
    repeats = [
        f"{source.path_prefix} {epochs:.2f} times"
        for source, epochs in zip(split.sources, split.epochs_read, strict=True)
        if epochs > _MOST_EVALUATION_EPOCHS
    ]
    if split.split == "train" or not repeats:
        return None
    return (
        f"{split.name} reads {listed(repeats, _SHOWN_SOURCES)}: its loss counts samples more than once; "
        f"request fewer samples for {split.split}, or add data"
    )


def _legal_size(order: BlendOrder, limits: NDArray[np.int64]) -> int:
    """Return the samples before the first beyond the end of its source: no order depends on its size."""
    size = 0
    for sources, samples in order.blocks():
        overdrawn = np.flatnonzero(samples >= limits[sources])
        if overdrawn.size:
            return size + int(overdrawn[0])
        size += len(sources)
    return size
