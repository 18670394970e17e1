"""Reading the small text files that users and other programs write: recipes, words, launch scripts."""

from __future__ import annotations

from tokshard.errors import InputError, MissingFileError, StorageError, TokshardError
from tokshard.storage import fs

MAX_TEXT_BYTES = 64 << 20


def read_small_file(path: str, kind: str = "file", *, hint: str | None = None) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file, or its URL.
        kind: What it should be, for errors: ``"recipe"``.
        hint: What to do where it is not there.

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
