"""Reading of small text and JSON files."""

from __future__ import annotations

from typing import Any, TypeVar

from tokshard.core.codec import Document
from tokshard.core.json_text import MAX_JSON_BYTES, dump_json, parse_json_object
from tokshard.errors import InputError, MissingFileError, StorageError, TokshardError, UsageError
from tokshard.storage import fs
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_passed

DocumentT = TypeVar("DocumentT", bound=Document)

MAX_TEXT_BYTES = 64 << 20


def read_small_file(path: str, kind: str = "file", *, hint: str | None = None, passed: bool = False) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file.
        kind: The expected kind of file (``"recipe"``), for errors.
        hint: The advice if it is missing.
        passed: Whether the user passed this path: it may be a pipe then.

    Raises:
        MissingFileError: The file does not exist.
        InputError: It is a directory, another special file, or larger than 64 MiB.
        StorageError: It cannot be read.
    """
    try:
        with open_passed(path) if passed and not is_remote(path) else fs.open_file(path) as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"{kind} not found: {path}", path=path, hint=hint) from None
    except IsADirectoryError:
        raise InputError(
            f"cannot read {kind} {path}: it is a directory", hint=hint or f"pass the path of a {kind}"
        ) from None
    except TokshardError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path} must have at most {MAX_TEXT_BYTES:,} bytes, got more", hint=hint)
    return content


def read_text(path: str, kind: str = "file", *, hint: str | None = None) -> str:
    """Return the text of a file in UTF-8 that the user passed; see :func:`read_small_file`.

    Raises:
        InputError: It is not UTF-8.
    """
    try:
        return read_small_file(path, kind, hint=hint, passed=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} must be UTF-8: {error.reason} at byte {error.start}",
            hint="check the path: this is not a text file, or it must be converted to UTF-8",
        ) from error


def dump_readable_json(value: Any, path: str, *, hint: str) -> bytes:
    """Return ``value`` as :func:`dump_json` does, if it is small enough for :func:`read_json_object`.

    Raises:
        UsageError: The result is larger than 64 MiB.
    """
    content = dump_json(value)
    if len(content) > MAX_JSON_BYTES:
        raise UsageError(
            f"{path} must have at most {MAX_JSON_BYTES:,} bytes, got {len(content):,}", hint=hint
        )
    return content


def read_json_object(path: str) -> dict[str, Any]:
    """Read and parse a JSON object strictly; see :func:`parse_json_object`.

    Raises:
        FileNotFoundError: The file does not exist.
        NotADirectoryError: Its parent is not a directory.
        StorageError: It cannot be read.
        IntegrityError: The content is invalid.
    """
    return parse_json_object(read_json_bytes(path), path)


def read_json_bytes(path: str) -> bytes:
    """Return the bytes of a JSON file; of a file that is too large, one byte more than the limit.

    Raises:
        FileNotFoundError: The file does not exist.
        NotADirectoryError: Its parent is not a directory.
        StorageError: It cannot be read.
    """
    try:
        with fs.open_file(path) as file:
            return file.read(MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, TokshardError):
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error


def read_document(cls: type[DocumentT], path: str) -> DocumentT:
    """Read a document strictly; see :func:`read_json_object`.

    Raises:
        IntegrityError: The content is invalid, or has another schema.
    """
    return cls.from_bytes(read_json_bytes(path), path)
