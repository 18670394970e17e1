"""From what a mixture is asked to be to what Megatron understands: weights and a number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.blending.greedy import greedy_order, normalize
from tokshard.blending.order import count_draws
from tokshard.blending.recipe import Mixture
from tokshard.blending.sizes import source_sizes
from tokshard.errors import UsageError

_TRIES = 50


@dataclass(frozen=True, slots=True)
class SourceSupply:
    """What a source has in the split that decides.

    Attributes:
        tokens: The tokens of one epoch.
        sequence_length: The tokens of a sample.
        extra_token: 1 where each sample reads one token more, else 0.
    """

    tokens: int
    sequence_length: int
    extra_token: int

    def samples_of(self, epochs: float) -> int:
        """Return the whole samples of a number of epochs, which need not be whole.

        Example:
            >>> SourceSupply(tokens=100, sequence_length=8, extra_token=1).samples_of(1.5)
            18
        """
        tokens = epochs * self.tokens if isinstance(epochs, int) else math.floor(epochs * self.tokens)
        return max(0, (tokens - self.extra_token) // self.sequence_length)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What Megatron is told.

    Attributes:
        weights: Of each source, not normalised; None for none.
        size: The samples of the split that decided; None for all that there are.
    """

    weights: tuple[float, ...] | None
    size: int | None


def resolve(mixture: Mixture, size: int | None, supplies: Sequence[SourceSupply], *, old: bool) -> Resolved:
    """Return the weights and the size that make a mixture what it is asked to be.

    Weights, tokens and the temperature give shares. A source that would be read more often than
    ``max_epochs`` gets what its epochs hold, and the others share the rest by their weights. Because
    Megatron's order may draw a sample more of a source than its share, the draws are counted, and what
    is above a cap is taken off again. ``epochs`` are shares and caps in one.

    Args:
        mixture: What is wanted.
        size: The samples asked for, or None.
        supplies: What each source has, in the split that decides (training, where there is it).
        old: Whether sizes are those of Megatron Core up to 0.12.

    Raises:
        UsageError: The size is missing, or contradicts the recipe, or the caps do not allow it.
    """
    if mixture.is_plain:
        _check_size(mixture, size)
        return Resolved(mixture.weights, size)
    caps: list[int | None]
    if mixture.epochs is not None:
        caps = [supply.samples_of(epochs) for supply, epochs in zip(supplies, mixture.epochs, strict=True)]
        wanted, size = [float(cap or 0) for cap in caps], _size_of_epochs(mixture, caps, size)
    else:
        wanted = _wanted(mixture, supplies)
        size = _size_of_weights(mixture, wanted, supplies, size)
        caps = [
            None if source.max_epochs is None else supply.samples_of(source.max_epochs)
            for source, supply in zip(mixture.sources, supplies, strict=True)
        ]
    if len(wanted) == 1 and mixture.weights is None:
        return Resolved(None, size)
    return _capped(mixture, wanted, caps, size, old=old)


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


def _check_size(mixture: Mixture, size: int | None) -> None:
    if mixture.weights is not None and size is None:
        raise UsageError(
            "a blend by weights needs a number of samples",
            hint="give --num-samples; or leave out the weights, for one epoch of every source",
        )


def _size_of_epochs(mixture: Mixture, caps: Sequence[int | None], size: int | None) -> int:
    made = sum(cap or 0 for cap in caps)
    for source, cap in zip(mixture.sources, caps, strict=True):
        if not cap:
            raise UsageError(f"{source.epochs:g} epochs of {source.prefix!r} do not fill one sample")
    if size not in {None, made}:
        raise UsageError(
            f"{size} samples are asked for, but the epochs of the recipe make {made}",
            hint="leave out the number of samples: it follows from the epochs",
        )
    return made


def _wanted(mixture: Mixture, supplies: Sequence[SourceSupply]) -> list[float]:
    base: Sequence[float] = mixture.weights or [supply.tokens for supply in supplies]
    if mixture.temperature == 1.0:
        return [float(weight) for weight in base]
    largest = max(base)
    wanted = [(weight / largest) ** (1.0 / mixture.temperature) for weight in base]
    if not min(wanted) > 0:
        nothing = mixture.sources[wanted.index(0)].prefix
        raise UsageError(
            f"the temperature {mixture.temperature:g} leaves nothing of {nothing!r}",
            hint="use a higher temperature, or leave the source out",
        )
    return wanted


def _size_of_weights(
    mixture: Mixture, wanted: Sequence[float], supplies: Sequence[SourceSupply], size: int | None
) -> int:
    if size is not None:
        return size
    if mixture.unit == "tokens":
        tokens = math.ceil(math.fsum(mixture.weights or wanted))
        return -(-tokens // supplies[0].sequence_length)
    raise UsageError(
        "a mixture with weights, caps or a temperature needs a number of samples", hint="give --num-samples"
    )


def _capped(
    mixture: Mixture, wanted: Sequence[float], caps: Sequence[int | None], size: int, *, old: bool
) -> Resolved:
    """Share out the samples, and lower the caps until the draws keep to those that were asked for."""
    lowered = list(caps)
    for _ in range(_TRIES):
        if mixture.epochs is not None:
            size = sum(cap or 0 for cap in lowered)
        parts = share_out(wanted, lowered, size)
        if parts is None or min(parts) <= 0:
            break
        free = all(cap is None or part < cap for part, cap in zip(parts, lowered, strict=True))
        weights = tuple(wanted) if free else tuple(float(part) for part in parts)
        excess = _excess(weights, caps, size, old=old)
        if not any(excess):
            return Resolved(weights, size)
        lowered = [
            cap if cap is None or not over else cap - over for cap, over in zip(lowered, excess, strict=True)
        ]
    most = ", ".join(
        f"{source.prefix!r} {cap}"
        for source, cap in zip(mixture.sources, caps, strict=True)
        if cap is not None
    )
    raise UsageError(
        f"the mixture cannot have {size} samples: its caps are {most} samples",
        hint="ask for fewer samples, or raise max_epochs",
    )


def _excess(weights: Sequence[float], caps: Sequence[int | None], size: int, *, old: bool) -> list[int]:
    """Return by how many draws Megatron's order would exceed each cap."""
    if all(cap is None for cap in caps):
        return [0] * len(caps)
    shares = normalize(weights)
    total = sum(source_sizes(shares, size, 0.0, old=old).targets)
    draws = count_draws(greedy_order(normalize(shares), total), total).tolist()
    return [0 if cap is None else max(0, drawn - cap) for drawn, cap in zip(draws, caps, strict=True)]
