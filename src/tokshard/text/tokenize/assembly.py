"""The assembly: parts appended, in unit order, to the streams that become the output files.

The work directory of a run holds, for each output ``K``, the append-only files ``K.bin`` (tokens),
``K.lengths`` (i32) and ``K.sequences`` (u32), for each split ``S`` ``S.offsets`` (i64), and for all outputs
together ``rejected.jsonl`` and the journal ``units.jsonl``. The journal has one line for each assembled unit,
and a *checkpoint* line from time to time, which says how long each file was when everything before it had
been forced to the disk, and has a digest of all of them but ``K.bin``, whose digests are in the manifest. A
run continues from the last checkpoint that the files agree with; the parts of later units are still there,
because a part is removed only after the checkpoint that covers it. Each line holds its own digest: a run
continues from the last checkpoint before a damaged line, and repeats what came after.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tokshard.core.codec import TOOL, Record, Xxh3, decode, encode
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    DatasetFiles,
    DatasetRecord,
    EncoderRecord,
    InputRecord,
    Manifest,
    RecordCounts,
    TokenFileRecord,
    UnrepresentedText,
)
from tokshard.dataset.plan import BuildPlan, SplitName, TextInput, TokenizeParameters
from tokshard.dataset.records import RejectionRecord, UnitRecord, parse_line, read_records, to_line
from tokshard.dataset.workdir import (
    file_chunks,
    stage_chunks,
    stage_file,
    stage_manifest,
)
from tokshard.errors import BadRecordError, InputError, IntegrityError
from tokshard.storage import syscalls
from tokshard.storage.digest import UNSEALED, FileRecord, content_digest, piecewise_digest, sealed
from tokshard.storage.files import AppendFile, DigestingWriter
from tokshard.storage.journal import Checkpoint, Journal, read_checkpoints, read_entries
from tokshard.storage.reading import open_file
from tokshard.text.corpus.hints import hint_for
from tokshard.text.corpus.rejection import RejectedRecord, top_reasons
from tokshard.text.tokenize.counts import UnitCounts
from tokshard.text.tokenize.limits import LimitedParts, PartPrefix
from tokshard.text.tokenize.part import PartHeader, PartReader, UnitKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

JOURNAL = "units.jsonl"
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_UNITS = 256
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """Policy for rejected records.

    Attributes:
        max_errors: With ``skip``: more rejected records than this are an error; None for no limit.
    """

    skip: bool
    max_errors: int | None

    @property
    def limit(self) -> int | None:
        """Largest tolerable number of rejected records; None for any."""
        return self.max_errors if self.skip else 0

    def refuse(self, path: str, line: int | None, record: RejectedRecord) -> InputError:
        """Return the error for a rejected record that is one too many; see :class:`BadRecordError`."""
        error = _bad_record(path, line, record)
        if not self.skip:
            return error
        return InputError(
            f"--max-errors {self.max_errors} exceeded; the next rejected record is {error.message}",
            hint="raise --max-errors, or fix the input; finished work is kept",
        )


def _bad_record(path: str, line: int | None, record: RejectedRecord) -> BadRecordError:
    return BadRecordError(
        path,
        line=line,
        offset=record.offset,
        reason=record.reason,
        detail=record.detail,
        excerpt=record.excerpt,
        hint=hint_for(path, line, record),
    )


@dataclass(frozen=True, slots=True)
class AssembledUnit(Record):
    """A unit in the journal of the work directory."""

    header: PartHeader
    tokens_xxh3_128: tuple[Xxh3, ...]
    is_cut: Literal[True] | None = None


class Assembly:
    """The streams of one run.

    Args:
        parts: The parts as far as the limits of the run allow.
        input_names: Names of the inputs, for errors and for the list of rejected records.
        accepts: The encoders whose units may stay.

    Attributes:
        next: The next unit.
        is_full: Whether a limit is reached, so that no unit may follow.
        is_damaged: Whether files differed from the journal, or it is of an older version, so that units
            are done again.
    """

    def __init__(
        self,
        directory: str,
        *,
        parts: LimitedParts,
        input_names: Sequence[str],
        policy: ErrorPolicy,
        accepts: frozenset[str],
    ) -> None:
        self._directory = directory
        self._input_names = input_names
        self._policy = policy
        self._layout = parts.layout
        self._streams = {name: stream_file(name) for name in self._layout.streams}
        self._parts = parts
        self.next = UnitKey(0, 0)
        self.is_full = False
        self.counts = UnitCounts.none(self._layout.outputs, self._layout.splits)
        self.input_bytes_done = 0
        self._advice = ""
        self._lines_of_file = 0
        self._uncommitted: list[str] = []
        self._covered: list[str] = []
        self._uncommitted_bytes = 0
        self.is_damaged = False
        sizes: dict[str, int] = {}
        journal_bytes = 0
        self._digests = _StreamDigests(directory, self._streams.values())
        for units, checkpoint in read_assembled(directory, accepts):
            digests = self._digests.at(checkpoint, sizes)
            if digests is None:
                self.is_damaged = True
                break
            self._digests = digests
            for unit in units:
                self._advance(unit)
            sizes, journal_bytes = checkpoint.sizes, checkpoint.journal_bytes
        self._journal = Journal(os.path.join(directory, JOURNAL), journal_bytes)
        self._files = {
            name: AppendFile(os.path.join(directory, name), sizes.get(name, 0))
            for name in self._streams.values()
        }

    def check_policy(self) -> None:
        """Raise InputError if an earlier run has assembled more rejected records than the policy allows."""
        limit = self._policy.limit
        if limit is None or self.counts.rejected_total <= limit:
            return
        path = os.path.join(self._directory, self._streams["rejected"])
        with open_file(path) as lines:
            found = parse_line(RejectionRecord, next(itertools.islice(lines, limit, None)), path, limit + 1)
        record = RejectedRecord(found.offset, found.line, found.reason, found.detail, found.excerpt)
        raise self._policy.refuse(found.input, found.line, record)

    def append(self, part: PartReader) -> None:
        """Append the part of the next unit.

        Raises:
            BadRecordError: It has a rejected record that the policy does not allow. Nothing of the part
                is kept in the assembly, and the part stays.
            UsageError: The limits allow no document.
            IntegrityError: The part is damaged, or of another unit.
        """
        if self._journal.is_settled:
            self._settle()
        if part.unit != self.next:
            raise IntegrityError(f"{part.path} is the part of {part.unit}, not of {self.next}")
        kept = self._parts.within(part, self.counts, self._input_names[part.unit.file])
        self._check_policy(kept)
        for stream, name in self._streams.items():
            if stream != "rejected":
                for chunk in kept.chunks(stream):
                    self._write(name, chunk)
                    self._uncommitted_bytes += len(chunk)
        rejected = list(kept.rejected())
        self._write(self._streams["rejected"], b"".join(map(self._rejected_line, rejected)))
        self._advice = self._advice or next((record.hint for record in rejected if record.hint), "")
        digests = tuple(kept.digest(f"tokens.{k}") for k in range(len(part.header.counts.fields)))
        unit = AssembledUnit(kept.header, digests, True if kept is not part else None)
        self._journal.append(encode(unit))
        self._advance(unit)
        self._uncommitted.append(part.path)
        if len(self._uncommitted) >= CHECKPOINT_UNITS or self._uncommitted_bytes >= CHECKPOINT_BYTES:
            self._begin_checkpoint()

    def _write(self, name: str, content: syscalls.Buffer) -> None:
        self._files[name].write(content)
        self._digests.update(name, content)

    def stage(
        self, plan: BuildPlan, parameters: TokenizeParameters, tokenizer_path: str | None
    ) -> list[Manifest]:
        """Write the files of all outputs into the work directory; return the manifests.

        Raises:
            InputError: Every record was rejected.
        """
        self._check_documents()
        self._begin_checkpoint()
        self._settle()
        directory = self._directory
        rejected_path = os.path.join(directory, "rejected.jsonl")
        manifests = []
        for k, (split_name, field) in enumerate(parameters.outputs):
            split = self._layout.split_of(k)
            counts = self.counts.of_split(split)
            provenance: FileRecord | None = None
            rejected: FileRecord | None = None
            if parameters.provenance:
                chunks = file_chunks(os.path.join(directory, f"{split}.offsets"))
                provenance = stage_chunks(directory, k, PROVENANCE_NAME, chunks)
            if os.path.getsize(rejected_path):
                rejected = stage_chunks(directory, k, REJECTED_NAME, file_chunks(rejected_path))
            files = DatasetFiles(
                bin=TokenFileRecord(
                    os.stat(os.path.join(directory, f"{k}.bin")).st_size,
                    piecewise_digest(unit.tokens_xxh3_128[k] for unit in self.units()),
                ),
                idx=_stage_index(directory, k, counts, parameters.dtype),
                units=stage_chunks(directory, k, UNITS_NAME, _unit_lines(self, k, split)),
                provenance=provenance,
                rejected=rejected,
            )
            manifest = sealed(
                Manifest(
                    tool=TOOL,
                    fingerprint=plan.fingerprint,
                    dataset=_dataset_record(
                        self, k, field, split_name, parameters.dtype, self._unrepresented(k, plan, parameters)
                    ),
                    files=files,
                    tokenizer=plan.tokenizer,
                    options=plan.options,
                    encoder=_encoder_record(self, split),
                    inputs=_input_records(self, plan, split),
                    counts=_record_counts(counts),
                    tokenizer_path=tokenizer_path,
                    hub_datasets=plan.hub_datasets,
                    seal=UNSEALED,
                )
            )
            stage_manifest(directory, k, manifest)
            manifests.append(manifest)
        return manifests

    def _unrepresented(
        self, k: int, plan: BuildPlan, parameters: TokenizeParameters
    ) -> UnrepresentedText | None:
        # Without the tokens that the tokenizer adds to each text.
        counts, identity = self.counts.fields[k], plan.tokenizer
        encoded = counts.unrepresented
        if encoded is None or encoded.unit != "tokens" or identity is None or not parameters.special_tokens:
            return encoded
        added = identity.template_ids
        return UnrepresentedText(
            "tokens",
            encoded.checked - counts.sequences * len(added),
            encoded.count - counts.sequences * added.count(self._parts.unknown_id),
        )

    def _check_documents(self) -> None:
        counts = self.counts
        if counts.documents or not counts.rejected_total:
            return
        path = self._files[self._streams["rejected"]].path
        first = next(read_records(RejectionRecord, path))
        record = RejectedRecord(
            first.offset, first.line, first.reason, first.detail, first.excerpt, self._advice
        )
        raise InputError(
            f"every record was rejected ({top_reasons(counts.rejected)}); the first is "
            f"{_bad_record(first.input, first.line, record).message}",
            hint=hint_for(first.input, first.line, record, skips=True),
            reason=first.reason,
        )

    def _begin_checkpoint(self) -> None:
        # One checkpoint at a time: a disk that is slower than the encoders holds them back, so that at most
        # two checkpoints' worth of data is not on it.
        self._settle()
        self._journal.begin_checkpoint(self._files, self._digests.combined())
        self._covered, self._uncommitted = self._uncommitted, []
        self._uncommitted_bytes = 0

    def _settle(self) -> None:
        self._journal.settle()
        for path in self._covered:
            syscalls.unlink(path)
        self._covered = []

    def units(self) -> Iterator[AssembledUnit]:
        """Yield the assembled units in order."""
        path = os.path.join(self._directory, JOURNAL)
        for entry in read_entries(path):
            yield decode(AssembledUnit, entry, path)

    def documents_of(self, k: int) -> int:
        """Return the number of documents of an output."""
        return self.counts.split(self._layout.split_of(k)).documents

    def refuse(self, record: RejectedRecord) -> InputError:
        """Return the error for a rejected record of the next unit."""
        line = self._lines_of_file + record.line
        return self._policy.refuse(self._input_names[self.next.file], line, record)

    def close(self) -> None:
        """Close all files."""
        self._journal.close()
        for file in self._files.values():
            file.close()

    def _check_policy(self, part: PartReader | PartPrefix) -> None:
        if (limit := self._policy.limit) is None:
            return
        allowed = max(0, limit - self.counts.rejected_total)
        if part.header.counts.rejected_total > allowed:
            raise self.refuse(next(itertools.islice(part.rejected(), allowed, None)))

    def _rejected_line(self, record: RejectedRecord) -> bytes:
        name, line = self._input_names[self.next.file], self._lines_of_file + record.line
        return to_line(
            RejectionRecord(name, line, record.offset, record.reason, record.detail, record.excerpt)
        )

    def _advance(self, unit: AssembledUnit) -> None:
        header = unit.header
        self.counts += header.counts
        self.is_full = unit.is_cut is True or self._parts.limits.are_reached(self.counts)
        self.input_bytes_done += header.input_bytes
        self.next = self.next.following(last=header.last)
        self._lines_of_file = 0 if header.last else self._lines_of_file + header.counts.lines


class _StreamDigests:
    """Running digests of the streams but those of tokens, whose digests are in the journal and the manifest.

    Args:
        names: The names of the files of all streams.
    """

    def __init__(self, directory: str, names: Iterable[str]) -> None:
        from xxhash import xxh3_128

        self._directory = directory
        self._names = tuple(names)
        self._digests = {name: xxh3_128() for name in self._names if not name.endswith(".bin")}

    def update(self, name: str, content: syscalls.Buffer) -> None:
        """Add what is appended to a stream."""
        if name in self._digests:
            self._digests[name].update(content)

    def combined(self) -> str:
        """Return one digest of all streams."""
        return content_digest("".join(digest.hexdigest() for digest in self._digests.values()).encode())

    def at(self, checkpoint: Checkpoint, sizes: Mapping[str, int]) -> _StreamDigests | None:
        """Return the digests at a checkpoint; None if the files are not what was recorded.

        ``sizes``: the sizes of the files at the checkpoint before it, of which these are the digests.
        """
        following = _StreamDigests(self._directory, self._names)
        following._digests = {name: digest.copy() for name, digest in self._digests.items()}
        for name in self._names:
            start, stop = sizes.get(name, 0), checkpoint.sizes.get(name, 0)
            path = os.path.join(self._directory, name)
            try:
                with open_file(path) as file:
                    if os.fstat(file.fileno()).st_size < stop:
                        return None
                    if name in following._digests:
                        file.seek(start)
                        while start < stop and (block := file.read(min(_BLOCK_BYTES, stop - start))):
                            following.update(name, block)
                            start += len(block)
            except FileNotFoundError:
                return None
        return following if following.combined() == checkpoint.files_digest else None


def read_assembled(
    directory: str, accepts: frozenset[str]
) -> Iterator[tuple[list[AssembledUnit], Checkpoint]]:
    """Yield the units up to each checkpoint of the journal in a work directory.

    ``accepts``: the encoders whose units may stay; nothing comes after a unit of another one.
    """
    path = os.path.join(directory, JOURNAL)
    for checkpoint in read_checkpoints(path, accepts=lambda entry: _encoder_of(entry) in accepts):
        yield [decode(AssembledUnit, entry, path) for entry in checkpoint.entries], checkpoint


def _encoder_of(entry: dict[str, Any]) -> Any:
    # None for an entry of another version of tokshard.
    part = entry.get("header")
    return part.get("encoder") if isinstance(part, dict) else None


def stream_file(stream: str) -> str:
    """Return the name of the file in the work directory that a stream of the parts is appended to."""
    kind, _, k = stream.partition(".")
    if not k:  # of all outputs together
        return "rejected.jsonl" if kind == "rejected" else kind
    return f"{k}.bin" if kind == "tokens" else f"{k}.{kind}"


# Staging


def _dataset_record(
    assembly: Assembly,
    k: int,
    field: str,
    split: SplitName | None,
    dtype: str,
    unrepresented: UnrepresentedText | None,
) -> DatasetRecord:
    return DatasetRecord(
        dtype=dtype,
        multimodal=False,
        field=field,
        units=sum(1 for _ in assembly.units()),
        documents=assembly.documents_of(k),
        **{**asdict(assembly.counts.fields[k]), "unrepresented": unrepresented},
        split=split,
    )


def _record_counts(counts: UnitCounts) -> RecordCounts:
    return RecordCounts(
        records=counts.records,
        documents=counts.documents,
        lines=counts.lines,
        blank_lines=counts.blank_lines,
        content_bytes=counts.content_bytes,
        rejected=counts.rejected,
        excluded=counts.excluded,
    )


def _input_records(assembly: Assembly, plan: BuildPlan, split: int) -> tuple[InputRecord, ...]:
    sources = [source for source in plan.inputs if isinstance(source, TextInput)]
    counts = [UnitCounts.none()] * len(sources)
    digests: list[list[str]] = [[] for _ in sources]
    for unit in assembly.units():
        header = unit.header
        counts[header.file] += replace(header.counts.of_split(split), fields=(), splits=None)
        digests[header.file].append(header.content_xxh3_128)
    return tuple(
        InputRecord(
            **asdict(source),
            content_bytes=found.content_bytes,
            pieces_xxh3_128=piecewise_digest(pieces),
            records=found.records,
            documents=found.documents,
            rejected=found.rejected_total,
            blank_lines=found.blank_lines,
            excluded=found.excluded_total or None,
            partial=True if assembly.next.file <= number and assembly.is_full else None,
        )
        for number, (source, found, pieces) in enumerate(zip(sources, counts, digests, strict=True))
    )


def _encoder_record(assembly: Assembly, split: int) -> EncoderRecord:
    documents: dict[str, int] = {}
    uncompared = 0
    for unit in assembly.units():
        made = unit.header.counts.split(split).documents
        documents[unit.header.encoder] = documents.get(unit.header.encoder, 0) + made
        uncompared += len(unit.header.uncompared[split]) if unit.header.uncompared else 0
    return EncoderRecord(documents, assembly.counts.split(split).compared, uncompared or None)


def _unit_lines(assembly: Assembly, k: int, split: int) -> Iterator[bytes]:
    for unit in assembly.units():
        header = unit.header
        counts = header.counts.of_split(split)
        record = UnitRecord(
            input=header.file,
            unit=header.unit,
            content_bytes=counts.content_bytes,
            content_xxh3_128=header.content_xxh3_128,
            lines=counts.lines,
            documents=counts.documents,
            rejected=counts.rejected_total,
            excluded=counts.excluded_total or None,
            sequences=counts.fields[k].sequences,
            tokens=counts.fields[k].tokens,
            tokens_xxh3_128=unit.tokens_xxh3_128[k],
            encoder=header.encoder,
        )
        yield to_line(record)


def _stage_index(directory: str, k: int, counts: UnitCounts, dtype: str) -> FileRecord:
    from tokshard.dataset.index_file import write_index

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=dtype,
            sequence_count=counts.fields[k].sequences,
            document_count=counts.documents,
            lengths=_column(os.path.join(directory, f"{k}.lengths"), "<i4"),
            sequences_per_document=_column(os.path.join(directory, f"{k}.sequences"), "<u4"),
        )

    return stage_file(directory, k, "idx", write)


def _column(path: str, dtype: str) -> Callable[[], Iterator[NDArray[np.generic]]]:
    import numpy as np

    def pieces() -> Iterator[NDArray[np.generic]]:
        for chunk in file_chunks(path):
            yield np.frombuffer(chunk, dtype)

    return pieces
