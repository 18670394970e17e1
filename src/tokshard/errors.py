"""Every error that tokshard raises on purpose, and the exit code of each.

::

    TokshardError                     (abstract)
    ├── UnfinishedError               1   units of a job array that nobody has finished yet
    ├── UsageError, ValueError        2   invalid option or argument
    │   └── MissingExtraError         2   an optional dependency is not installed
    ├── InputError                    3   an input that cannot be read or used
    │   ├── MissingFileError, FileNotFoundError
    │   │                             3   a file that is not there
    │   ├── BadRecordError            3   one record of an input
    │   └── TokenizerError            3   a tokenizer file
    ├── OutputExistsError             4   the output is there already
    ├── ResumeMismatchError           4   an unfinished run was started with other options or inputs
    ├── LockedError                   5   another process writes this output
    ├── IntegrityError, ValueError    6   bytes that contradict each other
    │   └── EncoderMismatchError      6   the fast encoder and the reference disagree
    ├── StorageError, OSError         7   disk full, I/O error, no permission, a store that fails
    ├── WorkerError                   8   a worker process died or hung
    └── Cancelled                   130   stopped by Ctrl-C or a signal (143 for SIGTERM)

An error's text is one sentence that names the file, the place and the value; ``hint`` says what to do.
Where a built-in exception means the same, the error is also one of those, so that library users can
catch what they know.
"""

from __future__ import annotations

import errno
from typing import Any

BAD_RECORD_EXCERPT_CHARACTERS = 60


class TokshardError(Exception):
    """Base of all errors that tokshard raises on purpose.

    Args:
        message: One sentence that names what, where and the value.
        hint: What the user can do next, or None.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UnfinishedError(TokshardError):
    """A run shared by many tasks cannot be assembled yet.

    Args:
        message: One sentence that names what lacks.
        missing: For each input that lacks some: ``input``, its path; ``units``, the numbers of its units;
            and ``open_from``, the first unit of which it is not known whether there is one, or None.
        tasks: The tasks of an array that these units belong to; None if the array is not known.
        hint: What the user can do next.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        missing: tuple[dict[str, Any], ...] = (),
        tasks: tuple[int, ...] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing
        self.tasks = tasks


class UsageError(TokshardError, ValueError):
    """An invalid option or argument."""

    exit_code = 2


class MissingExtraError(UsageError):
    """An optional dependency is required and not installed.

    Args:
        what: The feature that requires it, for example ``"Parquet input"``.
        extra: The name of tokshard's extra that lists it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} requires the extra '{extra}', which is not installed",
            hint=f"pip install {' '.join(_packages_of(extra))}",
        )


def _packages_of(extra: str) -> list[str]:
    # Their own names: tokshard itself may have been installed from a clone or a wheel.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        requirements = requires("tokshard") or []
    except PackageNotFoundError:
        requirements = []
    split = [requirement.partition(";") for requirement in requirements]
    found = [f"'{name.strip()}'" for name, _, marker in split if f"extra == '{extra}'" in marker]
    return found or [f"'tokshard[{extra}]'"]


class InputError(TokshardError):
    """An input that cannot be read or used."""

    exit_code = 3


class MissingFileError(InputError, FileNotFoundError):
    """A file that is not there.

    Args:
        message: One sentence that names the file and what it is needed for.
        path: The file.
        hint: What the user can do next.
    """

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno.ENOENT
        self.filename = path


class BadRecordError(InputError):
    """One record of an input that cannot become a document.

    Args:
        path: The input as the user named it.
        line: The 1-based line (or row) number, or None where it is not known.
        offset: The byte offset of the record in the decompressed input (or the 0-based row).
        reason: A stable code, see :mod:`tokshard.corpus.records`.
        detail: What exactly is wrong.
        excerpt: The beginning of the record, already cut.
        hint: What the user can do next.
    """

    def __init__(
        self,
        path: str,
        *,
        line: int | None,
        offset: int,
        reason: str,
        detail: str,
        excerpt: str,
        hint: str | None = None,
    ) -> None:
        where = f"{path}:{line}" if line is not None else path
        super().__init__(f"{where} (byte {offset}): {reason}: {detail}: {excerpt!r}", hint=hint)
        self.path = path
        self.line = line
        self.offset = offset
        self.reason = reason
        self.detail = detail
        self.excerpt = excerpt


class TokenizerError(InputError):
    """A tokenizer file that cannot be read or used."""


class OutputExistsError(TokshardError):
    """The output exists already."""

    exit_code = 4


class ResumeMismatchError(TokshardError):
    """An unfinished run cannot be resumed because its inputs or options differ from those given now.

    Args:
        differences: One phrase for each thing that differs.
    """

    exit_code = 4

    def __init__(self, message: str, *, differences: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.differences = differences


class LockedError(TokshardError):
    """Another process is writing this output."""

    exit_code = 5


class IntegrityError(TokshardError, ValueError):
    """Bytes on disk that contradict each other.

    Args:
        message: One sentence that names the file and the value.
        path: The file.
        field: The field of the format, for example ``"sequence_lengths"``, or None.
        offset: The byte offset in the file, or None.
        hint: What the user can do next.
    """

    exit_code = 6

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.field = field
        self.offset = offset


class EncoderMismatchError(IntegrityError):
    """The fast encoder and the reference encoder give different tokens for the same text."""


class StorageError(TokshardError, OSError):
    """The file system or store refused: disk full, quota, I/O error, no permission, no answer.

    Args:
        action: What was tried, for example ``"write"``.
        path: The file, or the URL of an object.
        cause: The error of the operating system, or what a store answered in the form of one.
        hint: What the user can do next; by default what fits the cause.
    """

    exit_code = 7

    def __init__(self, action: str, path: str, cause: OSError, *, hint: str | None = None) -> None:
        reason = cause.strerror or str(cause)
        TokshardError.__init__(self, f"cannot {action} {path}: {reason}", hint=hint or _storage_hint(cause))
        self.action = action
        self.path = path
        self.reason = reason
        self.errno = cause.errno
        self.filename = path


class WorkerError(TokshardError):
    """A worker process died or stopped answering."""

    exit_code = 8


class Cancelled(TokshardError):  # noqa: N818 - not an error of anybody
    """The run was stopped from outside; what was finished is kept.

    Args:
        signal_number: The signal that stopped it: 2 (Ctrl-C) or 15.
    """

    def __init__(self, message: str, *, signal_number: int = 2, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number


def _storage_hint(cause: OSError) -> str | None:
    hints = {
        errno.ENOSPC: "free some space and run the same command again: finished work is kept",
        errno.EDQUOT: "the quota is used up: free some space and run the same command again",
        errno.EFBIG: "the file size limit (ulimit -f) is too low: raise it and run the same command again",
        errno.EACCES: "check the permissions of the directory",
        errno.EROFS: "the file system is mounted read-only",
        errno.EIO: "the disk reported an error: check it, then run the same command again",
    }
    return hints.get(cause.errno or 0)
