"""Reuse of finished units by a run with the same options whose inputs have another time, size or content.

A unit fits if the input at its position has the same path and the unit has the same records at the same
offsets. An input with the same size, time and version is not read. Otherwise, the digests of its units are
compared; those of a table cannot prove equality, so a changed table is encoded again. Assembled units that
fit, but come after one that does not, become parts again.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.options import recorded
from tokshard.dataset.manifest import UNITS_NAME, Manifest, file_of
from tokshard.dataset.plan import BuildPlan, TextInput, TokenizeParameters
from tokshard.dataset.records import RejectionRecord, UnitRecord, parse_line, read_records
from tokshard.errors import InputError, IntegrityError
from tokshard.storage import syscalls
from tokshard.storage.digest import READ_BYTES
from tokshard.storage.files import AppendFile
from tokshard.storage.reading import open_file
from tokshard.storage.scratch import scratch_directory
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units, stream_units
from tokshard.text.corpus.records import read_documents
from tokshard.text.corpus.rejection import RejectedRecord
from tokshard.text.corpus.selection import RecordSelection
from tokshard.text.corpus.units import LineUnit
from tokshard.text.tokenize.assembly import JOURNAL, AssembledUnit, read_assembled, stream_file
from tokshard.text.tokenize.counts import UnitCounts
from tokshard.text.tokenize.limits import Limits
from tokshard.text.tokenize.part import OutputLayout, PartHeader, PartWriter, UnitKey, part_headers

if TYPE_CHECKING:
    from tokshard.text.corpus.units import Unit

ALL_ENCODERS = frozenset({"reference", "fast"})
# Records that are passed over while an input is decompressed: their bytes are in no digest.
_NOT_DIGESTED = frozenset({"too-long", "corrupt-stream"})


def finished_units(directory: str) -> list[PartHeader]:
    """Return the finished units of a work directory: assembled ones up to the last checkpoint, and parts.

    The unit in which a limit was reached is not among them: only a prefix of it was assembled.
    """
    assembled = (unit for units, _ in read_assembled(directory, ALL_ENCODERS) for unit in units)
    found = {unit.header.key: unit.header for unit in assembled if not unit.is_cut}
    found |= {header.key: header for header in part_headers(os.path.join(directory, "parts"))}
    return [found[key] for key in sorted(found)]


def fitting_units(directory: str, earlier: BuildPlan, plan: BuildPlan) -> set[UnitKey]:
    """Return the finished units of a work directory that a run of another plan would make again.

    Args:
        directory: The work directory.
        earlier: Its plan.
        plan: A plan with the same tokenizer and options, limits excepted.
    """
    options = plan.options
    if not isinstance(options, TokenizeParameters) or not earlier.has_units_of(plan):
        return set()
    wanted: dict[int, dict[int, PartHeader]] = defaultdict(dict)
    for header in finished_units(directory):
        wanted[header.file][header.unit] = header
    fitting: set[UnitKey] = set()
    for number, headers in wanted.items():
        was, now = (
            inputs[number] if number < len(inputs) else None for inputs in (earlier.inputs, plan.inputs)
        )
        if was is None or now is None or was.path != now.path or not isinstance(now, TextInput):
            continue
        same = headers.keys() if was == now else _same_units(number, now, headers, options)
        fitting |= {UnitKey(number, index) for index in same}
    return fitting


def _same_units(
    number: int, source: TextInput, headers: Mapping[int, PartHeader], options: TokenizeParameters
) -> Iterator[int]:
    contents = _contents(number, source, options, lambda index: index in headers)
    with closing(contents):
        for content in islice(contents, len(headers)):
            header = headers[content.index]
            counts = header.counts
            found = _Content(
                header.unit,
                header.last,
                header.content_xxh3_128,
                header.first_offset,
                counts.rejected,
                counts.excluded or {},
            )
            if content == found and content.is_digested(source):
                yield content.index


def has_same_content(prefix: str, manifest: Manifest, plan: BuildPlan) -> bool:
    """Tell whether the inputs of a plan have the content from which an output was made.

    Args:
        prefix: The output, made by a plan that differs only in times and versions of inputs.
        manifest: Its manifest.
        plan: The plan.
    """
    digests: dict[int, dict[int, str]] = defaultdict(dict)
    for unit in read_records(UnitRecord, file_of(prefix, UNITS_NAME)):
        digests[unit.input][unit.unit] = unit.content_xxh3_128
    return all(
        (was.mtime_ns == now.mtime_ns and was.version == now.version)
        or _is_same(number, now, digests[number], manifest)
        for number, (was, now) in enumerate(zip(manifest.inputs, plan.inputs, strict=True))
        if isinstance(now, TextInput)
    )


def _is_same(number: int, source: TextInput, digests: Mapping[int, str], manifest: Manifest) -> bool:
    if not isinstance(manifest.options, TokenizeParameters):
        return False
    is_partial = manifest.inputs[number].partial
    if is_partial and not digests:
        return True
    count = 0
    contents = _contents(number, source, manifest.options, lambda _: True)
    with closing(contents):
        for content in contents:
            if is_partial and count == len(digests):
                break
            if digests.get(content.index) != content.xxh3_128 or not content.is_digested(source):
                return False
            count += 1
    return count == len(digests)


@dataclass(frozen=True, slots=True)
class _Content:
    index: int
    last: bool
    xxh3_128: str
    first_offset: int | None
    rejected: Mapping[str, int]
    excluded: Mapping[str, int]

    def is_digested(self, source: TextInput) -> bool:
        found = self.rejected.keys() | self.excluded.keys()
        return source.compression == "none" or _NOT_DIGESTED.isdisjoint(found)


def _contents(
    number: int, source: TextInput, options: TokenizeParameters, wanted: Callable[[int], bool]
) -> Generator[_Content, None, None]:
    # Ends early where the input cannot be read: nothing of the rest fits.
    if source.format != "jsonl":  # the digest of a table ignores nulls and the boundaries of texts and rows
        return
    file = CorpusFile(
        source.path, source.size_bytes, source.mtime_ns, source.format, source.compression, source.version
    )
    with scratch_directory() if file.is_stream else nullcontext("") as scratch:
        try:
            units: Iterator[Unit] = (
                stream_units(
                    number,
                    file,
                    options.unit_size,
                    options.max_document_bytes,
                    scratch,
                    skip=lambda index: not wanted(index),
                )
                if file.is_stream
                else (unit for unit in plan_units(number, file, options.unit_size) if wanted(unit.index))
            )
            for unit in units:
                yield _content_of(unit, options)
        except InputError:
            return


def _content_of(unit: Unit, options: TokenizeParameters) -> _Content:
    import xxhash

    state = xxhash.xxh3_128()
    first_offset: int | None = None
    rejected: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    for batch in read_documents(
        unit,
        options.fields,
        max_document_bytes=options.max_document_bytes,
        selection=recorded(RecordSelection, options),
    ):
        state.update(batch.raw)
        if first_offset is None:
            first_offset = batch.first_offset
        rejected.update(record.reason for record in batch.rejected)
        excluded.update(batch.excluded)
    if isinstance(unit, LineUnit) and unit.temporary:
        syscalls.unlink(unit.path)
    digest = state.hexdigest()
    return _Content(unit.index, unit.last, digest, first_offset, dict(rejected), dict(excluded))


def keep_only(directory: str, fitting: Collection[UnitKey], options: TokenizeParameters) -> None:
    """Leave in a work directory only the units that fit; a crash leaves more of them, but loses none.

    The assembly goes back to the last checkpoint before a unit that does not fit, and before a limit.
    """
    checkpoints = list(read_assembled(directory, ALL_ENCODERS))
    parts = os.path.join(directory, "parts")
    kept = journal_bytes = 0
    limits = Limits(options.limit, options.max_tokens)
    layout = OutputLayout.of(options)
    counts = UnitCounts.none(layout.outputs, layout.splits)
    for units, checkpoint in checkpoints:
        counts = sum((unit.header.counts for unit in units), counts)
        if any(unit.header.key not in fitting for unit in units) or not limits.allow(counts):
            break
        kept += len(units)
        journal_bytes = checkpoint.journal_bytes
    assembled = [unit for units, _ in checkpoints for unit in units]
    if kept < len(assembled):
        _make_parts(directory, assembled, kept, fitting, options)
    journal = AppendFile(os.path.join(directory, JOURNAL), journal_bytes)
    try:
        journal.sync()
    finally:
        journal.close()
    for name in os.listdir(parts):
        key = UnitKey.of_part(name)
        if key is not None and key not in fitting:
            syscalls.unlink(os.path.join(parts, name))
    syscalls.fsync_directory(parts)


def _make_parts(
    directory: str,
    assembled: list[AssembledUnit],
    first: int,
    fitting: Collection[UnitKey],
    options: TokenizeParameters,
) -> None:
    layout = OutputLayout.of(options)
    streams = layout.streams
    paths = {stream: os.path.join(directory, stream_file(stream)) for stream in streams}
    lines_before = 0
    begins = dict.fromkeys(streams, 0)
    with open_file(paths["rejected"]) as rejected:
        for number, unit in enumerate(assembled):
            header = unit.header
            itemsize = np.dtype(options.dtype).itemsize
            sizes = {stream: _stream_bytes(stream, header.counts, layout, itemsize) for stream in streams}
            records = [
                parse_line(RejectionRecord, line, paths["rejected"], 1)
                for line in islice(rejected, header.counts.rejected_total)
            ]
            if number >= first and header.key in fitting:
                path = os.path.join(directory, "parts", header.key.part_name)
                with PartWriter(path, streams) as part:
                    for stream in streams:
                        for chunk in _range_chunks(paths[stream], begins[stream], sizes[stream]):
                            part.write(stream, chunk)
                    part.write_rejected(
                        RejectedRecord(
                            record.offset,
                            record.line - lines_before,
                            record.reason,
                            record.detail,
                            record.excerpt,
                        )
                        for record in records
                    )
                    part.finish(header)
            for stream in streams:
                begins[stream] += sizes[stream]
            lines_before = 0 if header.last else lines_before + header.counts.lines


def _stream_bytes(stream: str, counts: UnitCounts, layout: OutputLayout, itemsize: int) -> int:
    kind, _, k = stream.partition(".")
    if kind == "rejected":
        return 0  # written from its records
    of_output = kind in {"tokens", "lengths", "sequences"}
    split = counts.split(layout.split_of(int(k)) if of_output else int(k))
    if kind == "offsets":
        return 8 * split.documents
    if kind == "sequences":
        return 4 * split.documents
    field = counts.fields[int(k)]
    return 4 * field.sequences if kind == "lengths" else itemsize * field.tokens


def _range_chunks(path: str, begin: int, size: int) -> Iterator[bytes]:
    with open_file(path) as file:
        file.seek(begin)
        while size and (chunk := file.read(min(size, READ_BYTES))):
            size -= len(chunk)
            yield chunk
    if size:
        raise IntegrityError(f"{path} is {size} bytes shorter than its journal records", path=path)
