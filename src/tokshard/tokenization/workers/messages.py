"""What the job and its worker processes say to each other: one JSON object a line, plain values only."""

from __future__ import annotations

import json
import traceback
from typing import Any

from tokshard import errors
from tokshard.corpus.records import RejectedRecord
from tokshard.corpus.units import unit_from_json
from tokshard.tokenization.encoder import Outcome, Task
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.placement import Measured, Place

Message = dict[str, Any]

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
    )
}


class WorkerCrashError(RuntimeError):
    """A worker raised what it never should: a bug, with the worker's traceback as text."""


def to_line(message: Message) -> bytes:
    """Return a message as one line."""
    return (json.dumps(message, separators=(",", ":")) + "\n").encode("ascii")


def task_to_json(task: Task) -> Message:
    """Return a task as a JSON object."""
    return {"unit": task.unit.to_json(), "name": task.name, "compare_below": task.compare_below}


def task_from_json(value: Message) -> Task:
    """Return the task that :func:`task_to_json` described."""
    return Task(unit_from_json(value["unit"]), value["name"], value["compare_below"])


def outcome_to_json(outcome: Outcome) -> Message:
    """Return an outcome as a JSON object."""
    refused = outcome.refused
    record = refused and [refused.offset, refused.line, refused.reason, refused.detail, refused.excerpt]
    return {
        "key": [outcome.key.file, outcome.key.index],
        "input_bytes": outcome.input_bytes,
        "refused": record,
    }


def outcome_from_json(value: Message) -> Outcome:
    """Return the outcome that :func:`outcome_to_json` described."""
    refused = RejectedRecord(*value["refused"]) if value["refused"] else None
    return Outcome(UnitKey(*value["key"]), value["input_bytes"], refused)


def measured_to_json(unit: Measured) -> Message:
    """Return what is known of a held unit as a JSON object."""
    return {"key": [unit.key.file, unit.key.index], "last": unit.last, "sizes": unit.sizes}


def measured_from_json(value: Message) -> Measured:
    """Return the unit that :func:`measured_to_json` described."""
    return Measured(UnitKey(*value["key"]), value["last"], tuple(value["sizes"]))


def place_to_json(place: Place) -> Message:
    """Return a place as a JSON object."""
    return {"key": [place.key.file, place.key.index], "paths": place.paths, "offsets": place.offsets}


def place_from_json(value: Message) -> Place:
    """Return the place that :func:`place_to_json` described."""
    return Place(UnitKey(*value["key"]), tuple(value["paths"]), tuple(value["offsets"]))


def error_to_json(error: BaseException) -> Message:
    """Return an error of a worker as a JSON object."""
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


def error_from_json(value: Message) -> BaseException:
    """Return the error that :func:`error_to_json` described."""
    if value["kind"] == "StorageError":
        cause = OSError(value["errno"], value["reason"])
        return errors.StorageError(value["action"], value["path"], cause, hint=value["hint"])
    if value["kind"] == "crash":
        return WorkerCrashError(value["message"])
    kind = _KINDS.get(value["kind"], errors.InputError)
    return kind(value["message"], hint=value["hint"])
