"""The code that runs on the nodes: one call of our function, as a Ray task that answers piece by piece.

Calls and answers are JSON, and files are bytes; Ray pickles these plain values on their way, and that is
the only place where anything of ours is pickled.
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
"""A message, and the content of a file that goes with it, or nothing."""

Function = Callable[[Message, bytes], Iterator[Answer]]
"""A function that can be called: it gets its arguments and the attachment that all calls share."""


def to_bytes(message: Message) -> bytes:
    """Return a message as bytes, without a line break in them."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def perform(call: bytes, attachment: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Run one call; this is the body of the Ray task.

    Args:
        call: A JSON object: ``version`` (that of the caller), ``function`` (``module:name``, a
            :data:`Function` of this package) and its ``arguments``.
        attachment: Bytes that are the same for many calls, and that each node gets once.

    Yields:
        First where it runs, then what the function yields, as JSON and bytes.
    """
    request = json.loads(call)
    host = socket.gethostname()
    yield to_bytes({"began": {"host": host, "pid": os.getpid()}}), b""
    if request["version"] != __version__:
        refusal = f"the node {host} has tokshard {__version__}, but the command is of {request['version']}"
        yield to_bytes({"refused": refusal}), b""
        return
    module, _, name = request["function"].partition(":")
    function: Function = getattr(import_module(module), name)
    for message, content in function(request["arguments"], attachment):
        yield to_bytes({"answer": message}), content


def on_node(error: Exception, host: str) -> Exception:
    """Return an error so that, if it is one of the file system, it says on which node it happened."""
    if not isinstance(error, StorageError):
        return error
    cause = OSError(error.errno, error.reason)
    return StorageError(error.action, f"{error.path} on the node {host}", cause, hint=error.hint)
