"""Names of modes, shuffles, tails and sort keys, as options and plans spell them."""

from typing import Literal

TrainingMode = Literal["single", "cyclic", "contiguous", "sequential", "chunked"]
"""Modes of training, see :mod:`tokshard.ranks.modes`."""

Mode = Literal[TrainingMode, "full-validation"]
ShuffleKind = Literal["none", "shards", "samples", "windows"]
Tail = Literal["drop", "pad"]
SortKey = Literal["length", "sequences", "pieces"]
