"""The assembly of a run: parts appended in order to the streams of the outputs, which become datasets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.codec import TOOL
from tokshard.dataset.concatenate import (
    TEXT_STREAMS,
    FileRange,
    StreamName,
    input_records,
    stage_manifest,
)
from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    DatasetRecord,
    Manifest,
)
from tokshard.dataset.outputs import Manifests
from tokshard.dataset.provenance import ORIGIN, with_lines_before
from tokshard.dataset.records import RejectionRecord, UnitRecord, parse_line, read_records, to_line
from tokshard.dataset.run import Run
from tokshard.errors import InputError, IntegrityError
from tokshard.storage import syscalls
from tokshard.storage.digest import UNSEALED, sealed
from tokshard.storage.reading import iter_blocks, open_file
from tokshard.text.corpus.hints import hint_for
from tokshard.text.corpus.rejection import RejectedRecord, top_reasons
from tokshard.text.tokenize.job import TokenizeJob, bad_record
from tokshard.text.tokenize.limits import Limits, cut_part
from tokshard.text.tokenize.part import (
    AppendedUnit,
    OutputLayout,
    PartHeader,
    PartReader,
    PartWriter,
    UnitKey,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokshard.storage.syscalls import Buffer

CHECKPOINT_BYTES = 256 << 20
CHECKPOINT_UNITS = 256


@dataclass(frozen=True, slots=True)
class EncodedOutputs:
    """The outputs of a run.

    Attributes:
        is_found: Whether they existed already.
        resumed: Units that an earlier run had finished.
        encoded_bytes: Bytes of text that this run encoded.
        encoded_tokens: Tokens of this text.
    """

    manifests: Manifests
    is_found: bool = False
    resumed: int = 0
    encoded_bytes: int = 0
    encoded_tokens: int = 0


class Assembly:
    """The streams of one run.

    Args:
        job: The job.
        run: Its work directory.

    Attributes:
        next: The next unit.
        is_full: Whether a limit is reached, so that no unit may follow.
        is_damaged: Whether files differed from the journal, so that units are done again.
        others: Names of the units of other or changed inputs that were appended, and are removed.
        units: The units that were appended.
        documents: Their documents.
        tokens: Their tokens, all outputs together.
        input_bytes: Their on-disk bytes.
    """

    def __init__(self, job: TokenizeJob, run: Run[AppendedUnit]) -> None:
        self._job = job
        self._run = run
        self._layout = OutputLayout.of(job.parameters)
        self._limits = Limits(job.parameters.limit, job.parameters.max_tokens)
        self._streams = TEXT_STREAMS + ((PROVENANCE_NAME,) if job.parameters.provenance else ())
        self.next = UnitKey(0, 0)
        self.is_full = False
        self.units = self.documents = self.tokens = self.input_bytes = 0
        self._rejected = 0
        self._advice = ""
        self._lines_of_input = 0
        self._uncovered: list[str] = []
        self._uncovered_bytes = 0
        self._earlier = [NO_COUNTS] * self._layout.outputs
        self.others: set[str] = set()
        self.is_damaged = run.open(
            [self._streams] * self._layout.outputs, self._continue_with, self._return_to_parts
        )
        for output, counts in zip(run.streams, self._earlier, strict=True):
            output.counts = counts

    def check_policy(self) -> None:
        """Raise InputError if an earlier run has appended more rejected records than the policy allows."""
        limit = self._job.error_policy.limit
        if limit is None or self._rejected <= limit:
            return
        path = os.path.join(self._run.directory, f"0.{REJECTED_NAME}")
        with open_file(path) as lines:
            line = next(itertools.islice(lines, limit, None))
        found = parse_line(RejectionRecord, line, path, limit + 1)
        raise self._job.error_policy.refuse(found.input, found.line, _rejected_record(line))

    def append(self, part: PartReader) -> None:
        """Append the part of the next unit.

        Raises:
            BadRecordError: It has a rejected record that the policy does not allow. Nothing of the part
                is appended, and the part stays.
            UsageError: The limits allow no document.
            IntegrityError: The part is damaged, or of another unit.
        """
        job, header = self._job, part.header
        name = job.files[self.next.file].path
        if header.name != job.part_names.of(self.next):
            raise IntegrityError(f"{part.path} is not the part of unit {self.next.index} of {name}")
        cut = None
        if self._limits.end_in(self.documents + header.documents, self.tokens + header.tokens):
            cut = cut_part(
                part,
                self._limits,
                (self.documents, self.tokens),
                job.parameters,
                name=name,
                unknown_id=job.tokenizer.unknown_id,
                template_ids=job.template_ids,
            )
        rejected = [record for record in part.rejected() if cut is None or record.offset < cut.end]
        self._check_policy(rejected)
        self._advice = self._advice or next((record.hint for record in rejected if record.hint), "")
        counts = header.counts if cut is None else cut.counts
        digests = (
            tuple(part.digest(f"tokens.{k}") for k in range(len(counts))) if cut is None else cut.digests
        )
        lines = b"".join(map(partial(self._rejected_line, name), rejected))
        for k, output in enumerate(self._run.streams):
            unit = UnitRecord(
                input=self.next.file,
                unit=self.next.index,
                content_xxh3_128=header.content_xxh3_128,
                tokens_xxh3_128=digests[k],
                counts=counts[k],
            )
            piece = _PartPiece(
                part,
                split=self._layout.split_of(k),
                k=k,
                dtype=job.parameters.dtype,
                unit=unit,
                rejected=lines,
                provenance=job.parameters.provenance,
                lines_before=self._lines_of_input,
            )
            output.append(piece)
            self._uncovered_bytes += piece.tokens_bytes
        appended = AppendedUnit(
            header if cut is None else replace(header, counts=counts), digests, True if cut else None
        )
        self._run.record(appended)
        self._advance(appended)
        self._uncovered.append(part.path)
        if len(self._uncovered) >= CHECKPOINT_UNITS or self._uncovered_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Force everything that was appended to the disk, and remove its parts."""
        self._run.checkpoint()
        for path in self._uncovered:
            syscalls.unlink(path)
        self._uncovered = []
        self._uncovered_bytes = 0

    def stage(self) -> Manifests:
        """Write the other files of all outputs into the work directory; return the manifests.

        Raises:
            InputError: Every record was rejected.
        """
        self._check_documents()
        self.checkpoint()
        job, parameters = self._job, self._job.parameters
        manifests = []
        for k, (split, field) in enumerate(parameters.outputs):
            output = self._run.streams[k]
            manifest = sealed(
                Manifest(
                    tool=TOOL,
                    fingerprint=job.build.fingerprint,
                    dataset=DatasetRecord(
                        dtype=parameters.dtype, multimodal=False, field=field, units=self.units, split=split
                    ),
                    counts=output.counts,
                    files=output.finish(dtype=parameters.dtype),
                    tokenizer=job.build.tokenizer,
                    options=parameters,
                    inputs=input_records(
                        job.files, output.units(), end=self.next.file if self.is_full else None
                    ),
                    tokenizer_path=job.tokenizer.path,
                    hub_datasets=job.hub_datasets,
                    seal=UNSEALED,
                )
            )
            stage_manifest(self._run.directory, manifest, k=k)
            manifests.append(manifest)
        return tuple(manifests)

    def refuse(self, record: RejectedRecord) -> InputError:
        """Return the error for a rejected record of the next unit."""
        line = self._lines_of_input + record.line
        return self._job.error_policy.refuse(self._job.files[self.next.file].path, line, record)

    def _check_policy(self, rejected: Sequence[RejectedRecord]) -> None:
        if (limit := self._job.error_policy.limit) is None:
            return
        allowed = max(0, limit - self._rejected)
        if len(rejected) > allowed:
            raise self.refuse(rejected[allowed])

    def _check_documents(self) -> None:
        if self.documents or not self._rejected:
            return
        path = os.path.join(self._run.directory, f"0.{REJECTED_NAME}")
        first = next(read_records(RejectionRecord, path))
        record = replace(_rejected_record(to_line(first)), hint=self._advice)
        counts = self._run.streams[0].counts
        raise InputError(
            f"every record was rejected ({top_reasons(counts.rejected)}); the first is "
            f"{bad_record(first.input, first.line, record).message}",
            hint=hint_for(first.input, first.line, record, skips=True),
            reason=first.reason,
        )

    def _rejected_line(self, name: str, record: RejectedRecord) -> bytes:
        line = self._lines_of_input + record.line
        return to_line(
            RejectionRecord(name, line, record.offset, record.reason, record.detail, record.excerpt)
        )

    def _continue_with(self, units: Sequence[AppendedUnit]) -> bool:
        """Advance by the units of a checkpoint if they are the next ones of this run."""
        key, files = self.next, len(self._job.files)
        for unit in units:
            is_ours = key.file < files and unit.header.name == self._job.part_names.of(key)
            if not is_ours or unit.header.encoder not in self._job.accepted_encoders:
                return False
            key = key.following(last=unit.header.last)
        for unit in units:
            self._earlier = [
                so_far + counts for so_far, counts in zip(self._earlier, unit.header.counts, strict=True)
            ]
            self._advance(unit)
        return True

    def _advance(self, unit: AppendedUnit) -> None:
        header = unit.header
        self.units += 1
        self.documents += header.documents
        self.tokens += header.tokens
        self._rejected += header.counts[0].rejected_total
        self.is_full = unit.is_cut is True or self._limits.are_reached(self.documents, self.tokens)
        self.input_bytes += header.input_bytes
        self.next = self.next.following(last=header.last)
        self._lines_of_input = 0 if header.last else self._lines_of_input + header.counts[0].lines

    def _return_to_parts(self, units: Sequence[AppendedUnit], sizes: Mapping[str, int]) -> None:
        """Make parts of units that were appended, but do not follow those that stay.

        Args:
            units: The units after those that stay, as far as they are intact.
            sizes: The sizes of the streams before them.
        """
        names = {unit.header.name for unit in units}
        self.others = {name for name in names if self._job.part_names.key(name) is None}
        if not self._job.parameters.provenance:  # the origins of documents were not appended
            return
        directory, begins = self._run.directory, dict(sizes)
        lines_of_input = self._lines_of_input
        with open_file(os.path.join(directory, f"0.{REJECTED_NAME}")) as rejected:
            rejected.seek(begins.get(f"0.{REJECTED_NAME}", 0))
            for unit in units:
                header = unit.header
                lines = list(itertools.islice(rejected, header.counts[0].rejected_total))
                ranges = [found for k in range(self._layout.outputs) for found in self._streams_of(header, k)]
                if header.name not in self.others and not unit.is_cut:
                    with PartWriter(os.path.join(self._run.parts, header.name), self._layout.streams) as part:
                        for stream, name, size in ranges:
                            begin = begins.get(name, 0)
                            for block in iter_blocks(os.path.join(directory, name), begin, begin + size):
                                is_origins = stream.startswith("origins")
                                content = with_lines_before(block, -lines_of_input) if is_origins else block
                                part.write(stream, content)
                        part.write_rejected(
                            replace(record, line=record.line - lines_of_input)
                            for record in map(_rejected_record, lines)
                        )
                        part.finish(header)
                for _, name, size in ranges:
                    begins[name] = begins.get(name, 0) + size
                lines_of_input = 0 if header.last else lines_of_input + header.counts[0].lines

    def _streams_of(self, header: PartHeader, k: int) -> Iterator[tuple[str, str, int]]:
        """Yield the streams of an output: their names in a part, the files in the run, the sizes in bytes."""
        counts, split = header.counts[k], self._layout.split_of(k)
        itemsize = np.dtype(self._job.parameters.dtype).itemsize
        yield f"tokens.{k}", f"{k}.bin", itemsize * counts.tokens
        yield f"lengths.{k}", f"{k}.lengths", 4 * counts.sequences
        yield f"sequences.{k}", f"{k}.sequences", 4 * counts.documents
        if self._job.parameters.provenance and k == self._layout.outputs_of(split)[0]:
            yield f"origins.{split}", f"{k}.{PROVENANCE_NAME}", ORIGIN.itemsize * counts.documents


class _PartPiece:
    """The documents of a part in one output, as far as a limit allows.

    Args:
        part: The part.
        split: The split of the output.
        k: The output.
        dtype: The dtype of the tokens.
        unit: The unit, with the counts of the output.
        rejected: The lines of the rejected records.
        provenance: Whether the output has the origins of its documents.
        lines_before: The lines of the input before the unit.
    """

    def __init__(
        self,
        part: PartReader,
        *,
        split: int,
        k: int,
        dtype: str,
        unit: UnitRecord,
        rejected: bytes,
        provenance: bool,
        lines_before: int,
    ) -> None:
        self.counts = counts = unit.counts
        self._part = part
        self._lines_before = lines_before
        self._lines: tuple[tuple[StreamName, bytes], ...] = (
            (REJECTED_NAME, rejected),
            (UNITS_NAME, to_line(unit)),
        )
        self.tokens_bytes = np.dtype(dtype).itemsize * counts.tokens
        self._sizes: list[tuple[StreamName, str, int]] = [
            ("bin", f"tokens.{k}", self.tokens_bytes),
            ("lengths", f"lengths.{k}", 4 * counts.sequences),
            ("sequences", f"sequences.{k}", 4 * counts.documents),
        ]
        if provenance:
            self._sizes.append((PROVENANCE_NAME, f"origins.{split}", ORIGIN.itemsize * counts.documents))

    def streams(self) -> Iterator[tuple[StreamName, Buffer | FileRange]]:
        """Yield the chunks of all streams, and check the digests of those of the part."""
        for name, stream, left in self._sizes:
            for chunk in self._part.chunks(stream):
                content = chunk[:left]
                left -= len(content)  # noqa: PLW2901
                is_origins = name == PROVENANCE_NAME
                yield name, with_lines_before(content, self._lines_before) if is_origins else content
        yield from self._lines


def _rejected_record(line: bytes) -> RejectedRecord:
    found = parse_line(RejectionRecord, line, REJECTED_NAME, 1)
    return RejectedRecord(found.offset, found.line, found.reason, found.detail, found.excerpt)
