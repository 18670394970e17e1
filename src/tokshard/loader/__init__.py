"""The runtime reader for training jobs: the micro-batches of a rank, with numpy only."""

from __future__ import annotations

from tokshard.loader.options import BatchOptions
from tokshard.loader.rank import RankLoader

__all__ = ["BatchOptions", "RankLoader"]
