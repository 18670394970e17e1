"""Parts: the result of encoding one unit, as one file that is complete or absent.

Layout (little endian): data, then a JSON footer, then the footer's length in bytes as ``u64``, its
XXH3-128 (16 bytes), and the magic ``TOKPART7``. The data consists of named
*streams*, each a list of extents in the order written:

=================  =========================================================
``tokens.K``       token ids of output K, in the dataset's dtype
``lengths.K``      ``i32``, tokens of each sequence of output K
``sequences.K``    ``u32``, sequences of each document of output K
``origins.S``      origins of the documents of split S, with the lines in the unit
``rejected``       JSON lines, one for each rejected record, with its offset
=================  =========================================================

Output ``S * F + f`` is that of split S and field f of F. Without a holdout there is one split.

A part is not forced to the disk: its footer holds the digest of each stream, which are checked before a
run uses what an earlier one has left, so a part that a power cut has damaged is just made again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tokshard.core.codec import Count, Document, Record, Xxh3
from tokshard.dataset.counts import Counts
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.dataset.run import read_journal
from tokshard.errors import IntegrityError
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AtomicFile
from tokshard.storage.reading import open_regular, read_at, read_into
from tokshard.storage.syscalls import Buffer
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.rejection import RejectedRecord
from tokshard.text.tokenizer.checked_documents import FIRST_BYTES

_MAGIC = b"TOKPART7"
_TAIL = struct.Struct("<Q16s8s")
_COPY_BYTES = 1 << 20
_PART_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{9,})\.part")
EncoderName = Literal["reference", "fast", "none"]
"""The encoder of documents; ``"none"`` for token ids, which are written as they are."""
ENCODED_CONTENT: dict[EncoderName, str] = {
    "reference": " of text",
    "fast": " of text",
    "none": " of token ids",
}
"""The input bytes of each encoder in words, for rates."""
OTHER_SPLIT = "other-split"
"""The code of records whose documents are in the outputs of another split."""
# A row of text is commonly some kilobytes long.
_COMPARED_ROWS = 256


@dataclass(frozen=True, slots=True, order=True)
class UnitKey:
    """Key of a unit: number of the input, number of the unit in it. Ordered as the output is."""

    file: int
    index: int

    def following(self, *, last: bool) -> UnitKey:
        """Return the unit after this one, which is the ``last`` of its file or is not."""
        return UnitKey(self.file + 1, 0) if last else UnitKey(self.file, self.index + 1)


@dataclass(frozen=True, slots=True)
class InputPartNames:
    """The file names of the parts of one input: the identity of the input, and the number of the unit.

    The identity is a hash of the input's path, size and version (of a local file: the time), and of what else
    a part depends on: for ``--sample`` and for a pipe the number of the input, and for the first units of the
    corpus how far both encoders encode all documents.

    Attributes:
        unit_size: The size of a unit in bytes.
        end: The size of a plain input of JSON lines, or None for other inputs.
        compare_below: The position up to which both encoders encode all documents; 0 for none.
        is_table: Whether positions are numbers of rows.
        identities: The identities of units without such documents, with such documents alone, and of
            others: the position moves with the size of the inputs before this one.
    """

    unit_size: int
    end: int | None
    compare_below: int
    is_table: bool
    identities: tuple[str, str, str]

    def of(self, index: int) -> str:
        """Return the file name of a unit's part."""
        without, alone, others = self.identities
        begin = index * self.unit_size
        end = (index + 1) * self.unit_size
        end = end if self.end is None else min(end, self.end)
        if not self.compare_below or (not self.is_table and begin >= self.compare_below):
            identity = without
        elif not self.is_table and end <= self.compare_below:
            identity = alone
        else:
            identity = others
        return f"{identity}-{index:09d}.part"


class PartNames:
    """The file names of the parts of a run.

    Args:
        files: The inputs.
        parameters: The options of the run.

    Attributes:
        unit_size: The size of a unit in bytes.
        compare_below: By input, the position up to which both encoders encode all documents; 0 for others.
        of_inputs: The names of each input.
    """

    def __init__(self, files: Sequence[CorpusFile], parameters: TokenizeParameters) -> None:
        self.unit_size = parameters.unit_size
        self.compare_below = first_bytes(files)
        self.of_inputs = tuple(
            self._of_input(number, file, is_numbered=parameters.sample is not None)
            for number, file in enumerate(files)
        )
        self._numbers = {
            identity: number for number, names in enumerate(self.of_inputs) for identity in names.identities
        }

    def of(self, key: UnitKey) -> str:
        """Return the file name of a unit's part."""
        return self.of_inputs[key.file].of(key.index)

    def key(self, name: str) -> UnitKey | None:
        """Return the unit of a part's file name; None if it is of no unit of these inputs."""
        found = _PART_NAME.fullmatch(name)
        if found is None or found[1] not in self._numbers:
            return None
        key = UnitKey(self._numbers[found[1]], int(found[2]))
        return key if self.of(key) == name else None

    def _of_input(self, number: int, file: CorpusFile, *, is_numbered: bool) -> InputPartNames:
        import xxhash

        below = self.compare_below.get(number, 0)

        def identity(compared: int) -> str:
            facts = [file.path, file.size_bytes, file.version or file.mtime_ns, compared]
            if file.size_bytes is None or is_numbered:
                facts.append(number)
            return xxhash.xxh3_64_hexdigest(json.dumps(facts).encode("ascii"))

        is_plain = file.has_lines and not file.is_stream
        return InputPartNames(
            unit_size=self.unit_size,
            end=file.size_bytes if is_plain else None,
            compare_below=below,
            is_table=not file.has_lines,
            identities=(identity(0), identity(-1), identity(below)),
        )


def first_bytes(files: Sequence[CorpusFile]) -> dict[int, int]:
    """Return the positions, by input, that the corpus' first megabyte reaches.

    Sizes are those on disk: of a compressed file the first megabyte is taken after decompression, of a
    stream likewise; of a table, whose positions are row numbers, some rows.
    """
    below = {}
    remaining = FIRST_BYTES
    for number, file in enumerate(files):
        if remaining <= 0:
            break
        below[number] = remaining if file.has_lines else _COMPARED_ROWS
        remaining -= file.size_bytes if file.size_bytes is not None else FIRST_BYTES
    return below


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """The outputs of a run: one for each field of each split."""

    fields: int
    splits: int

    @classmethod
    def of(cls, parameters: TokenizeParameters) -> Self:
        """Return the outputs of a run with these parameters."""
        return cls(len(parameters.fields), len(parameters.splits))

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.fields * self.splits

    def split_of(self, k: int) -> int:
        """Return the split of an output."""
        return k // self.fields

    def outputs_of(self, split: int) -> range:
        """Return the outputs of a split."""
        return range(split * self.fields, (split + 1) * self.fields)

    @property
    def streams(self) -> list[str]:
        """The names of the streams that are assembled."""
        of_output = ("tokens", "lengths", "sequences")
        return [
            *(f"{kind}.{k}" for k in range(self.outputs) for kind in of_output),
            *(f"origins.{split}" for split in range(self.splits)),
            "rejected",
        ]


@dataclass(frozen=True, slots=True)
class StreamEntry(Record):
    """One stream of a part."""

    extents: tuple[tuple[Count, Count], ...]
    xxh3_128: Xxh3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHeader(Record):
    """The unit that a part was made of, and its counts.

    Attributes:
        name: The file name of the part.
        last: Whether it is the last unit of its input.
        encoder: The encoder of its documents.
        input_bytes: On-disk bytes of the unit.
        content_xxh3_128: XXH3-128 of the unit's records.
        counts: The counts of each output. Records of documents of another split are excluded.
    """

    name: str
    last: bool
    encoder: EncoderName
    input_bytes: Count
    content_xxh3_128: Xxh3
    counts: tuple[Counts, ...]

    @property
    def documents(self) -> int:
        """The documents of all splits of the first field."""
        return self.counts[0].documents + self.counts[0].excluded_as(OTHER_SPLIT)

    @property
    def tokens(self) -> int:
        """The tokens of all outputs."""
        return sum(counts.tokens for counts in self.counts)


@dataclass(frozen=True, slots=True)
class AppendedUnit(Record):
    """A unit in the journal of a run.

    Attributes:
        tokens_xxh3_128: XXH3-128 of its tokens in each output.
        is_cut: True if a limit ends the dataset inside it.
    """

    header: PartHeader
    tokens_xxh3_128: tuple[Xxh3, ...]
    is_cut: Literal[True] | None = None


@dataclass(frozen=True, slots=True)
class PartFooter(Document):
    """The JSON footer of a part."""

    SCHEMA = "tokshard.part/2"

    header: PartHeader
    streams: dict[str, StreamEntry]


class PartWriter:
    """Writes the part of one unit; a context manager that commits the file when left normally."""

    def __init__(self, path: str, streams: Iterable[str]) -> None:
        import xxhash

        self._file = AtomicFile(path, durable=False)
        self._extents: dict[str, list[tuple[int, int]]] = {stream: [] for stream in streams}
        self._digests = {stream: xxhash.xxh3_128() for stream in self._extents}

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def write(self, stream: str, buffer: Buffer) -> None:
        """Append ``buffer`` to one of the part's streams."""
        size = memoryview(buffer).nbytes
        if size:
            self._digests[stream].update(buffer)
            self._extents[stream].append((self._file.size_bytes, size))
            self._file.write(buffer)

    def write_rejected(self, records: Iterable[RejectedRecord]) -> None:
        """Append rejected records."""
        lines = (json.dumps(dataclasses.astuple(record)) + "\n" for record in records)
        self.write("rejected", "".join(lines).encode("ascii"))

    def finish(self, header: PartHeader) -> None:
        """Write the footer."""
        streams = {
            name: StreamEntry(tuple(extents), self._digests[name].hexdigest())
            for name, extents in self._extents.items()
        }
        content = PartFooter(header, streams).to_json()
        footer = json.dumps(content, separators=(",", ":")).encode()
        self._file.write(footer)
        self._file.write(_TAIL.pack(len(footer), bytes.fromhex(content_digest(footer)), _MAGIC))

    def discard(self) -> None:
        """Discard the part: nothing is committed."""
        self._file.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)


class PartReader:
    """Reads a part. Use as a context manager.

    Raises:
        IntegrityError: The file is cut, or not a part.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._buffer = bytearray(_COPY_BYTES)
        self._descriptor = open_regular(path)
        try:
            footer = self._read_footer()
        except (ValueError, IntegrityError) as error:
            self.close()
            raise IntegrityError(f"{path} is not a complete part: {error}", path=path) from error
        self.header = footer.header
        self._streams = footer.streams

    def digest(self, stream: str) -> str:
        """Return the recorded XXH3-128 of a stream."""
        return self._streams[stream].xxh3_128

    def chunks(self, stream: str) -> Iterator[memoryview]:
        """Yield a stream in pieces of at most 1 MiB, and check its digest at the end.

        Each piece is valid until the next is requested: they share one buffer, which stays in the cache.

        Raises:
            IntegrityError: The stream is not what was written.
        """
        import xxhash

        state = xxhash.xxh3_128()
        for offset, size in self._streams[stream].extents:
            for position in range(offset, offset + size, _COPY_BYTES):
                wanted = memoryview(self._buffer)[: offset + size - position]
                chunk = wanted[: read_into(self._descriptor, wanted, position)]
                state.update(chunk)
                yield chunk
        if state.hexdigest() != self.digest(stream):
            raise IntegrityError(f"{self.path}: the stream {stream} is damaged", path=self.path, field=stream)

    def read(self, stream: str) -> bytes:
        """Return a whole stream; see :meth:`chunks`."""
        return b"".join(bytes(chunk) for chunk in self.chunks(stream))

    def rejected(self) -> Iterator[RejectedRecord]:
        """Yield the rejected records; see :meth:`chunks`."""
        for line in self.read("rejected").splitlines():
            yield RejectedRecord(*json.loads(line))

    def verify(self) -> None:
        """Check the digest of every stream."""
        for stream in self._streams:
            for _ in self.chunks(stream):
                pass

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.close()

    def _read_footer(self) -> PartFooter:
        size = os.fstat(self._descriptor).st_size
        tail = read_at(self._descriptor, _TAIL.size, max(0, size - _TAIL.size))
        if len(tail) != _TAIL.size:
            raise ValueError("it is too short")
        length, digest, magic = _TAIL.unpack(tail)
        if magic != _MAGIC or length > size - _TAIL.size:
            raise ValueError("the footer is missing")
        content = read_at(self._descriptor, length, size - _TAIL.size - length)
        if bytes.fromhex(content_digest(content)) != digest:
            raise ValueError("the footer is damaged")
        return PartFooter.from_bytes(content, self.path)


def is_part_name(name: str) -> bool:
    """Tell whether a file name is that of a part, of whatever input."""
    return _PART_NAME.fullmatch(name) is not None


def part_headers(directory: str, *, verify: Callable[[str], bool] = lambda _: False) -> Iterator[PartHeader]:
    """Yield the headers of the parts in a directory, in no order.

    ``verify``: tells by its file name whether to check the content of a part; if not, only its footer.
    """
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        # A pipe must not even be opened: that would wait for ever.
        if not is_part_name(name) or os.path.islink(path) or not os.path.isfile(path):
            continue
        with suppress(IntegrityError, FileNotFoundError), PartReader(path) as part:
            if verify(name):
                part.verify()
            if part.header.name == name:
                yield part.header


def appended_units(work: str) -> Iterator[AppendedUnit]:
    """Yield the units of the journal in a work directory, as far as a checkpoint covers them."""
    return itertools.chain.from_iterable(read_journal(work, AppendedUnit))
