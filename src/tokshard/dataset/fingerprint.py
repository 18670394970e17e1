"""Fingerprints of files and of datasets, and detection of changes while datasets are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.core.codec import Count, Record, Sha256, Xxh3
from tokshard.dataset.layout import IndexTable, require_integers
from tokshard.dataset.products import BUILT_AGAIN, MOVED_HINT, Kind
from tokshard.dataset.reader import open_pair
from tokshard.dataset.source import DataFile, open_data
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError
from tokshard.storage import fs
from tokshard.storage.digest import content_digest
from tokshard.storage.paths import bin_path, idx_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.dataset.recorded_tokenizers import DatasetTokenizer

BLOCKS = 8
BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileFingerprint(Record):
    """The fingerprint of a file: its size and a digest of some of its blocks.

    The blocks are spread evenly over the file, the first and the last byte among them
    (``tokshard.fingerprint/1``). That takes eight small reads, so a file can be checked whenever it is
    opened, however large it is. A file that was rebuilt has another fingerprint, but a few flipped bits may
    not change it: ``tokshard verify --level digest`` reads files completely.

    Attributes:
        size_bytes: Size in bytes.
        sample_sha256: SHA-256 of eight blocks of 4,096 bytes, or of the whole file if it has at most 32,768
            bytes.
    """

    size_bytes: Count
    sample_sha256: Sha256

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the fingerprint of a file as it is now.

        Raises:
            MissingFileError: The file was not found.
            StorageError: The file cannot be read.
        """
        return cls.of_file(_opened(path, f"file not found: {path}"))

    @classmethod
    def of_array(cls, header: bytes, array: NDArray[Any]) -> Self:
        """Return the fingerprint of a file of a header and an array, which need not be written yet."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.sha256()
        skipped = len(header)
        size = skipped + data.size
        for start, stop in _blocks(size):
            digest.update(header[start:stop])
            digest.update(data[max(start - skipped, 0) : max(stop - skipped, 0)].data)
        return cls(size, digest.hexdigest())

    @classmethod
    def of_file(cls, file: DataFile) -> Self:
        """Return the fingerprint of an open file."""
        digest = hashlib.sha256()
        blocks = _blocks(file.size_bytes)
        for start, stop in blocks[1:]:
            file.prefetch(start, stop - start)
        for start, stop in blocks:
            block = bytearray(stop - start)
            file.read_into(memoryview(block), start)
            digest.update(block)
        return cls(file.size_bytes, digest.hexdigest())

    def check(self, path: str, product: Kind) -> None:
        """Check that a file is the one of the fingerprint.

        Args:
            path: The file.
            product: The kind of the product that records the fingerprint, for messages.

        Raises:
            MissingFileError: The file was not found.
            IntegrityError: The file has changed.
            StorageError: The file cannot be read.
        """
        file = _opened(path, f"file of the {product} not found: {path}", hint=MOVED_HINT)
        if file.size_bytes != self.size_bytes:
            change = f"it had {self.size_bytes} bytes and now has {file.size_bytes}"
        elif self.of_file(file) != self:
            change = "its content differs at the same size"
        else:
            return
        raise IntegrityError(
            f"{path} has changed since the {product} was built: {change}",
            path=path,
            hint=f"restore the file, or run {BUILT_AGAIN[product]}",
        )


def _opened(path: str, missing: str, *, hint: str | None = None) -> DataFile:
    try:
        return open_data(path)
    except (MissingFileError, StorageError):
        if fs.exists(path):
            raise
        raise MissingFileError(missing, path=path, hint=hint) from None


def _blocks(size_bytes: int) -> list[tuple[int, int]]:
    if size_bytes <= BLOCKS * BLOCK_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - BLOCK_BYTES
    starts = (last * number // (BLOCKS - 1) for number in range(BLOCKS))
    return [(start, start + BLOCK_BYTES) for start in starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFingerprint(Record):
    """The fingerprint of a dataset: sizes and digests.

    Attributes:
        bin_bytes: Size of the ``.bin`` file in bytes.
        idx_bytes: Size of the ``.idx`` file in bytes.
        idx_xxh3_128: XXH3-128 of the ``.idx`` file. Absent if it is unknown.
        manifest_fingerprint: Fingerprint in the manifest. Absent without a manifest.
        bin_pieces_xxh3_128: Digest of the pieces of the ``.bin`` file in the manifest. Absent without a
            manifest.
    """

    bin_bytes: Count
    idx_bytes: Count
    idx_xxh3_128: Xxh3 | None = None
    manifest_fingerprint: Sha256 | None = None
    bin_pieces_xxh3_128: Xxh3 | None = None

    def changes_since(self, earlier: DatasetFingerprint) -> list[str]:
        """Return the changes of the dataset: one phrase per value known on both sides.

        Gaining or losing a manifest is therefore not a change. Digests are left out if a size differs.

        Example:
            >>> earlier = DatasetFingerprint(bin_bytes=8, idx_bytes=5, manifest_fingerprint="ab" * 32)
            >>> DatasetFingerprint(bin_bytes=10, idx_bytes=5).changes_since(earlier)
            ['bin_bytes was 8 and is now 10']
        """
        changes = {}
        for field in fields(self):
            then, now = getattr(earlier, field.name), getattr(self, field.name)
            if then is not None and now is not None and then != now:
                changes[field.name] = f"{field.name} was {then} and is now {now}"
        sizes = [changes[name] for name in ("bin_bytes", "idx_bytes") if name in changes]
        return sizes or list(changes.values())

    def filled_from(self, other: DatasetFingerprint) -> DatasetFingerprint:
        """Return this fingerprint with unknown values filled in from another one."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in mine.items() if value is not None})


@dataclass(frozen=True, slots=True, eq=False)
class FingerprintedIndex:
    """The index of a dataset and the fingerprints of exactly these bytes.

    Attributes:
        fingerprint: With the digest of the whole index and, if the dataset has a manifest of these files, the
            digests of its tokens.
        files: The fingerprints of its files, by their names ``bin`` and ``idx``.
        tokenizer: Unknown unless the dataset has a manifest of these files.
    """

    path_prefix: str
    table: IndexTable
    fingerprint: DatasetFingerprint
    files: dict[str, FileFingerprint]
    tokenizer: DatasetTokenizer

    @classmethod
    def open(cls, path_prefix: str) -> FingerprintedIndex:
        """Open a dataset; makes two passes over the mapped ``.idx`` file, and reads 32 KiB of the ``.bin``.

        Raises:
            MissingFileError: One or both files do not exist.
            InputError: Its tokens are no integers.
            IntegrityError: The index is inconsistent, or contradicts the size of the ``.bin`` file.
            StorageError: A file cannot be read.
        """
        from tokshard.dataset.manifest import read_manifest  # the loader does without
        from tokshard.dataset.recorded_tokenizers import DatasetTokenizer

        bin_file, file = open_pair(path_prefix)
        manifest = read_manifest(path_prefix)
        multimodal = manifest is not None and manifest.dataset.multimodal
        bin_bytes = bin_file.size_bytes
        buffer = file.map()
        table = IndexTable.from_buffer(buffer, bin_bytes=bin_bytes, multimodal=multimodal, path=file.path)
        require_integers(table.dtype, path_prefix)
        idx_digest = content_digest(memoryview(buffer))
        known = {}
        tokenizer = DatasetTokenizer()
        # Another tool may have written new files next to an old manifest.
        if (
            manifest is not None
            and manifest.files.idx.xxh3_128 == idx_digest
            and manifest.files.bin.size_bytes == bin_bytes
        ):
            known = {
                "manifest_fingerprint": manifest.fingerprint,
                "bin_pieces_xxh3_128": manifest.files.bin.pieces_xxh3_128,
            }
            tokenizer = manifest.dataset_tokenizer
        fingerprint = DatasetFingerprint(
            bin_bytes=bin_bytes, idx_bytes=file.size_bytes, idx_xxh3_128=idx_digest, **known
        )
        files = {"bin": FileFingerprint.of_file(bin_file), "idx": FileFingerprint.of_file(file)}
        return cls(path_prefix, table, fingerprint, files, tokenizer)

    def check(self, fingerprint: DatasetFingerprint) -> None:
        """Raise IntegrityError if the dataset no longer has this fingerprint."""
        if self.fingerprint != fingerprint:
            raise IntegrityError(
                f"{self.path_prefix} changed while its indexes were built",
                path=self.path_prefix,
                hint="run the same command again when no process writes the dataset",
            )


def dataset_fingerprint(path_prefix: str) -> DatasetFingerprint:
    """Return the fingerprint of a dataset; see :meth:`FingerprintedIndex.open`."""
    return FingerprintedIndex.open(path_prefix).fingerprint


State = list[tuple[int | str, ...] | None]


def dataset_state(prefix: str) -> State:
    """Return :func:`tokshard.storage.fs.state` of ``.bin``, ``.idx`` and manifest; None for absent ones."""
    from tokshard.dataset.manifest import manifest_path

    return [fs.state(path) for path in (bin_path(prefix), idx_path(prefix), manifest_path(prefix))]


@contextmanager
def unchanged(prefixes: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Raise an error if a dataset changes inside the ``with`` block.

    Remote datasets are skipped: the version of a file is compared after every read.

    Yields:
        A function that raises the error earlier, before results are published.

    Raises:
        InputError: A dataset changed.

    Example:
        >>> with unchanged(["data/web"]):  # doctest: +SKIP
        ...     tokens = IndexedDataset("data/web").sequence_lengths.sum()
    """
    before = {prefix: dataset_state(prefix) for prefix in prefixes if not is_remote(prefix)}
    try:
        yield lambda: _check(before)
    except Exception as error:
        _check(before, error)
        raise
    _check(before)


def _check(before: dict[str, State], error: Exception | None = None) -> None:
    for prefix, state in before.items():
        if dataset_state(prefix) != state:
            raise InputError(
                f"{prefix} changed while it was read",
                hint="run the same command again when no process writes the dataset",
            ) from error
