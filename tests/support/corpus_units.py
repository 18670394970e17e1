"""Reading whole inputs for tests, and the slow twin that says what should come out."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import sys
from dataclasses import dataclass, field

from tokshard.text.corpus import planning, record_format
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units, stream_units
from tokshard.text.corpus.rejection import REASONS
from tokshard.text.corpus.selection import ALL_RECORDS
from tokshard.text.corpus.values import RecordFields

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
}
CODECS = tuple(COMPRESS)
LIMIT = 64_000_000


@dataclass
class Reading:
    """All that was read of an input: documents as (offset, texts), rejected as (offset, line, reason)."""

    documents: list = field(default_factory=list)
    rejected: list = field(default_factory=list)
    details: list = field(default_factory=list)
    lines: int = 0
    blank_lines: int = 0
    raw: bytes = b""

    def add_unit(self, batches):
        lines_before = self.lines
        for batch in batches:
            assert batch.records == batch.documents + len(batch.rejected)
            assert batch.lines == batch.records + batch.blank_lines
            self.documents += documents_of(batch)
            for record in batch.rejected:
                assert record.reason in REASONS
                assert len(record.excerpt) <= 60
                self.rejected.append((record.offset, lines_before + record.line, record.reason))
                self.details.append(record.detail)
            self.lines += batch.lines
            self.blank_lines += batch.blank_lines
            self.raw += batch.raw

    @property
    def result(self):
        return self.documents, self.rejected, self.lines, self.blank_lines


def read_documents(unit, fields, *, selection=ALL_RECORDS, **options):
    """Yield the batches of a unit."""
    names = RecordFields.parse(fields, selection.holdout_key)
    return planning.read_documents(unit, record_format.Reading(names, selection=selection, **options))


def documents_of(batch):
    """Return [(offset, (value of each field, ...)), ...]; a value is a list of sequences."""
    columns = []
    for texts, given in zip(batch.texts, batch.sequences_per_document, strict=True):
        counts = [1] * batch.documents if given is None else given.tolist()
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        columns.append([tuple(texts[end - n : end]) for n, end in zip(counts, ends, strict=True)])
        assert len(texts) == sum(counts)
    return list(zip(batch.origins["offset"].tolist(), zip(*columns, strict=True), strict=True))


def units_of(path, codec, directory, *, unit_bytes=1 << 20, limit=LIMIT, chunk_bytes=1 << 20, skip=None):
    status = os.stat(path)
    file = CorpusFile(
        path=str(path),
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        format="jsonl",
        compression=codec,
    )
    if not file.is_stream:
        return plan_units(0, file, unit_bytes)
    skip = skip or (lambda index: False)
    return stream_units(0, file, unit_bytes, limit, str(directory), skip=skip, chunk_bytes=chunk_bytes)


def read_units(units, *, fields=("text",), batch_bytes=1 << 20, limit=LIMIT):
    reading = Reading()
    for sent in units:
        unit = pickle.loads(pickle.dumps(sent))  # as it crosses processes
        reading.add_unit(read_documents(unit, fields, batch_bytes=batch_bytes, max_document_bytes=limit))
        if getattr(unit, "temporary", False):
            os.unlink(unit.path)
    return reading


def read_data(data, codec, directory, *, fields=("text",), batch_bytes=1 << 20, limit=LIMIT, **options):
    """Write ``data`` as ``codec`` and read it."""
    path = directory / "input"
    path.write_bytes(COMPRESS[codec](data))
    units = units_of(path, codec, directory, limit=limit, **options)
    return read_units(units, fields=fields, batch_bytes=batch_bytes, limit=limit)


def twin(data, limit=LIMIT):
    """Say what reading the field ``text`` gives: documents, rejected (offset, line), lines, blank lines."""
    documents, rejected, offset, blank_lines = [], [], 0, 0
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        body = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
        if body.strip() == b"" and len(line) <= limit:
            blank_lines += 1
        elif len(line) <= limit and (text := twin_text(body)) is not None:
            documents.append((offset, ((text,),)))
        else:
            rejected.append((offset, number))
        offset += len(line) + 1
    return documents, rejected, len(lines), blank_lines


def twin_text(line):
    try:
        text = json.loads(line.decode("utf-8"))["text"]
        text.encode("utf-8")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return text if isinstance(text, str) else None


def without_reasons(reading):
    documents, rejected, lines, blank_lines = reading.result
    return documents, [(offset, line) for offset, line, _ in rejected], lines, blank_lines
