"""Looking at a blend: its document as it was written, with the certificates of its splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.blending.document import BlendDocument
from tokshard.core.codec import encode

SCHEMA = "tokshard.inspect-blend/1"


@dataclass(frozen=True, slots=True)
class BlendSummary:
    """What a blend is.

    Attributes:
        document: Its document; every figure in it was measured when the blend was made.
    """

    document: BlendDocument

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field; paths are as they can be opened."""
        document = self.document
        return {
            "schema": SCHEMA,
            "path": document.path,
            "id": document.id,
            "cache_directory": document.cache_directory,
            "sequence_length": document.sequence_length,
            "seed": document.seed,
            "splits": [
                {
                    "name": split.name,
                    "kind": split.kind,
                    "samples": split.samples,
                    "size": split.order and split.order.size,
                    "hash": split.order and split.order.hash,
                    "sources": [
                        {"prefix": one.prefix, "hash": one.hash, "draws": one.draws, "share": share}
                        for one, share in zip(split.sources, split.shares, strict=True)
                    ],
                    "certificate": encode(split.certificate),
                }
                for split in document.splits.values()
            ],
        }


def inspect_blend(path: str) -> BlendSummary:
    """Summarise a blend; none of its arrays is opened.

    Args:
        path: The ``blend.json``, or its directory.

    Raises:
        MissingFileError, IntegrityError: See :meth:`tokshard.blending.document.BlendDocument.read`.
    """
    return BlendSummary(BlendDocument.read(path))
