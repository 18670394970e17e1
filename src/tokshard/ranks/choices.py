"""Values of the options of plans: modes, tails and shuffles. The command line reads them without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, get_args

from tokshard.core.codec import Positive, Record
from tokshard.errors import UsageError

TrainingMode = Literal["single", "cyclic", "contiguous", "sequential", "chunked"]
"""Modes of training, see :mod:`tokshard.ranks.modes`."""

Mode = Literal[TrainingMode, "full-validation"]
Tail = Literal["drop", "pad"]
ShuffleName = Literal["none", "samples", "datasets", "windows"]


@dataclass(frozen=True, slots=True)
class Shuffling(Record):
    """The value of ``--shuffle``: ``none``, ``samples``, ``datasets`` or ``windows[:BLOCK:WINDOW]``.

    Attributes:
        name: ``samples``: all samples in random order. ``datasets``: datasets in random order, and their
            samples in order. ``windows``: blocks of consecutive samples in random order, and samples shuffled
            within windows of that order, so that a window reads few ranges of bytes from all over the data.
        block: Samples of a block.
        window: Blocks of a window.
    """

    name: ShuffleName = "none"
    block: Positive = 256
    window: Positive = 4096

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shuffle of a text.

        Raises:
            ValueError: There is no such shuffle.

        Example:
            >>> Shuffling.parse("windows:16:8")
            Shuffling(name='windows', block=16, window=8)
        """
        word, *sizes = text.split(":")
        names = get_args(ShuffleName)
        name = next((choice for choice in names if choice == word), None)
        if name is None or (sizes and (name != "windows" or len(sizes) != 2)):
            raise ValueError(f"must be one of {', '.join(names)} or windows:BLOCK:WINDOW, got {text!r}")
        try:
            return cls(name, *map(int, sizes))
        except (ValueError, UsageError):
            raise ValueError(
                f"must be windows:BLOCK:WINDOW with numbers of at least 1, got {text!r}"
            ) from None

    def __str__(self) -> str:
        return f"{self.name}:{self.block}:{self.window}" if self.name == "windows" else self.name
