"""The units of work of a dataset as a table: which documents and lines each has, and what was rejected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.dataset.manifest import REJECTED_NAME, UNITS_NAME, Manifest, file_of
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage.fs import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_COUNTS = ("input", "lines", "documents", "rejected", "content_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class UnitTable:
    """The units of a dataset in order: int64 arrays with one entry for each.

    Attributes:
        inputs: The number of the input.
        lines: Its lines; rows of a table.
        documents: Its documents.
        rejected: Its rejected records.
        blank_lines: Its lines that are no records.
        sizes: Its decompressed bytes.
        first_line: The lines before it in the same input.
        first_byte: The decompressed bytes before it in the same input.
        first_document: The documents before it in the dataset.
        first_rejected: The rejected records before it in the dataset.
    """

    inputs: Integers
    lines: Integers
    documents: Integers
    rejected: Integers
    blank_lines: Integers
    sizes: Integers
    first_line: Integers
    first_byte: Integers
    first_document: Integers
    first_rejected: Integers

    @classmethod
    def read(cls, path_prefix: str, manifest: Manifest) -> Self:
        """Read the units that the manifest of a dataset lists.

        Raises:
            IntegrityError: The file is missing, damaged, or contradicts the manifest.
        """
        path = file_of(path_prefix, UNITS_NAME)
        rows = [[entry.get(name) for name in _COUNTS] for entry in _entries(path)]
        for number, row in enumerate(rows):
            if any(type(count) is not int or not 0 <= count < 2**62 for count in row):
                raise _damaged(path, f"line {number + 1} has no counts")
        table = np.array(rows, dtype=np.int64).reshape(-1, len(_COUNTS)).T
        inputs, lines, documents, rejected, sizes = table
        if (np.diff(inputs) < 0).any() or (inputs >= len(manifest.inputs)).any():
            raise _damaged(path, "its units are not in the order of the inputs")
        # A dataset that was merged without a manifest counts as one unit without lines.
        if ((lines < documents + rejected) & (lines > 0)).any():
            raise _damaged(path, "a unit has fewer lines than records")
        if int(documents.sum()) != manifest.dataset.documents:
            raise _damaged(
                path, f"its units have {documents.sum()} documents, not {manifest.dataset.documents}"
            )
        return cls(
            inputs=inputs,
            lines=lines,
            documents=documents,
            rejected=rejected,
            blank_lines=lines - documents - rejected,
            sizes=sizes,
            first_line=_before_in_input(inputs, lines),
            first_byte=_before_in_input(inputs, sizes),
            first_document=_before(documents),
            first_rejected=_before(rejected),
        )

    def of_input(self, number: int) -> slice:
        """Return the units of an input."""
        first, stop = np.searchsorted(self.inputs, [number, number + 1])
        return slice(int(first), int(stop))

    def lines_of_input(self, units: slice) -> int:
        """Return the lines of an input, given its units."""
        return int(self.first_line[units][-1] + self.lines[units][-1]) if units.stop > units.start else 0

    def bytes_of_input(self, units: slice) -> int:
        """Return the decompressed bytes of an input, given its units."""
        return int(self.first_byte[units][-1] + self.sizes[units][-1]) if units.stop > units.start else 0

    def of_documents(self, documents: Integers) -> Integers:
        """Return the unit of each document, which must exist."""
        return np.searchsorted(self.first_document, documents, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class RejectedRecords:
    """The rejected records of a dataset, in the order of its units.

    Attributes:
        lines: The line of each in its input, from 1; int64.
        offsets: Its byte offset, or its row in a table, from 0; int64.
        reasons: The code of the reason.
    """

    lines: Integers
    offsets: Integers
    reasons: list[str]

    @classmethod
    def read(cls, path_prefix: str, manifest: Manifest) -> Self:
        """Read the rejected records that the manifest of a dataset lists.

        Raises:
            IntegrityError: The file is missing or damaged.
        """
        found: list[tuple[int, int, str]] = []
        if manifest.files.rejected is not None:
            path = file_of(path_prefix, REJECTED_NAME)
            for entry in _entries(path):
                line, offset, reason = entry.get("line"), entry.get("offset"), entry.get("reason")
                if type(line) is not int or type(offset) is not int or not isinstance(reason, str):
                    raise _damaged(path, f"line {len(found) + 1} has no line, offset and reason")
                found.append((line, offset, reason))
        return cls(
            np.array([line for line, _, _ in found], dtype=np.int64),
            np.array([offset for _, offset, _ in found], dtype=np.int64),
            [reason for _, _, reason in found],
        )


def _entries(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open_file(path) as file:
            for line in file:
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise _damaged(path, "a line is no object")
                yield entry
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing, but the manifest lists it", path=path) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, IntegrityError):
            raise
        raise _damaged(path, "a line is not valid JSON") from error


def _before(counts: Integers) -> Integers:
    return np.cumsum(counts) - counts


def _before_in_input(inputs: Integers, counts: Integers) -> Integers:
    before = _before(counts)
    return before - before[np.searchsorted(inputs, inputs)]


def _damaged(path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} is damaged: {problem}", path=path, hint="copy it again from its source, or make it again"
    )
