"""Which indexes and blends a recipe comes to: Megatron's cases, before any dataset is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.blending.config import BuilderConfig
from tokshard.blending.greedy import normalize
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.blending.resolution import Resolved
from tokshard.blending.sizes import source_sizes
from tokshard.errors import UsageError
from tokshard.gpt_index.splits import SPLITS, whole_split
from tokshard.index_cache.description import BlendedDescription
from tokshard.index_cache.request import IndexRequest


@dataclass(frozen=True, slots=True)
class SplitOutline:
    """One split, or one of several validation sets.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"single"`` (one source and no blend), ``"weighted"``, ``"proportional"`` or
            ``"exhaustive"``.
        requests: The index of each source, in order.
        shares: The weights of a weighted blend as they enter its hash; None otherwise.
        targets: How many samples a weighted blend counts on from each source; None otherwise.
        size: The samples asked for; of a weighted blend the sum of the targets, which enters its hash.
    """

    name: str
    split: str
    kind: str
    requests: tuple[IndexRequest, ...]
    shares: tuple[float, ...] | None
    targets: tuple[int, ...] | None
    size: int | None

    def description(self) -> BlendedDescription | None:
        """Return what the name of a weighted blend's files depends on.

        None for a single source, and for blends without weights, whose name depends on the data.
        """
        if self.shares is None:
            return None
        return BlendedDescription(
            tuple(one.description() for one in self.requests), self.split, self.shares, self.size
        )


def outline_blend(
    recipe: BlendRecipe, config: BuilderConfig, resolved: Sequence[Resolved | None] | None = None
) -> tuple[SplitOutline, ...]:
    """Return what Megatron would build for a recipe. No dataset is opened and nothing is checked.

    Args:
        recipe: The recipe.
        config: The builder's parameters.
        resolved: What Megatron is told: one entry for all splits, or one for each. None for recipes that
            Megatron understands as they are.

    Raises:
        UsageError: There are weights and no number of samples, or the recipe has caps, epochs, amounts or
            a temperature, and ``resolved`` is not given.

    Example:
        >>> from tokshard.blending.forms import parse_words
        >>> from tokshard.gpt_index.sizes import Sizes
        >>> config = BuilderConfig(sequence_length=64, sizes=Sizes(100, 0, 0), tokenizer={})
        >>> for one in outline_blend(parse_words(["0.7", "data/web", "0.3", "data/code"]), config):
        ...     print(one.name, one.kind, one.size, [request.num_samples for request in one.requests])
        train weighted 100 [71, 31]
        valid weighted 0 [0, 0]
        test weighted 0 [0, 0]
    """
    if recipe.mixture is not None:
        weights = _weights(recipe.mixture, resolved[0] if resolved else None)
        for name in SPLITS:
            # Megatron asks this of splits without a share, too.
            _check_size(name, weights, config.size_of(name))
        shares = zip(SPLITS, config.split.matrix, strict=True)
        return tuple(_outline(recipe.mixture, weights, name, config) for name, share in shares if share)
    found: list[SplitOutline] = []
    for place, name in enumerate(SPLITS):
        mixture = recipe.for_split(name)
        if mixture is None:
            continue
        weights = _weights(mixture, resolved[place] if resolved else None)
        _check_size(name, weights, config.size_of(name))
        if len(mixture.sources) == 1:
            found.append(_single(name, name, mixture.sources[0], config, own=True))
        elif recipe.multiple_validation_sets and name == "valid":
            sets = enumerate(mixture.sources)
            found += [_single(f"valid.{place}", name, one, config, own=True) for place, one in sets]
        else:
            found.append(_outline(mixture, weights, name, config, own=True))
    return tuple(found)


def index_request(
    split: str, source: Source, num_samples: int | None, config: BuilderConfig, *, own: bool
) -> IndexRequest:
    """Return the index of one source for one split.

    Args:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        source: The source.
        num_samples: The samples asked for.
        config: The builder's parameters.
        own: Whether the split has sources of its own, all of which is for it.
    """
    return IndexRequest(
        prefix=source.prefix,
        training_path=config.training_path(source.prefix),
        split_name=split,
        split=whole_split(split) if own else config.split,
        num_samples=num_samples,
        sequence_length=config.sequence_length,
        seed=config.seed if source.seed is None else source.seed,
        tokenizer=config.tokenizer,
        extra_token=config.extra_token,
        drop_last_partial=config.drop_last_partial,
    )


def _weights(mixture: Mixture, resolved: Resolved | None) -> tuple[float, ...] | None:
    if resolved is not None:
        return resolved.weights
    if not mixture.is_plain:
        raise UsageError("the weights of this recipe are only known when its datasets have been looked at")
    return mixture.weights


def _check_size(split: str, weights: tuple[float, ...] | None, size: int | None) -> None:
    if weights is not None and size is None:
        raise UsageError(
            f"the {split} blend has weights, but no number of samples",
            hint="give --num-samples; or leave out the weights, for one epoch of every source",
        )


def _outline(
    mixture: Mixture,
    weights: tuple[float, ...] | None,
    split: str,
    config: BuilderConfig,
    *,
    own: bool = False,
) -> SplitOutline:
    size = config.size_of(split)
    if weights is not None and size is not None:
        return _weighted(mixture, weights, split, size, config, own=own)
    if len(mixture.sources) == 1:
        return _single(split, split, mixture.sources[0], config, own=own)
    requests = tuple(index_request(split, source, None, config, own=own) for source in mixture.sources)
    kind = "exhaustive" if size is None else "proportional"
    return SplitOutline(split, split, kind, requests, None, None, size)


def _single(name: str, split: str, source: Source, config: BuilderConfig, *, own: bool) -> SplitOutline:
    size = config.size_of(split)
    request = index_request(split, source, size, config, own=own)
    return SplitOutline(name, split, "single", (request,), None, None, size)


def _weighted(
    mixture: Mixture, weights: tuple[float, ...], split: str, size: int, config: BuilderConfig, *, own: bool
) -> SplitOutline:
    # The builder normalises, and the blend normalises what it gets: the last bits of both are in the hash.
    once = normalize(weights)
    sizes = source_sizes(once, size, config.surplus, old=config.old_sizes)
    requests = tuple(
        index_request(split, source, built, config, own=own)
        for source, built in zip(mixture.sources, sizes.built, strict=True)
    )
    shares = tuple(normalize(once))
    return SplitOutline(split, split, "weighted", requests, shares, sizes.targets, sum(sizes.targets))
