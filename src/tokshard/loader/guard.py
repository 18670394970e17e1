"""Checks of the files of a dataset before each micro-batch that reads from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokshard.dataset.source import DataFile
from tokshard.dataset.view import data_prefix
from tokshard.errors import IntegrityError, UsageError
from tokshard.storage import fs
from tokshard.storage.paths import idx_path, is_remote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.dataset.blocks import TokenBlocks
    from tokshard.dataset.reader import IndexedDataset
    from tokshard.sharding.sources import DatasetReference

Extents = tuple["NDArray[np.int64]", "NDArray[np.int64]"]


class DatasetGuard:
    """The checks of one dataset, which know for as long as the loader lives what has been compared.

    A file that is written to while it is open is compared with its digest: the ``.idx`` file at once, a block
    of the ``.bin`` file before its next use. So a file whose time was changed and whose content was not
    (``touch``) does not stop a run. A file without digests that is written to is an error. Remote files need
    no such check: every read is conditional on their version.

    Args:
        reference: The dataset.
        verify: Whether each block is compared with its digest before its first use.
    """

    def __init__(self, reference: DatasetReference, *, verify: bool) -> None:
        self._reference = reference
        self._idx_path = None if is_remote(reference.prefix) else idx_path(reference.prefix)
        self._verify = verify
        self._bin: tuple[int | str, ...] | None = None
        self._idx: tuple[int | str, ...] | None = None
        self._blocks: TokenBlocks | None = None

    def watch(self, dataset: IndexedDataset, file: DataFile) -> None:
        """Watch a dataset that was just opened, and its ``.bin`` file.

        Blocks that were compared before count if the file has not changed since.
        """
        if self._blocks is not None and dataset.bin_state == self._bin:
            self._blocks = self._blocks.reopened(file)
        elif self._blocks is not None or self._verify:
            self._blocks = self._read_blocks(file)
        self._bin, self._idx = dataset.bin_state, dataset.idx_state

    def check(self, file: DataFile, extents: Callable[[], Extents]) -> None:
        """Check both files, and the blocks of ``extents``: first bytes and bytes.

        Raises:
            IntegrityError: A file has changed, or a block is damaged.
        """
        if self._idx_path is not None:
            self._check_index(self._idx_path)
        if (state := file.state()) != self._bin:
            try:
                self._blocks = self._read_blocks(file)
            except (UsageError, IntegrityError) as error:
                raise _changed(file.path, error.message) from error
            self._bin = state
        if self._blocks is not None and not self._blocks.is_complete:
            self._blocks.require(*extents())

    def _check_index(self, path: str) -> None:
        state = fs.local_state(path)
        # A file that was removed or replaced is still read as it was.
        if state == self._idx or state is None or self._idx is None or state[0] != self._idx[0]:
            return
        from tokshard.dataset.blocks import require_xxhash
        from tokshard.storage.digest import file_digest

        require_xxhash()
        expected = self._reference.fingerprint.idx_xxh3_128
        if (digest := file_digest(path)) != expected:
            raise _changed(path, f"the plan requires the digest {expected}, got {digest}")
        self._idx = state

    def _read_blocks(self, file: DataFile) -> TokenBlocks:
        from tokshard.dataset.blocks import TokenBlocks  # most runs do without

        return TokenBlocks.read(data_prefix(self._reference.prefix), file, self._reference.fingerprint)


def _changed(path: str, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{path} changed while it was open: {reason}",
        path=path,
        hint="restore the file and resume from a checkpoint",
    )
