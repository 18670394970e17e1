"""Serialization of errors of worker processes and cluster nodes for the parent process."""

from __future__ import annotations

import traceback
from typing import Any

from tokshard import errors

_KINDS: dict[str, type[errors.TokshardError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.InputError,
        errors.TokenizerError,
        errors.OutputExistsError,
        errors.LockedError,
        errors.IntegrityError,
        errors.EncoderMismatchError,
        errors.WorkerError,
    )
}


class WorkerCrashError(RuntimeError):
    """A worker raised an unexpected exception (a bug); the message is the worker's traceback."""


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error of a worker as a JSON object."""
    error = errors.known_error(error) or error
    if isinstance(error, errors.StorageError):
        return {
            "kind": "StorageError",
            "action": error.action,
            "path": error.path,
            "errno": error.errno,
            "reason": error.reason,
            "hint": error.hint,
        }
    if isinstance(error, errors.TokshardError):
        kind = next(
            kind.__name__ for kind in type(error).__mro__ if kind.__name__ in {*_KINDS, "TokshardError"}
        )
        return {"kind": kind, "message": error.message, "hint": error.hint}
    return {"kind": "crash", "message": "".join(traceback.format_exception(error))}


def error_from_json(value: dict[str, Any]) -> BaseException:
    """Return the error encoded by :func:`error_to_json`."""
    if value["kind"] == "StorageError":
        cause = OSError(value["errno"], value["reason"])
        return errors.StorageError(value["action"], value["path"], cause, hint=value["hint"])
    if value["kind"] == "crash":
        return WorkerCrashError(value["message"])
    kind = _KINDS.get(value["kind"], errors.InputError)
    return kind(value["message"], hint=value["hint"])
