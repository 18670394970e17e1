"""What a cached index was made from: the fingerprint of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.dataset.layout import IndexTable
from tokshard.dataset.manifest import Manifest, read_manifest
from tokshard.dataset.reader import open_pair
from tokshard.errors import IntegrityError
from tokshard.storage.digest import content_digest


@dataclass(frozen=True, slots=True, eq=False)
class FingerprintedIndex:
    """The index of a dataset with its fingerprint, both of the very same bytes.

    Attributes:
        path_prefix: The dataset.
        table: Its checked index.
        fingerprint: See :func:`dataset_fingerprint`.
    """

    path_prefix: str
    table: IndexTable
    fingerprint: dict[str, Any]

    @classmethod
    def open(cls, path_prefix: str) -> FingerprintedIndex:
        """Open a dataset: two passes over the ``.idx`` file, which is mapped; none over the ``.bin`` file.

        Raises:
            MissingFileError: One or both files are not there.
            IntegrityError: The index contradicts itself or the size of the ``.bin`` file.
            StorageError: The file system refuses to read.
        """
        bin_file, file = open_pair(path_prefix)
        manifest = read_manifest(path_prefix)
        multimodal = manifest is not None and manifest.dataset.multimodal
        bin_bytes = bin_file.size_bytes
        buffer = file.map()
        table = IndexTable.from_buffer(buffer, bin_bytes=bin_bytes, multimodal=multimodal, path=file.path)
        fingerprint: dict[str, Any] = {
            "bin_bytes": bin_bytes,
            "idx_bytes": file.size_bytes,
            "idx_xxh3_128": content_digest(memoryview(buffer)),
        }
        # Another tool may have written new files beside an old manifest, which knows nothing of them.
        if manifest is not None and _describes(manifest, fingerprint):
            fingerprint["fingerprint"] = manifest.fingerprint
            fingerprint["bin_pieces_xxh3_128"] = manifest.files.bin.pieces_xxh3_128
        return cls(path_prefix, table, fingerprint)

    def check(self, fingerprint: dict[str, Any]) -> None:
        """Check that the dataset is still the one that something was begun with.

        Args:
            fingerprint: What :func:`dataset_fingerprint` said of it then.

        Raises:
            IntegrityError: It has changed.
        """
        if self.fingerprint != fingerprint:
            raise IntegrityError(
                f"{self.path_prefix} has changed while its indexes were built",
                path=self.path_prefix,
                hint="run the same command again when nobody writes the dataset",
            )


def dataset_fingerprint(path_prefix: str) -> dict[str, Any]:
    """Return what identifies the content of a dataset, as far as it can be told without reading its tokens.

    Returns:
        ``bin_bytes``, ``idx_bytes`` and ``idx_xxh3_128``, the digest of the whole index; and where the
        dataset has a manifest its ``fingerprint`` and ``bin_pieces_xxh3_128``, which know the tokens.

    Raises:
        MissingFileError, IntegrityError, StorageError: See :meth:`FingerprintedIndex.open`.
    """
    return FingerprintedIndex.open(path_prefix).fingerprint


def fingerprint_differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say how a dataset has changed, one phrase for each field that both fingerprints have.

    A dataset that has got or lost its manifest has not changed by that.

    Example:
        >>> fingerprint_differences({"bin_bytes": 8, "fingerprint": "ab"}, {"bin_bytes": 10})
        ['its bin_bytes was 8 and is 10']
    """
    return [
        f"its {name} was {then[name]} and is {now[name]}"
        for name in now
        if then.get(name) is not None and now[name] is not None and then[name] != now[name]
    ]


def _describes(manifest: Manifest, fingerprint: dict[str, Any]) -> bool:
    files = manifest.files
    recorded = (files.idx.xxh3_128, files.bin.size_bytes)
    return recorded == (fingerprint["idx_xxh3_128"], fingerprint["bin_bytes"])
