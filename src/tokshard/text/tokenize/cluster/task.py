"""Code that runs on the nodes: one call of a tokshard function as a Ray task with streamed answers.

Calls and answers are JSON, and files are bytes. Ray pickles these plain values in transit; nothing else is
pickled.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tokshard.errors import StorageError
from tokshard.version import __version__

Message = dict[str, Any]
Answer = tuple[Message, bytes]
"""A message, and the content of an accompanying file, or empty."""

Function = Callable[[Message, bytes], Iterator[Answer]]
"""A callable function: takes its arguments and the attachment shared by all calls."""


def to_bytes(message: Message) -> bytes:
    """Return a message as bytes without line breaks."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def perform(call: bytes, attachment: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Run one call: the body of the Ray task.

    Args:
        call: A JSON object: ``version`` (of the caller), ``function`` (``module:name``, a :data:`Function`
            of this package) and its ``arguments``.
        attachment: Bytes shared by many calls, sent to each node once.

    Yields:
        First the host and pid, then the items of the function, as JSON and bytes.
    """
    request = json.loads(call)
    host = socket.gethostname()
    yield to_bytes({"began": {"host": host, "pid": os.getpid()}}), b""
    if request["version"] != __version__:
        refusal = f"the node {host} must have tokshard {request['version']}, got {__version__}"
        yield to_bytes({"refused": refusal}), b""
        return
    module, _, name = request["function"].partition(":")
    function: Function = getattr(import_module(module), name)
    for message, content in function(request["arguments"], attachment):
        yield to_bytes({"answer": message}), content


def on_node(error: Exception, host: str) -> Exception:
    """Return the error, with the node's name added if it is a :class:`StorageError`."""
    if not isinstance(error, StorageError):
        return error
    cause = OSError(error.errno, error.reason)
    return StorageError(error.action, f"{error.path} on the node {host}", cause, hint=error.hint)
