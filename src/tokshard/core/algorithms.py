"""Names of the algorithms of random orders, as files record them. The algorithms are in ``keyed_orders``."""

from typing import Final

SORTED_ALGORITHM: Final = "tokshard.sorted/1"
FEISTEL_ALGORITHM: Final = "tokshard.feistel/1"
