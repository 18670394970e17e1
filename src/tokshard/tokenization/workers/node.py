"""Units encoded in a worker process of a Ray cluster: what a task does on its node.

The encoder stays from one task to the next. A part is committed among those of the run where their
directory is to be seen, which takes a shared file system; elsewhere it is written to a directory of the
task, and its bytes are handed back.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

from tokshard.cluster.task import Answer, Message, on_node
from tokshard.corpus.files import CorpusFile
from tokshard.errors import InputError
from tokshard.storage import syscalls
from tokshard.storage.files import write_atomically
from tokshard.storage.paths import is_remote
from tokshard.storage.scratch import scratch_directory
from tokshard.tokenization.encoder import Outcome, UnitEncoder
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers import messages
from tokshard.tokenization.workers.shares import Stream, encode_stream

_HINT_INPUTS = "every node reads the inputs: they must lie on a shared file system or in an object store"


def encode(arguments: Message, tokenizer: bytes) -> Iterator[Answer]:
    """Encode a unit or a share of a compressed file.

    Args:
        arguments: ``recipe``, ``parts`` (where to commit), and either ``task`` and ``size_bytes`` of its
            input, or ``stream``, ``first``, ``step`` and ``done``: every step-th unit from the first on,
            except those.
        tokenizer: The content of the tokenizer's file; nothing for the built-in one.

    Yields:
        For each unit ``outcome`` and ``progress`` (content bytes, documents and tokens), and the part if
        this node cannot commit it; or at the end an ``error``.
    """
    host = socket.gethostname()
    try:
        with scratch_directory() as scratch:
            encoder = _encoder(arguments["recipe"], tokenizer)
            is_shared = os.path.isdir(arguments["parts"])
            encoder.parts_directory = arguments["parts"] if is_shared else scratch
            for outcome, progress in _encode(encoder, arguments, scratch, host):
                answer = {"outcome": messages.outcome_to_json(outcome), "progress": progress}
                if is_shared or outcome.refused is not None:
                    yield answer, b""
                else:
                    name = outcome.key.part_name
                    yield {**answer, "file": name}, _take(os.path.join(scratch, name))
    except Exception as error:  # noqa: BLE001 - the job raises it
        yield {"error": messages.error_to_json(on_node(error, host))}, b""


_encoders: dict[str, UnitEncoder] = {}


def _encoder(recipe: Message, tokenizer: bytes) -> UnitEncoder:
    """Return the encoder of a recipe, which a worker process of Ray makes once: it serves one run."""
    described = json.dumps(recipe, sort_keys=True)
    if described not in _encoders:
        opened = Recipe.from_json(recipe)
        with scratch_directory() as scratch:
            if opened.tokenizer is not None:
                path = os.path.join(scratch, os.path.basename(opened.tokenizer))
                write_atomically(path, tokenizer)
                opened = replace(opened, tokenizer=path)
            _encoders[described] = UnitEncoder(opened, scratch)
    return _encoders[described]


def _encode(
    encoder: UnitEncoder, arguments: Message, scratch: str, host: str
) -> Iterator[tuple[Outcome, list[int]]]:
    """Encode; yield each outcome with the content bytes, documents and tokens since the one before."""
    totals = [0, 0, 0]

    def report(*counts: int) -> None:
        totals[:] = map(sum, zip(totals, counts, strict=True))

    for outcome in _outcomes(encoder, arguments, scratch, host, report):
        yield outcome, totals.copy()
        totals[:] = 0, 0, 0


def _outcomes(
    encoder: UnitEncoder, arguments: Message, scratch: str, host: str, report: Callable[[int, int, int], None]
) -> Iterator[Outcome]:
    if "task" in arguments:
        task = messages.task_from_json(arguments["task"])
        _check_input(task.unit.path, arguments["size_bytes"], host)
        yield encoder.encode(task, report)
        return
    described = arguments["stream"]
    stream = Stream(**{**described, "file": CorpusFile(**described["file"])})
    _check_input(stream.file.path, stream.file.size_bytes or 0, host)
    first, step, done = arguments["first"], arguments["step"], frozenset(arguments["done"])
    yield from encode_stream(
        encoder,
        stream,
        directory=scratch,
        wanted=lambda index: index >= first and (index - first) % step == 0 and index not in done,
        report=report,
    )


def _take(path: str) -> bytes:
    """Return the content of a file, and remove it."""
    with open(path, "rb") as file:
        content = file.read()
    syscalls.unlink(path)
    return content


def _check_input(path: str, size_bytes: int, host: str) -> None:
    """Check that an input is on this node what it is where the run was started.

    Raises:
        InputError: It is not there, or has another size.
    """
    if is_remote(path):
        return
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise InputError(f"the input {path} is not there on the node {host}", hint=_HINT_INPUTS) from None
    except OSError as error:
        raise InputError(f"cannot read {path} on the node {host}: {error.strerror}") from error
    if found != size_bytes:
        raise InputError(
            f"the input {path} has {found} bytes on the node {host}, but {size_bytes} where the run began",
            hint=_HINT_INPUTS,
        )
