"""Weights and sizes of a blend, as Megatron computes them, and those that a recipe comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokshard.core.codec import Amount, Count, Record
from tokshard.errors import UsageError
from tokshard.samples.blend.order import BlendOrder, normalize
from tokshard.samples.blend.recipe import Mixture
from tokshard.samples.index.sizes import MAX_SURPLUS

_MILLION = 1_000_000
_MAX_ROUNDS = 50


def shares_of(weights: Sequence[float], size: int | None) -> tuple[float, ...]:
    """Return the share of the samples that is asked of each source of a blend.

    Args:
        weights: The weights in its hash.
        size: The size in its hash; None where the weights are the samples of the sources.
    """
    total = 1.0 if size is not None else float(sum(weights))
    return tuple(weight / total for weight in weights)


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """The samples of each source, in order.

    Attributes:
        targets: The samples that the blend counts on; their sum is the size of the blend.
        built: The samples asked of the source's index: the target and the surplus.
    """

    targets: tuple[int, ...]
    built: tuple[int, ...]


def source_sizes(weights: Sequence[float], size: int, surplus: float) -> SourceSizes:
    """Return the sizes of the sources of a blend.

    Args:
        weights: The normalized weights.
        size: The samples asked for.
        surplus: The samples built beyond those that the weights ask for, as a fraction of them.

    Example:
        >>> source_sizes([0.7, 0.3], 101, 0.005)
        SourceSizes(targets=(71, 31), built=(72, 32))
    """
    targets = tuple(math.ceil(size * weight) for weight in weights)
    return SourceSizes(targets, tuple(with_surplus(target, surplus) for target in targets))


def with_surplus(target: int, surplus: float) -> int:
    """Return the samples to build for a target.

    Example:
        >>> with_surplus(1000, 0.005)
        1005
    """
    return math.ceil(target * (1 + surplus))


def smallest_surplus(fits: Callable[[float], bool]) -> float | None:
    """Return the smallest surplus that fits, in millionths; None if none up to a million does.

    Args:
        fits: Whether a surplus is large enough. If one is, all larger ones are.

    Example:
        >>> smallest_surplus(lambda surplus: with_surplus(1000, surplus) >= 1013)
        0.012001
    """
    high = 1
    while not fits(high / _MILLION):
        high *= 2
        if high > MAX_SURPLUS * _MILLION:
            return None
    low = -1 if high == 1 else high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle / _MILLION) else (middle, high)
    return high / _MILLION


@dataclass(frozen=True, slots=True)
class SourceTokens:
    """The tokens of a source in the split that decides.

    Attributes:
        tokens: The tokens of one epoch.
        sequence_length: The tokens of a sample.
        extra_token: 1 where each sample reads one token more, else 0.
        packed_samples: The samples of one epoch of packed documents; None for concatenated documents.
    """

    tokens: int
    sequence_length: int
    extra_token: int
    packed_samples: int | None = None

    @property
    def room_per_token(self) -> float:
        """The room of the samples of an epoch by its tokens: above 1 if packed samples are padded.

        Example:
            >>> SourceTokens(tokens=60, sequence_length=8, extra_token=1, packed_samples=9).room_per_token
            1.2
        """
        if self.packed_samples is None:
            return 1.0
        return self.packed_samples * self.sequence_length / self.tokens

    def samples_of(self, epochs: float) -> int:
        """Return the whole samples of a number of epochs, which need not be whole.

        Example:
            >>> SourceTokens(tokens=100, sequence_length=8, extra_token=1).samples_of(1.5)
            18
        """
        if self.packed_samples is not None:
            return math.floor(epochs * self.packed_samples)
        whole = int(epochs)
        tokens = whole * self.tokens if whole == epochs else math.floor(epochs * self.tokens)
        return max(0, (tokens - self.extra_token) // self.sequence_length)


@dataclass(frozen=True, slots=True)
class BlendWeights(Record):
    """The weights and size that are passed to Megatron.

    Attributes:
        weights: Weight of each source, not normalized. Null for a blend without weights.
        size: Samples of the split that determined the weights. Null for all samples.
    """

    weights: tuple[Amount, ...] | None
    size: Count | None


def resolve(mixture: Mixture, size: int | None, sources: Sequence[SourceTokens]) -> BlendWeights:
    """Return the weights and the size that make a mixture what it is asked to be.

    Weights, tokens and the temperature give shares. A source that would be read more often than
    ``max_epochs`` gets what its epochs hold, and the others share the rest by their weights. Because
    Megatron's order may draw a sample more of a source than its share, the draws are counted, and what
    is above a cap is taken off again. ``epochs`` are shares and caps in one.

    Args:
        mixture: What is wanted.
        size: The samples asked for, or None.
        sources: The tokens of each source in the split that decides (training, where it has a share).

    Raises:
        UsageError: The size is missing, or contradicts the recipe, or the caps do not allow it.
    """
    if mixture.is_plain:
        return BlendWeights(mixture.weights, size)
    caps: list[int | None]
    if mixture.epochs is not None:
        caps = [source.samples_of(epochs) for source, epochs in zip(sources, mixture.epochs, strict=True)]
        wanted, size = [float(cap or 0) for cap in caps], _size_of_epochs(mixture, caps, size)
    else:
        tokens = _wanted(mixture, sources)
        wanted = tokens
        if mixture.unit == "tokens" or mixture.weights is None:
            wanted = [each * source.room_per_token for each, source in zip(tokens, sources, strict=True)]
        size = _size_of_weights(mixture, tokens, wanted, sources, size)
        caps = [
            None if wanted_source.max_epochs is None else source.samples_of(wanted_source.max_epochs)
            for wanted_source, source in zip(mixture.sources, sources, strict=True)
        ]
    if len(wanted) == 1 and mixture.weights is None:
        return BlendWeights(None, size)
    return _capped(mixture, wanted, caps, size)


def share_out(wanted: Sequence[float], caps: Sequence[int | None], size: int) -> list[float] | None:
    """Divide samples by weight, none above its cap; what a cap leaves goes to the others by weight.

    Returns:
        The samples of each source, which need not be whole; None if the caps hold fewer than ``size``.

    Example:
        >>> share_out([0.5, 0.3, 0.2], [100, None, None], 1000)
        [100, 540.0, 360.0]
    """
    full: set[int] = set()
    while True:
        rest = size - sum(caps[place] or 0 for place in full)
        open_weight = math.fsum(weight for place, weight in enumerate(wanted) if place not in full)
        if len(full) == len(wanted) or rest < 0:
            return [cap or 0 for cap in caps] if rest == 0 else None
        parts = [
            (caps[place] or 0) if place in full else rest * (weight / open_weight)
            for place, weight in enumerate(wanted)
        ]
        over = {
            place
            for place, (part, cap) in enumerate(zip(parts, caps, strict=True))
            if place not in full and cap is not None and part > cap
        }
        if not over:
            return parts
        full |= over


def _size_of_epochs(mixture: Mixture, caps: Sequence[int | None], size: int | None) -> int:
    made = sum(cap or 0 for cap in caps)
    for source, cap in zip(mixture.sources, caps, strict=True):
        if not cap:
            raise UsageError(f"{source.epochs:g} epochs of {source.prefix!r} are less than 1 sample")
    if size not in {None, made}:
        raise UsageError(
            f"the number of samples must be {made:,}, by the epochs of the recipe, got {size:,}",
            hint="omit the number of samples",
        )
    return made


def _wanted(mixture: Mixture, sources: Sequence[SourceTokens]) -> list[float]:
    base: Sequence[float] = mixture.weights or [source.tokens for source in sources]
    if mixture.temperature == 1.0:
        return [float(weight) for weight in base]
    largest = max(base)
    wanted = [(weight / largest) ** (1.0 / mixture.temperature) for weight in base]
    if not min(wanted) > 0:
        nothing = mixture.sources[wanted.index(0)].prefix
        raise UsageError(
            f"with temperature {mixture.temperature:g}, the weight of {nothing!r} is 0",
            hint="use a higher temperature, or remove the source",
        )
    return wanted


def _size_of_weights(
    mixture: Mixture,
    tokens: Sequence[float],
    wanted: Sequence[float],
    sources: Sequence[SourceTokens],
    size: int | None,
) -> int:
    if size is not None:
        return size
    if mixture.unit == "tokens":
        padded = math.fsum(wanted) / math.fsum(tokens)  # exactly 1 without packed samples
        room = math.ceil(math.fsum(mixture.weights or tokens) * padded)
        return -(-room // sources[0].sequence_length)
    raise UsageError(
        "the number of samples is required for a mixture with weights, caps or a temperature",
        hint="pass --num-samples",
    )


def _capped(mixture: Mixture, wanted: Sequence[float], caps: Sequence[int | None], size: int) -> BlendWeights:
    # Caps are lowered until the draws keep to those that were asked for.
    lowered = list(caps)
    for _ in range(_MAX_ROUNDS):
        if mixture.epochs is not None:
            size = sum(cap or 0 for cap in lowered)
        parts = share_out(wanted, lowered, size)
        if parts is None or min(parts) <= 0:
            break
        free = all(cap is None or part < cap for part, cap in zip(parts, lowered, strict=True))
        weights = tuple(wanted) if free else tuple(float(part) for part in parts)
        excess = _excess(weights, caps, size)
        if not any(excess):
            return BlendWeights(weights, size)
        lowered = [
            cap if cap is None or not over else cap - over for cap, over in zip(lowered, excess, strict=True)
        ]
    most = ", ".join(
        f"{source.prefix!r} {cap:,}"
        for source, cap in zip(mixture.sources, caps, strict=True)
        if cap is not None
    )
    raise UsageError(
        f"the mixture cannot have {size:,} samples: the caps of its sources are {most}",
        hint="pass a smaller --num-samples, or raise --max-epochs (max_epochs in a recipe)",
    )


def _excess(weights: Sequence[float], caps: Sequence[int | None], size: int) -> list[int]:
    # How many draws Megatron's order would make beyond each cap.
    if all(cap is None for cap in caps):
        return [0] * len(caps)
    shares = normalize(weights)
    total = sum(source_sizes(shares, size, 0.0).targets)
    order = BlendOrder(normalize(shares), total)
    for _ in order.blocks():
        pass
    draws = order.draws.tolist()
    return [0 if cap is None else max(0, drawn - cap) for drawn, cap in zip(draws, caps, strict=True)]
