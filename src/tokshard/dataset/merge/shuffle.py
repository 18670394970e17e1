"""Shuffling of the documents of a merge, resumable, in bounded memory and at most two passes over the tokens.

The work directory holds the scratch files, the output ``0.*`` and the journal ``shuffle.jsonl``. The journal
begins with the memory of a run, which determines the layout. It lists the digests of inputs without a
manifest, and the pieces of the output. Its checkpoints have the sizes of all files, from which the number of
finished runs and ranges follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from tokshard.core.algorithms import SORTED_ALGORITHM
from tokshard.core.background import in_order
from tokshard.core.codec import Count, Positive, Record, decode, encode
from tokshard.core.formatting import counted, size
from tokshard.core.keyed_orders import derive_key
from tokshard.core.presentation import Facts
from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.merge import scratch
from tokshard.dataset.merge.documents import Documents
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.merged_documents import MergedDocuments
from tokshard.dataset.merge.scratch import RunReader, RunWriter, remove_scratch
from tokshard.dataset.merge.shuffle_layout import (
    MAX_GROUPS,
    ShuffleLayout,
    column_bytes,
    lay_out,
    needed_bytes,
)
from tokshard.dataset.merge.shuffled_output import ShuffledOutput, blocks
from tokshard.dataset.merge.staging import CopiedInput
from tokshard.dataset.merge.token_stores import MAX_OPEN_INPUTS, BufferPool
from tokshard.dataset.parameters import DocumentShuffle
from tokshard.dataset.records import PieceRecord
from tokshard.storage.files import AppendFile
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

JOURNAL_NAME = "shuffle.jsonl"
CHECKPOINT_BYTES = 1 << 30

_LOADS = 2
"""Runs or ranges in memory: one is written while the next one is read."""


def order_key(shuffle: DocumentShuffle) -> int:
    """Return the key of the hashes by which documents are sorted."""
    return derive_key(f"{SORTED_ALGORITHM}:documents", shuffle.seed, 0)


@dataclass(frozen=True, slots=True)
class ShuffleEntry(Record):
    """Journal entry: exactly one of the fields."""

    block_bytes: Positive | None = None
    input: CopiedInput | None = None
    piece: PieceRecord | None = None


@dataclass(frozen=True, slots=True)
class ShuffleSizes(Record):
    """Memory and disk space of a shuffle, known before it begins."""

    passes: Positive
    block_bytes: Positive
    single_pass_bytes: int | None
    memory_bytes: Count
    scratch_bytes: Count
    disk_bytes: Count

    def allows(self, block_bytes: int) -> bool:
        """Return whether a run with this ``block_bytes`` can be continued."""
        if self.single_pass_bytes is not None and block_bytes >= self.single_pass_bytes:
            return True  # it needs little memory
        return block_bytes <= self.block_bytes

    def facts(self, free_bytes: int | None) -> Facts:
        """Return the sizes and the free disk space for people."""
        means = f"{size(self.memory_bytes)} of memory"
        if self.scratch_bytes:
            means += f", {size(self.scratch_bytes)} of scratch files"
        free = "unknown" if free_bytes is None else size(free_bytes)
        return [
            ("shuffle", f"{counted(self.passes, 'pass', 'passes')} over the tokens, {means}"),
            ("disk", f"{size(self.disk_bytes)} required, {free} free"),
        ]


def shuffle_sizes(inputs: Sequence[MergeInput], *, memory_bytes: int, page_cache_bytes: int) -> ShuffleSizes:
    """Return the sizes of a shuffle of datasets.

    Args:
        inputs: The datasets.
        memory_bytes: The memory for tokens and their index.
        page_cache_bytes: The same if the tokens of all inputs are read from the page cache, in one pass,
            which needs memory only for the index.
    """
    tokens = sum(dataset.bin_bytes for dataset in inputs)
    documents = sum(dataset.header.document_count for dataset in inputs)
    sequences = sum(dataset.header.sequence_count for dataset in inputs)
    needed = needed_bytes(documents, sequences, tokens)
    is_in_place = len(inputs) <= MAX_OPEN_INPUTS and needed - tokens <= memory_bytes
    limit = max(memory_bytes, page_cache_bytes) if is_in_place else memory_bytes
    is_single = needed <= limit
    scratch_bytes = 0 if is_single else tokens + column_bytes(documents, sequences, multimodal=True)
    # The columns of the index are written twice.
    output = tokens + 2 * (20 * sequences + 24 * documents)
    block_bytes = limit if is_single else max(1, memory_bytes // _LOADS)
    # A scratch file is removed two checkpoints after its last range, and a checkpoint is begun after a range.
    groups = max(1, min(MAX_GROUPS, needed // block_bytes))
    kept = scratch_bytes // groups + 2 * (CHECKPOINT_BYTES + block_bytes)
    in_memory = needed - tokens if is_in_place else needed
    return ShuffleSizes(
        block_bytes=block_bytes,
        passes=1 if is_single else 2,
        single_pass_bytes=needed if is_in_place else None,
        memory_bytes=in_memory if is_single else memory_bytes,
        scratch_bytes=scratch_bytes,
        disk_bytes=output + min(scratch_bytes, kept),
    )


class ShuffledCopy:
    """The shuffled tokens written so far.

    Attributes:
        resumed_bytes: The bytes that an earlier run wrote.
        digests: The XXH3-128 of the ``.bin`` of each finished input without a manifest, by input number.
        pieces: The finished pieces of the output.

    Raises:
        IntegrityError: The files are shorter than the journal says.
    """

    def __init__(
        self,
        directory: str,
        inputs: Sequence[MergeInput],
        shuffle: DocumentShuffle,
        progress: Progress,
        *,
        sizes: ShuffleSizes,
        threads: int,
        multimodal: bool,
    ) -> None:
        self._directory = directory
        self._inputs = inputs
        self._progress = progress
        self._threads = threads
        self._multimodal = multimodal
        self._merged = MergedDocuments(inputs, multimodal=multimodal)
        self._key = order_key(shuffle)
        self._pool = BufferPool()
        self.digests: dict[int, str] = {}
        self.pieces: list[PieceRecord] = []
        self._sizes: dict[str, int] = {}
        block_bytes, journal_bytes = self._recover(sizes)
        self._layout = lay_out(self._merged, self._key, block_bytes)
        self._journal = Journal(os.path.join(directory, JOURNAL_NAME), journal_bytes)
        try:
            if not journal_bytes:
                remove_scratch(directory)
                self._journal.append(encode(ShuffleEntry(block_bytes=block_bytes)))
            self._output = ShuffledOutput(
                directory,
                self._sizes,
                self.pieces,
                self._merged.itemsize,
                self._merged.position,
                self._finish_piece,
            )
        except BaseException:
            self._journal.close()
            raise
        self._foreign = ForeignDigests(inputs, self._merged.firsts, self.digests)
        self._scratch_bytes = (
            self._all_scratch_bytes
            if self._is_distributed
            else sum(self._sizes.get(name, 0) for name in scratch.SCRATCH_NAMES)
        )
        self.resumed_bytes = self._synced_bytes = self._scratch_bytes + self._output.size_bytes

    @property
    def layout(self) -> ShuffleLayout:
        """The runs and ranges."""
        return self._layout

    @property
    def total_bytes(self) -> int:
        """The bytes that a complete run writes to scratch files and the ``.bin``."""
        return self._all_scratch_bytes + sum(dataset.bin_bytes for dataset in self._inputs)

    def run(self) -> None:
        """Write what is missing and fsync; remove the scratch files.

        Raises:
            IntegrityError: An input is too short, or a scratch file is damaged.
            StorageError: A file cannot be read or written. Everything up to the last checkpoint is kept.
        """
        if self._layout.is_single_pass:
            self._write_at_once()
        else:
            self._distribute()
            self._collect()
        self._foreign.finish(self._merged.count, self._digested)
        self._output.finish()
        self._journal.checkpoint(self._output.files)
        remove_scratch(self._directory)

    def close(self) -> None:
        """Close all files."""
        self._output.close()
        self._journal.close()

    @property
    def _all_scratch_bytes(self) -> int:
        if self._layout.is_single_pass:
            return 0
        sequences = sum(dataset.header.sequence_count for dataset in self._inputs)
        columns = column_bytes(self._merged.count, sequences, multimodal=self._multimodal)
        return self._layout.scratch_bytes + columns + scratch.SEGMENT.itemsize * self._segments

    @property
    def _segments(self) -> int:
        return self._layout.run_count * self._layout.range_count

    @property
    def _is_distributed(self) -> bool:
        return self._sizes.get(scratch.SEGMENTS_NAME, 0) == scratch.SEGMENT.itemsize * self._segments

    def _recover(self, sizes: ShuffleSizes) -> tuple[int, int]:
        # The memory of a run, and the size of the journal to continue from: 0 to start over.
        recorded: int | None = None
        journal_bytes = 0
        path = os.path.join(self._directory, JOURNAL_NAME)
        for checkpoint in read_checkpoints(path):
            for value in checkpoint.entries:
                entry = decode(ShuffleEntry, value, path)
                if entry.block_bytes is not None:
                    recorded = entry.block_bytes
                if entry.input is not None:
                    self.digests[entry.input.input] = entry.input.xxh3_128
                if entry.piece is not None:
                    self.pieces.append(entry.piece)
            self._sizes |= checkpoint.sizes
            journal_bytes = checkpoint.journal_bytes
        if recorded is not None and sizes.allows(recorded):
            return recorded, journal_bytes
        # Runs of an earlier run with more memory may not fit now.
        self.digests.clear()
        self.pieces.clear()
        self._sizes.clear()
        return sizes.block_bytes, 0

    def _write_at_once(self) -> None:
        if self._output.documents == self._merged.count:
            return
        if len(self._inputs) <= MAX_OPEN_INPUTS:
            documents = self._merged.locate()
            documents.sort(self._key)
        else:
            documents, _ = self._load_run(0)
        ends = np.cumsum(documents.sizes)
        first = self._output.documents
        while first < len(documents):
            before = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + CHECKPOINT_BYTES, side="right")))
            self._output.write(documents.part(first, stop), self._threads, self._tell)
            self._checkpoint(self._output.files)
            first = stop

    def _distribute(self) -> None:
        if self._is_distributed:
            return
        writer = RunWriter(self._directory, self._layout, self._sizes, self._threads)
        try:
            numbers = range(writer.finished, self._layout.run_count)
            loads = in_order((partial(self._load_run, number) for number in numbers), self._loads)
            for number, (documents, keys) in zip(numbers, loads, strict=True):
                self._foreign.update(documents, int(self._layout.runs[number + 1]), self._digested)
                writer.write(documents, keys, lambda: self._tell_scratch(writer))
                documents.tokens.release()
                self._checkpoint(writer.files)
            self._journal.checkpoint(writer.files)
        finally:
            writer.close()
        self._scratch_bytes = self._all_scratch_bytes

    def _collect(self) -> None:
        if self._output.documents == self._merged.count:
            return  # an earlier run may have removed the scratch files
        layout = self._layout
        first = int(np.searchsorted(layout.documents[1:], self._output.documents, side="right"))
        reader = RunReader(
            self._directory, layout, self._merged.itemsize, self._pool, multimodal=self._multimodal
        )
        removed = durable = 0
        numbers = range(first, layout.range_count)
        loads = in_order((partial(self._load_range, reader, number) for number in numbers), self._loads)
        for number, documents in zip(numbers, loads, strict=True):
            self._output.write(documents, self._threads, self._tell)
            documents.tokens.release()
            if self._checkpoint(self._output.files):
                # The checkpoint before this one is durable now.
                removed = self._remove_groups(removed, durable)
                durable = number + 1

    @property
    def _loads(self) -> int:
        return _LOADS if self._threads > 1 else 1

    def _load_run(self, number: int) -> tuple[Documents, NDArray[np.uint64]]:
        first, stop = self._layout.runs[number : number + 2].tolist()
        layout = self._layout
        documents = self._merged.load(first, stop, layout.apart, self._pool, layout.block_bytes)
        return documents, documents.sort(self._key)

    def _load_range(self, reader: RunReader, number: int) -> Documents:
        documents = reader.load(number)
        documents.sort(self._key)
        return documents

    def _remove_groups(self, removed: int, durable: int) -> int:
        # Scratch files of which all ranges are in durable output; returns the number of groups.
        done = sum(self._layout.ranges_of(group).stop <= durable for group in range(self._layout.group_count))
        remove_scratch(self._directory, map(scratch.group_name, range(removed, done)))
        return max(removed, done)

    def _digested(self, number: int, digest: str) -> None:
        self._journal.append(encode(ShuffleEntry(input=CopiedInput(number, digest))))

    def _finish_piece(self, piece: PieceRecord) -> None:
        self.pieces.append(piece)
        self._journal.append(encode(ShuffleEntry(piece=piece)))

    def _checkpoint(self, files: Mapping[str, AppendFile]) -> bool:
        # Begins a checkpoint if enough has been written; the one before it is complete then.
        written = self._scratch_bytes + self._output.size_bytes
        if written - self._synced_bytes < CHECKPOINT_BYTES:
            return False
        self._journal.begin_checkpoint(files)
        self._synced_bytes = written
        return True

    def _tell_scratch(self, writer: RunWriter) -> None:
        self._scratch_bytes = writer.size_bytes
        self._tell()

    def _tell(self) -> None:
        done = self._output.size_bytes
        update = ProgressUpdate(
            self._scratch_bytes + done, self._output.documents, done // self._merged.itemsize
        )
        self._progress.update(update)


class ForeignDigests:
    """Digests of the ``.bin`` of inputs without a manifest, from blocks that are in memory anyway.

    Args:
        inputs: All inputs.
        firsts: The number of the first document of each, and of all.
        known: The digests of finished inputs, by input number; new ones are added.
    """

    def __init__(self, inputs: Sequence[MergeInput], firsts: Sequence[int], known: dict[int, str]) -> None:
        self._inputs = inputs
        self._firsts = firsts
        self._known = known
        self._number = -1
        self._state = xxhash.xxh3_128()
        self._position = 0

    def update(self, documents: Documents, stop: int, tell: Callable[[int, str], None]) -> None:
        """Add the documents of a run, of which ``stop`` is the number of the first one after it."""
        for span in documents.spans:
            if self._inputs[span.input].manifest is None and span.input not in self._known:
                self._begin(span.input, tell)
                self._read(span.offset)
                self._state.update(span.content)
                self._position += len(span.content)
        self.finish(stop, tell)

    def finish(self, stop: int, tell: Callable[[int, str], None]) -> None:
        """Compute the digests of all inputs whose documents come before the document ``stop``."""
        for number, dataset in enumerate(self._inputs):
            is_over = self._firsts[number + 1] <= stop
            if is_over and dataset.manifest is None and number not in self._known:
                self._begin(number, tell)
                self._end(tell)

    def _begin(self, number: int, tell: Callable[[int, str], None]) -> None:
        if number == self._number:
            return
        if self._number >= 0 and self._number not in self._known:
            self._end(tell)
        self._number, self._position = number, 0
        self._state = xxhash.xxh3_128()

    def _end(self, tell: Callable[[int, str], None]) -> None:
        self._read(self._inputs[self._number].bin_bytes)
        self._known[self._number] = self._state.hexdigest()
        tell(self._number, self._known[self._number])

    def _read(self, stop: int) -> None:
        # Bytes that are not in memory: an earlier run read them, or they are of documents that are apart.
        if self._position < stop:
            path = bin_path(self._inputs[self._number].prefix)
            for block in blocks(path, self._position, stop - self._position):
                self._state.update(block)
            self._position = stop
