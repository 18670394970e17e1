"""Copying the tokens of all inputs behind each other, with checkpoints from which a run goes on.

The work directory holds ``0.bin``, which only grows, and the journal ``merge.jsonl``. The journal has a
line for each finished input whose digest nobody knew before. Tokens of inputs with a manifest never
come into this process: the kernel copies them, and the digests of their pieces are carried over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.digest import READ_BYTES
from tokshard.storage.files import AppendFile
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.paths import bin_path

TOKENS_NAME = "0.bin"
JOURNAL_NAME = "merge.jsonl"

CHECKPOINT_BYTES = 1 << 30
COPY_BYTES = 64 << 20


class TokenCopy:
    """The tokens copied so far.

    Args:
        directory: The work directory.
        inputs: What to copy, in order.
        progress: Who is told.

    Attributes:
        resumed_bytes: What an earlier run has copied.
        digests: The XXH3-128 of the ``.bin`` of each finished input without a manifest, by its number.

    Raises:
        IntegrityError: The files are shorter than the journal says.
    """

    def __init__(self, directory: str, inputs: Sequence[MergeInput], progress: Progress) -> None:
        self._inputs = inputs
        self._progress = progress
        self._documents = 0  # of finished inputs
        self.digests: dict[int, str] = {}
        journal_path = os.path.join(directory, JOURNAL_NAME)
        sizes: dict[str, int] = {}
        journal_bytes = 0
        for checkpoint in read_checkpoints(journal_path):
            self.digests |= {entry["input"]: entry["xxh3_128"] for entry in checkpoint.entries}
            sizes, journal_bytes = checkpoint.sizes, checkpoint.journal_bytes
        self.resumed_bytes = self._synced_bytes = sizes.get(TOKENS_NAME, 0)
        self._journal = Journal(journal_path, journal_bytes)
        try:
            self._tokens = AppendFile(os.path.join(directory, TOKENS_NAME), self.resumed_bytes)
        except BaseException:
            self._journal.close()
            raise

    def run(self) -> None:
        """Copy what is missing, and force it to the disk.

        Raises:
            IntegrityError: An input ends before it should.
            StorageError: An input cannot be read, or the output not be written. What has been copied up to
                the last checkpoint is kept.
        """
        begin = 0
        for number, one in enumerate(self._inputs):
            done = min(one.bin_bytes, max(0, self._tokens.size_bytes - begin))
            if one.manifest is not None:
                if done < one.bin_bytes:
                    self._copy(one, done)
            elif number not in self.digests:
                self.digests[number] = self._copy_and_digest(one, done)
                self._journal.append({"input": number, "xxh3_128": self.digests[number]})
            begin += one.bin_bytes
            self._documents += one.header.document_count
            self._tell()
        self._checkpoint()

    def close(self) -> None:
        """Close all files."""
        self._tokens.close()
        self._journal.close()

    def _copy(self, one: MergeInput, done: int) -> None:
        """Let the kernel copy the rest of an input."""
        file = InputFile(bin_path(one.prefix))
        while done < one.bin_bytes:
            wanted = min(COPY_BYTES, CHECKPOINT_BYTES, one.bin_bytes - done)
            copied = self._tokens.copy(file.descriptor, done, wanted)
            done += copied
            if copied < wanted:
                raise IntegrityError(
                    f"{file.path} ends at byte {done}, but had {one.bin_bytes} bytes when it was checked",
                    path=file.path,
                    offset=done,
                    hint="another program has cut it short: copy the pair again, or make it again",
                )
            self._after_block()

    def _copy_and_digest(self, one: MergeInput, done: int) -> str:
        """Copy the rest of an input through this process; return the digest of the whole."""
        file = InputFile(bin_path(one.prefix))
        state = xxhash.xxh3_128()
        buffer = memoryview(bytearray(min(READ_BYTES, CHECKPOINT_BYTES, one.bin_bytes)))
        position = 0
        while position < one.bin_bytes:
            # What a run before has copied is read again for the digest, and no more.
            end = done if position < done else one.bin_bytes
            block = buffer[: min(len(buffer), end - position)]
            file.read_into(block, position)
            state.update(block)
            if position >= done:
                self._tokens.write(block)
                self._after_block()
            position += len(block)
        return state.hexdigest()

    def _after_block(self) -> None:
        if self._tokens.size_bytes - self._synced_bytes >= CHECKPOINT_BYTES:
            self._checkpoint()
        self._tell()

    def _checkpoint(self) -> None:
        self._journal.checkpoint({TOKENS_NAME: self._tokens})
        self._synced_bytes = self._tokens.size_bytes

    def _tell(self) -> None:
        size = self._tokens.size_bytes
        itemsize = self._inputs[0].header.dtype.itemsize
        self._progress.update(ProgressUpdate(size, self._documents, size // itemsize))
