"""tokshard: from raw text to the token shards that each rank of a pre-training job reads.

The public names are imported when they are first used, so that ``import tokshard`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokshard.version import __version__

if TYPE_CHECKING:
    from tokshard.blending.certificate import Certificate
    from tokshard.blending.exhaustive import build_exhaustive_blending_indices
    from tokshard.blending.greedy import build_blending_indices
    from tokshard.blending.recipe import BlendRecipe
    from tokshard.indexed.builder import IndexedDatasetBuilder
    from tokshard.indexed.merge.job import merge_datasets
    from tokshard.indexed.reader import IndexedDataset
    from tokshard.sampling.index import GPTDatasetIndex
    from tokshard.sampling.indices import build_document_index, build_sample_index, build_shuffle_index
    from tokshard.sampling.samples import GPTSamples
    from tokshard.tokenization.array.job import finish_tokenization, tokenize_share
    from tokshard.tokenization.array.task import ArrayTask
    from tokshard.tokenization.job import tokenize_corpus

__all__ = [
    "ArrayTask",
    "BlendRecipe",
    "Certificate",
    "GPTDatasetIndex",
    "GPTSamples",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "__version__",
    "build_blending_indices",
    "build_document_index",
    "build_exhaustive_blending_indices",
    "build_sample_index",
    "build_shuffle_index",
    "finish_tokenization",
    "merge_datasets",
    "tokenize_corpus",
    "tokenize_share",
]

_HOMES = {
    "ArrayTask": "tokshard.tokenization.array.task",
    "BlendRecipe": "tokshard.blending.recipe",
    "Certificate": "tokshard.blending.certificate",
    "GPTDatasetIndex": "tokshard.sampling.index",
    "GPTSamples": "tokshard.sampling.samples",
    "IndexedDataset": "tokshard.indexed.reader",
    "IndexedDatasetBuilder": "tokshard.indexed.builder",
    "build_blending_indices": "tokshard.blending.greedy",
    "build_document_index": "tokshard.sampling.indices",
    "build_exhaustive_blending_indices": "tokshard.blending.exhaustive",
    "build_sample_index": "tokshard.sampling.indices",
    "build_shuffle_index": "tokshard.sampling.indices",
    "finish_tokenization": "tokshard.tokenization.array.job",
    "merge_datasets": "tokshard.indexed.merge.job",
    "tokenize_corpus": "tokshard.tokenization.job",
    "tokenize_share": "tokshard.tokenization.array.job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokshard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
