"""Weights and sizes of a blend, computed from a recipe as Megatron expects them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.codec import Amount, Count, Record
from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import Mixture
from tokshard.samples.index.epoch_plan import EpochPlan

_MILLION = 1_000_000


def shares_of(weights: Sequence[float], size: int | None) -> tuple[float, ...]:
    """Return the share of each source in the samples of a blend.

    Args:
        weights: The weights in its hash.
        size: The size in its hash, or None if the weights are the samples of the sources.
    """
    total = 1.0 if size is not None else float(sum(weights))
    return tuple(weight / total for weight in weights)


def with_surplus(target: int, surplus: float) -> int:
    """Return the samples requested of an index for the samples that a blend expects of it.

    Example:
        >>> with_surplus(1000, 0.005)
        1005
    """
    return math.ceil(target * (1 + surplus))


def smallest_surplus(target: int, samples: int) -> float:
    """Return the smallest surplus, in millionths, with which a number of samples is requested of an index.

    Example:
        >>> smallest_surplus(1000, 1013), with_surplus(1000, 0.012001)
        (0.012001, 1013)
    """
    # The product of with_surplus must exceed samples - 1. It is rounded, so start where it should be equal.
    millionths = max(0, (samples - 1 - target) * _MILLION // target)
    while with_surplus(target, millionths / _MILLION) < samples:
        millionths += 1
    return millionths / _MILLION


@dataclass(frozen=True, slots=True)
class BlendWeights(Record):
    """The weights and size that are passed to Megatron.

    Attributes:
        weights: Weight of each source, not normalized. Null for a blend without weights.
        size: Samples of the split that determined the weights. Null for all samples.
    """

    weights: tuple[Amount, ...] | None
    size: Count | None


def resolve(mixture: Mixture, size: int | None, sources: Sequence[EpochPlan]) -> BlendWeights:
    """Return the weights and the size with which Megatron draws a mixture.

    Weights, tokens and the temperature determine shares. A source that would be read more often than
    ``max_epochs`` gets the samples of these epochs, and the others share the remaining samples by weight.
    Megatron rounds the samples of each source up, so that a blend may draw a few more.

    Args:
        mixture: The mixture.
        size: The samples requested, or None.
        sources: One epoch of each source, in the first split with a share.

    Raises:
        UsageError: The size is missing, contradicts the recipe, or exceeds the caps.
    """
    if mixture.is_plain:
        return BlendWeights(mixture.weights, size)
    if mixture.epochs is not None:
        return _resolve_epochs(mixture, size, sources)
    tokens = _tempered(mixture, sources)
    weights = tokens
    if mixture.unit == "tokens" or mixture.weights is None:
        weights = [weight * _room_per_token(source) for weight, source in zip(tokens, sources, strict=True)]
    if size is None:
        size = _size_of_tokens(mixture, math.fsum(weights) / math.fsum(tokens), sources)
    caps = [
        None if source.max_epochs is None else samples_of(plan, source.max_epochs)
        for source, plan in zip(mixture.sources, sources, strict=True)
    ]
    parts = share_out(weights, caps, size) if size else weights  # without samples, no cap is reached
    if parts is None or min(parts) <= 0:
        capped = zip(mixture.sources, caps, strict=True)
        limits = ", ".join(f"{source.prefix!r} {cap:,}" for source, cap in capped if cap is not None)
        raise UsageError(
            f"the mixture cannot have {size:,} samples: the caps of its sources are {limits}",
            hint="pass a smaller --num-samples, or raise --max-epochs (max_epochs in a recipe)",
        )
    if any(cap is not None and part >= cap for part, cap in zip(parts, caps, strict=True)):
        weights = [float(part) for part in parts]
    is_single = len(weights) == 1 and mixture.weights is None
    return BlendWeights(None if is_single else tuple(weights), size)


def samples_of(source: EpochPlan, epochs: float) -> int:
    """Return the number of complete samples in a number of epochs, which may have a fraction.

    Example:
        >>> from tokshard.samples.index.epochs import plan_epochs
        >>> plan = plan_epochs(sequences=1, tokens_per_epoch=100, sequence_length=8, num_samples=None)
        >>> samples_of(plan, 1.5)
        18
    """
    if source.packed is not None:
        return math.floor(epochs * source.packed.samples)
    # As an integer, a large product is exact.
    multiple = int(epochs) if epochs == int(epochs) else epochs
    tokens = math.floor(multiple * source.tokens_per_epoch)
    return max(0, (tokens - source.extra_token) // source.sequence_length)


def share_out(weights: Sequence[float], caps: Sequence[int | None], size: int) -> list[float] | None:
    """Divide samples by weight; samples beyond a cap go to the other sources by weight.

    Returns:
        The samples of each source, which may have fractions, or None if the caps hold fewer than ``size``.

    Example:
        >>> share_out([0.5, 0.3, 0.2], [100, None, None], 1000)
        [100, 540.0, 360.0]
    """
    fixed: dict[int, int] = {}
    while True:
        remaining = size - sum(fixed.values())
        open_weight = math.fsum(weight for source, weight in enumerate(weights) if source not in fixed)
        if len(fixed) == len(weights) or remaining < 0:
            return [fixed[source] for source in range(len(weights))] if remaining == 0 else None
        parts = [
            fixed.get(source, remaining * (weight / open_weight)) for source, weight in enumerate(weights)
        ]
        beyond = {
            source: cap
            for source, (part, cap) in enumerate(zip(parts, caps, strict=True))
            if cap is not None and part > cap
        }
        if not beyond:
            return parts
        fixed |= beyond


def _room_per_token(source: EpochPlan) -> float:
    """Return the tokens that fit into the samples of an epoch by its tokens: above 1 with padding."""
    if source.packed is None:
        return 1.0
    return source.packed.samples * source.sequence_length / source.tokens_per_epoch


def _resolve_epochs(mixture: Mixture, size: int | None, sources: Sequence[EpochPlan]) -> BlendWeights:
    samples = []
    for source, plan in zip(mixture.sources, sources, strict=True):
        samples.append(samples_of(plan, source.epochs or 0))
        if not samples[-1]:
            raise UsageError(f"{source.epochs:g} epochs of {source.prefix!r} are less than 1 sample")
    if size not in {None, sum(samples)}:
        raise UsageError(
            f"the number of samples must be {sum(samples):,}, by the epochs of the recipe, got {size:,}",
            hint="omit the number of samples",
        )
    return BlendWeights(None if len(samples) == 1 else tuple(map(float, samples)), sum(samples))


def _tempered(mixture: Mixture, sources: Sequence[EpochPlan]) -> list[float]:
    """Return the weights, or tokens of sources without weights, to the power 1/temperature."""
    base: Sequence[float] = mixture.weights or [source.tokens_per_epoch for source in sources]
    if mixture.temperature == 1.0:
        return [float(weight) for weight in base]
    largest = max(base)
    weights = [(weight / largest) ** (1.0 / mixture.temperature) for weight in base]
    if not min(weights) > 0:
        raise UsageError(
            f"with temperature {mixture.temperature:g}, the weight of "
            f"{mixture.sources[weights.index(0)].prefix!r} is 0",
            hint="use a higher temperature, or remove the source",
        )
    return weights


def _size_of_tokens(mixture: Mixture, padding: float, sources: Sequence[EpochPlan]) -> int:
    """Return the samples of all tokens; ``padding`` is exactly 1 without packed samples."""
    if mixture.unit != "tokens":
        raise UsageError(
            "the number of samples is required for a mixture with weights, caps or a temperature",
            hint="pass --num-samples",
        )
    room = math.ceil(math.fsum(mixture.weights or ()) * padding)
    return -(-room // sources[0].sequence_length)
