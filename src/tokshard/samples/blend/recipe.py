"""Recipes: the sources of a blend with weights, tokens or epochs, for all splits or for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from tokshard.core.codec import Bounds, Record
from tokshard.errors import UsageError
from tokshard.samples.index.packing import PackMethod
from tokshard.samples.index.sizes import MAX_EPOCHS
from tokshard.samples.index.splits import SPLITS

Unit = Literal["samples", "tokens"]

Epochs = Annotated[float, Bounds(0, MAX_EPOCHS)]

MAX_SOURCES = 32_766
"""Megatron numbers the sources of a blend with int16 and refuses 32,767 of them without a message."""


@dataclass(frozen=True, slots=True)
class Source(Record):
    """A source of a mixture: one dataset with its weight.

    Raises:
        UsageError: A number is out of range, two of them contradict each other, or the prefix is one
            that Megatron would take for a number or not find.

    Attributes:
        prefix: Path prefix of the dataset on this machine.
        weight: Weight of the source in the unit of the mixture. Absent for a source without a weight.
        epochs: Epochs to read, instead of a weight. Absent if they are not set.
        max_epochs: Limit on the epochs. Samples beyond it go to the other sources. Absent without a limit.
        pack: Packing of its samples. Absent for the default of the run; in a resolved recipe, for ``concat``.
    """

    prefix: str
    weight: float | None = None
    epochs: Epochs | None = None
    max_epochs: Epochs | None = None
    pack: str | None = None

    def __post_init__(self) -> None:
        self._check_numbers()  # before the codec, whose messages do not name the source
        Record.__post_init__(self)

    def _validate(self) -> None:
        check_prefix(self.prefix)
        if self.pack not in {None, *get_args(PackMethod)}:
            methods = " or ".join(get_args(PackMethod))
            raise UsageError(f"pack of the source {self.prefix!r} must be {methods}, got {self.pack!r}")
        self._check_numbers()
        if self.epochs is not None and (self.weight is not None or self.max_epochs is not None):
            raise UsageError(
                f"the source {self.prefix!r} has epochs and a {'weight' if self.weight else 'max_epochs'}",
                hint="keep one of them",
            )

    def _check_numbers(self) -> None:
        for name in ("weight", "epochs", "max_epochs"):
            value = getattr(self, name)
            if not isinstance(value, int | float):
                continue
            if not 0 < value < math.inf:
                what = name.replace("_", " ")
                raise UsageError(
                    f"the {what} of the source {self.prefix!r} must be positive, got {value:g}",
                    hint="remove the source to skip it" if value == 0 else "use a positive number",
                )
            object.__setattr__(self, name, float(value))  # an int would be another text in blend.json


@dataclass(frozen=True, slots=True)
class Mixture(Record):
    """A mixture: the sources of one distribution of samples.

    Raises:
        UsageError: There is no source or too many, or the sources do not fit together.

    Attributes:
        sources: Sources, at most 32,766. Ties go to the first.
        unit: Unit of the weights. ``samples``, as in Megatron, means shares of the samples, which are also
            the shares of the tokens if packing pads no samples. ``tokens`` means amounts without padding, and
            their sum is the size of the mixture unless another size is set.
        temperature: The weights are raised to the power 1/temperature. Without weights, a temperature other
            than 1 applies to the number of tokens of each source.

    Example:
        >>> sources = (Source("web", weight=7), Source("code", weight=3, max_epochs=4))
        >>> Mixture(sources, "samples", temperature=1).weights
        (7.0, 3.0)
    """

    sources: tuple[Source, ...]
    unit: Unit
    temperature: float

    def _validate(self) -> None:
        if not self.sources:
            raise UsageError(
                "a mixture must have at least 1 source", hint="pass the path prefix of a dataset"
            )
        if len(self.sources) > MAX_SOURCES:
            raise UsageError(
                f"a mixture must have at most {MAX_SOURCES} sources (Megatron numbers them with int16), "
                f"got {len(self.sources)}",
                hint="merge some of them with tokshard merge",
            )
        if self.temperature <= 0:
            raise UsageError(f"temperature must be a positive number, got {self.temperature:g}")
        self._check_all_or_none("weight", "a weight")
        self._check_all_or_none("epochs", "epochs")
        if self.epochs is not None and self.temperature != 1.0:
            raise UsageError("temperature cannot be used with epochs")
        if self.unit == "tokens" and self.weights is None:
            raise UsageError("unit tokens requires weights", hint="add a weight to each source")
        if self.weights is not None and not math.isfinite(sum(self.weights)):
            raise UsageError("the sum of the weights is out of range")

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights as given, or None without weights."""
        return tuple(source.weight for source in self.sources if source.weight is not None) or None

    @property
    def epochs(self) -> tuple[float, ...] | None:
        """The epochs as given, or None without epochs."""
        return tuple(source.epochs for source in self.sources if source.epochs is not None) or None

    @property
    def is_plain(self) -> bool:
        """True if Megatron reads these prefixes and weights unchanged: no weight has to be computed."""
        capped = any(source.max_epochs is not None for source in self.sources)
        return self.unit == "samples" and self.temperature == 1.0 and not capped and self.epochs is None

    def _check_all_or_none(self, name: str, words: str) -> None:
        without = [source.prefix for source in self.sources if getattr(source, name) is None]
        if without and len(without) < len(self.sources):
            given = next(source.prefix for source in self.sources if source.prefix not in without)
            raise UsageError(
                f"{given!r} has {words}, but {without[0]!r} does not",
                hint="pass weights for all sources of a mixture, or epochs for all, or neither",
            )


@dataclass(frozen=True, slots=True)
class BlendRecipe(Record):
    """The recipe of a blend: one mixture for all splits, or one for each split.

    Raises:
        UsageError: There are neither 1 nor 3 mixtures, or none of them has a source.

    Attributes:
        mixtures: One mixture for all splits, among which each dataset is divided by the split string; or the
            mixtures of train, valid and test, null for a split without data.
        multiple_validation_sets: Whether each validation source is a split of its own.

    Example:
        >>> mixture = Mixture((Source("data/web", 0.7), Source("data/code", 0.3)), "samples", temperature=1)
        >>> recipe = BlendRecipe((mixture,), multiple_validation_sets=False)
        >>> [source.prefix for source in recipe.for_split("train").sources]
        ['data/web', 'data/code']
    """

    mixtures: tuple[Mixture | None, ...]
    multiple_validation_sets: bool

    def _validate(self) -> None:
        if len(self.mixtures) not in {1, len(SPLITS)}:
            raise UsageError("a recipe must have either sources for all splits or sources for each split")
        if not any(self.mixtures):
            raise UsageError(
                "at least one split must have a source", hint="pass the path prefix of a dataset"
            )
        if self.multiple_validation_sets and not self.is_per_split:
            raise UsageError(
                "separate validation sets require sources for each split",
                hint="pass --train and --valid: Megatron separates validation sets only with data per split",
            )

    @property
    def is_per_split(self) -> bool:
        """True if each split has a mixture of its own."""
        return len(self.mixtures) > 1

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all mixtures, in order."""
        return tuple(source for mixture in self.mixtures if mixture for source in mixture.sources)

    def for_split(self, name: str) -> Mixture | None:
        """Return the mixture that a split is drawn from, or None without data."""
        return self.mixtures[SPLITS.index(name) if self.is_per_split else 0]

    def map(self, function: Callable[[Mixture], Mixture]) -> BlendRecipe:
        """Return the recipe with a function applied to each mixture."""
        return replace(self, mixtures=tuple(mixture and function(mixture) for mixture in self.mixtures))


def reads_as_number(word: str) -> bool:
    """Tell whether Megatron takes a word of a data path for a weight: all that Python's float reads.

    Example:
        >>> [reads_as_number(word) for word in ("0.3", "1e5", "nan", "1_000", "./1", "data/web")]
        [True, True, True, True, False, False]
    """
    try:
        float(word)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> None:
    """Check that Megatron would read a path prefix unchanged from every form of a recipe.

    Raises:
        UsageError: The prefix is empty, has leading or trailing spaces or a NUL, or reads as a number.
    """
    if not prefix.strip():
        raise UsageError("the path prefix of a source must not be empty")
    if prefix != prefix.strip() or "\0" in prefix:
        raise UsageError(f"invalid path prefix {prefix!r}: it has leading or trailing spaces or a NUL")
    if prefix.endswith("%") and reads_as_number(prefix[:-1]):
        raise UsageError(
            f"a weight must be a plain number, got {prefix!r}",
            hint=f"pass {prefix[:-1]} (weights are relative), or ./{prefix} for a dataset of that name",
        )
    if reads_as_number(prefix):
        raise UsageError(
            f"Megatron would read the path prefix {prefix!r} as a weight",
            hint=f"pass ./{prefix}",
        )
