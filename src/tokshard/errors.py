"""Errors that tokshard raises, and their exit codes.

::

    TokshardError                     (abstract)
    ├── UnfinishedError               1   some units of a job array are not finished
    ├── UsageError, ValueError        2   invalid option or argument
    │   └── MissingExtraError         2   an optional dependency is not installed
    ├── InputError                    3   an input cannot be read or used
    │   ├── MissingFileError, FileNotFoundError
    │   │                             3   a file was not found
    │   ├── BadRecordError            3   a record of an input is invalid
    │   └── TokenizerError            3   a tokenizer file cannot be read or used
    ├── OutputExistsError             4   the output exists and was made from other inputs or options
    ├── ResumeMismatchError           4   a saved state is of another plan or stream
    ├── LockedError                   5   another process is writing this output
    ├── IntegrityError, ValueError    6   corrupt or inconsistent data
    │   ├── OlderVersionError         6   a file was written by an earlier version of tokshard
    │   ├── EncoderMismatchError      6   the fast encoder disagrees with the reference
    │   └── TokenizerMismatchError    6   data of different tokenizers would be used together
    ├── StorageError, OSError         7   disk full, I/O error, permission denied, object store failure
    ├── WorkerError                   8   a worker process died or hung
    └── Cancelled                   130   stopped by Ctrl-C or a signal (143 for SIGTERM)

The text of an error is one sentence that names the file, the field or option, and the value; ``hint`` says
what to do. Errors also derive from the matching built-in exception, so ``except FileNotFoundError`` works.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from typing import Any

BAD_RECORD_EXCERPT_CHARACTERS = 60
EXTRA_PACKAGES = {
    "parquet": ("pyarrow",),
    "hub": ("huggingface_hub", "fsspec"),
    "tiktoken": ("tiktoken",),
    "sentencepiece": ("sentencepiece",),
    "transformers": ("transformers",),
    "torch": ("torch",),
    "ray": ("ray",),
    "remote": ("fsspec", "s3fs"),
}
"""The packages of each extra, as in pyproject.toml."""

_EXHAUSTED = {errno.EMFILE, errno.ENFILE}
_WRONG_PATH = {errno.EISDIR, errno.ENOENT, errno.EEXIST, errno.ENOTDIR}
_WRITING = {"create", "create directory", "write", "lock", "rename"}
_NO_THREAD = "can't start new thread"  # as Python says it


class TokshardError(Exception):
    """Base class of all tokshard errors.

    Args:
        message: One sentence that names the file, field or option, and the value.
        hint: An instruction for the user, or None.

    Example:
        >>> error = TokshardError("workers must be at least 1, got 0", hint="pass --workers 1 or more")
        >>> str(error), error.hint
        ('workers must be at least 1, got 0', 'pass --workers 1 or more')
        >>> error.__notes__
        ['hint: pass --workers 1 or more']
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")  # an uncaught traceback ends with it

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Let worker processes send errors: with their attributes, whatever they were made from."""
        attributes = {**vars(self), "args": self.args}
        if isinstance(self, OSError):  # not among its variables
            attributes |= {"errno": self.errno, "filename": self.filename}
        return _restored, (type(self), attributes)


def _restored(kind: type[TokshardError], attributes: dict[str, Any]) -> TokshardError:
    error = kind.__new__(kind)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class UnfinishedError(TokshardError):
    """A run shared by many tasks cannot be assembled yet because units are missing.

    Args:
        message: One sentence that names the missing units.
        missing: One entry for each incomplete input: ``input``, its path, and ``units``, the numbers of the
            missing units.
        hint: An instruction for the user.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        missing: tuple[dict[str, Any], ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


class UsageError(TokshardError, ValueError):
    """An invalid option or argument."""

    exit_code = 2


class MissingExtraError(UsageError):
    """An optional dependency is not installed.

    Args:
        what: The feature, for example ``"Parquet input"``.
        extra: The name of tokshard's extra, a key of :data:`EXTRA_PACKAGES`.
        hint: An instruction for the user; None for the installation of the extra's packages.
    """

    def __init__(self, what: str, extra: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"{what} requires {' and '.join(EXTRA_PACKAGES[extra])}, which "
            f"{'is' if len(EXTRA_PACKAGES[extra]) == 1 else 'are'} not installed",
            hint=hint or f"pip install {' '.join(EXTRA_PACKAGES[extra])}",
        )


class InputError(TokshardError):
    """An input cannot be read or used.

    Args:
        message: One sentence that names what, where and the value.
        hint: An instruction for the user, or None.
        reason: A stable code, or None; see docs/reference/bad-records.md.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class MissingFileError(InputError, FileNotFoundError):
    """A file was not found.

    Args:
        message: One sentence that names the file and its purpose.
        path: The file.
        hint: An instruction for the user.
    """

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno.ENOENT
        self.filename = path


class BadRecordError(InputError):
    """A record of an input cannot be turned into a document.

    Args:
        path: The input as the user named it.
        line: The 1-based line (or row) number, or None if unknown.
        offset: The byte offset of the record in the decompressed input (or the 0-based row).
        reason: A stable code, see :mod:`tokshard.text.corpus.records`.
        detail: A description of the defect.
        excerpt: The beginning of the record, already truncated.
        hint: An instruction for the user.
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
        name = "<stdin>" if path == "-" else path
        where = f"{name}:{line}" if line is not None else name
        # For a wrong field the detail lists the fields; other mistakes are visible in the record.
        shown = f": {excerpt!r}" if excerpt and not reason.startswith(("field-", "item-", "chat-")) else ""
        super().__init__(f"{where}: {detail}{shown}", hint=hint, reason=reason)
        self.path = path
        self.line = line
        self.offset = offset
        self.detail = detail
        self.excerpt = excerpt


class TokenizerError(InputError):
    """A tokenizer file cannot be read or used."""


class OutputExistsError(TokshardError):
    """The output exists, and was made from other inputs or options.

    Args:
        differences: One phrase for each field that differs, with both values.
    """

    exit_code = 4

    def __init__(self, message: str, *, differences: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.differences = differences


class ResumeMismatchError(TokshardError):
    """A saved state cannot be resumed because it is of another plan or stream.

    Args:
        differences: One phrase per difference.
    """

    exit_code = 4

    def __init__(self, message: str, *, differences: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.differences = differences


class LockedError(TokshardError):
    """Another process is writing this output."""

    exit_code = 5


class IntegrityError(TokshardError, ValueError):
    """Data on disk is corrupt or inconsistent.

    Args:
        message: One sentence that names the file and the value.
        path: The file.
        field: The field of the format, for example ``"sequence_lengths"``, or None.
        offset: The byte offset in the file, or None.
        hint: An instruction for the user.
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


class OlderVersionError(IntegrityError):
    """A file was written by an earlier version of tokshard, in a format that is no longer read."""


class OlderVersionWarning(UserWarning):
    """The file at ``path`` was written by an earlier version: it counts as absent, or is replaced."""

    def __init__(self, message: str, path: str | None) -> None:
        super().__init__(message)
        self.path = path


def ignore_older(error: OlderVersionError, consequence: str) -> None:
    """Warn that a file of an earlier version is not read, instead of raising the error."""
    warnings.warn(OlderVersionWarning(f"{error.message}: {consequence}", error.path), stacklevel=1)


class EncoderMismatchError(IntegrityError):
    """The fast encoder returns other tokens for a text than the reference encoder."""


class TokenizerMismatchError(IntegrityError):
    """Datasets of different tokenizers would be used together, or with a job of another tokenizer."""


class StorageError(TokshardError, OSError):
    """The file system or object store failed: disk full, quota, I/O error, permission denied, timeout.

    Args:
        action: The failed operation, for example ``"write"``.
        path: The file, or the URL of an object.
        cause: The operating system's error; failures of object stores are converted to one.
        hint: An instruction for the user; by default one that fits the cause.
    """

    exit_code = 7

    def __init__(self, action: str, path: str, cause: OSError, *, hint: str | None = None) -> None:
        reason = reason_of(cause)
        TokshardError.__init__(
            self, f"cannot {action} {path}: {reason}", hint=hint or _storage_hint(cause, path)
        )
        self.action = action
        self.path = path
        self.reason = reason
        self.errno = cause.errno
        self.filename = path


class WorkerError(TokshardError):
    """A worker process died or stopped answering."""

    exit_code = 8


class Cancelled(TokshardError):  # noqa: N818 - nothing went wrong
    """The run was interrupted.

    Args:
        signal_number: The signal that was received: 2 (SIGINT, Ctrl-C) or 15 (SIGTERM).
    """

    def __init__(self, message: str, *, signal_number: int = 2, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number


def reason_of(cause: OSError) -> str:
    """Return the reason of an operating system's error, with the value of the limit that was reached."""
    reason = cause.strerror or str(cause)
    if reason == os.strerror(errno.EMFILE):
        return f"{reason} (ulimit -n is {os.sysconf('SC_OPEN_MAX')})"
    if reason == os.strerror(errno.EAGAIN):  # of fork
        return f"{reason} (ulimit -u is {os.sysconf('SC_CHILD_MAX')})"
    return reason


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, as a traceback shows them, each once: the chain may be a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def exhaustion_of(error: BaseException | None) -> OSError | None:
    """Return the cause of an error if it is that no more files can be opened, whatever it says."""
    for each in chain_of(error):
        if isinstance(each, OSError) and each.errno in _EXHAUSTED:
            return each
        if isinstance(each, ImportError) and os.strerror(errno.EMFILE) in str(each):  # of a shared library
            return OSError(errno.EMFILE, os.strerror(errno.EMFILE), each.path)
    return None


def raise_exhaustion(error: BaseException) -> None:
    """Raise an error again if no more files can be opened: it says nothing about the file that it names."""
    if exhaustion_of(error) is not None:
        raise error


def known_error(error: BaseException) -> TokshardError | None:
    """Return an error as a :class:`TokshardError`; None for a closed pipe and for a bug."""
    if not isinstance(error, StorageError | WorkerError) and (cause := exhaustion_of(error)) is not None:
        return StorageError("open", str(cause.filename or "a file"), cause)
    if isinstance(error, TokshardError):
        return error
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return WorkerError(
            f"cannot start a thread (ulimit -u is {os.sysconf('SC_CHILD_MAX')})",
            hint="raise the limit of processes (ulimit -u) or of memory, and run the same command again",
        )
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        # Reading what we wrote ourselves failed: an I/O error, or a file that went away meanwhile.
        return StorageError("read", str(error.filename or "a file"), error)
    return None


def hint_of(error: TokshardError) -> str | None:
    """Return the hint of an error; of one without a hint about a file, what to do with the file."""
    if error.hint is not None:
        return error.hint
    if isinstance(error, MissingFileError):
        return "check the path; relative paths start at the current directory"
    if isinstance(error, StorageError) and error.errno in _WRONG_PATH:
        if error.action in {"open", "read"}:
            return f"copy {error.path} again from its source, or build it again"
        if error.action in _WRITING:
            return "choose another path for the output"
    if isinstance(error, IntegrityError) and error.path is not None:
        return f"copy {error.path} again from its source, or build it again"
    return None


def _storage_hint(cause: OSError, path: str) -> str | None:
    hints = {
        errno.EMFILE: "raise the limit of open files (ulimit -n 4096) and run the same command again",
        errno.ENFILE: "raise the limit of all open files (sysctl fs.file-max) and run the same command again",
        errno.ENOSPC: "free some space and run the same command again",
        errno.EDQUOT: "free some space (the quota is exhausted) and run the same command again",
        errno.EFBIG: "raise the file size limit (ulimit -f) and run the same command again",
        errno.EACCES: f"check the permissions of {path} and of its directory",
        errno.EROFS: "remount the file system read-write, or choose another directory",
        errno.EIO: "check the disk (it reported an error), then run the same command again",
    }
    return hints.get(cause.errno or 0)
