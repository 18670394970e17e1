"""Small files read whole: text and JSON of users, of other programs and of ours."""

from __future__ import annotations

from typing import Any, TypeVar

from tokshard.core.codec import Document
from tokshard.core.strict_json import MAX_JSON_BYTES, dump_json, parse_json_object
from tokshard.errors import InputError, MissingFileError, StorageError, TokshardError, UsageError
from tokshard.storage import fs

DocumentT = TypeVar("DocumentT", bound=Document)

MAX_TEXT_BYTES = 64 << 20


def read_small_file(path: str, kind: str = "file", *, hint: str | None = None) -> bytes:
    """Return the bytes of a file.

    For errors: ``kind`` is what it should be (``"recipe"``), ``hint`` what to do where it is missing.

    Raises:
        MissingFileError: There is no such file.
        InputError: It is a directory, or larger than 64 MiB.
        StorageError: It cannot be read.
    """
    try:
        with fs.open_file(path) as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"there is no {kind} {path}", path=path, hint=hint) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory, and no {kind}", hint=hint) from None
    except TokshardError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path} is larger than {MAX_TEXT_BYTES} bytes")
    return content


def read_text(path: str, kind: str = "file") -> str:
    """Return the text of a file in UTF-8; see :func:`read_small_file`.

    Raises:
        InputError: It is not UTF-8.
    """
    try:
        return read_small_file(path, kind).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error


def dump_readable_json(value: Any, path: str, *, hint: str) -> bytes:
    """Return ``value`` as :func:`dump_json` does, if :func:`read_json_object` will take it.

    Raises:
        UsageError: It has more than 64 MiB.
    """
    content = dump_json(value)
    if len(content) > MAX_JSON_BYTES:
        raise UsageError(
            f"{path} would have {len(content)} bytes, more than the {MAX_JSON_BYTES} that are read back",
            hint=hint,
        )
    return content


def read_json_object(path: str) -> dict[str, Any]:
    """Read and parse a JSON object strictly; see :func:`parse_json_object`.

    Raises:
        FileNotFoundError: There is no such file.
        NotADirectoryError: What should be its directory is none.
        StorageError: It cannot be read.
        IntegrityError: The content is wrong.
    """
    try:
        with fs.open_file(path) as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, TokshardError):
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    return parse_json_object(content, path)


def read_document(cls: type[DocumentT], path: str) -> DocumentT:
    """Read a document strictly; see :func:`read_json_object`.

    Raises:
        IntegrityError: The content is wrong, or it has another schema.
    """
    return cls.from_json(read_json_object(path), path)
