"""An index built in a worker process of a Ray cluster: what a task does on its node."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from tokshard.cluster.task import Answer, Message, on_node
from tokshard.core.codec import decode
from tokshard.core.thread_runner import ThreadRunner
from tokshard.core.worker_errors import error_to_json
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.errors import InputError
from tokshard.index_cache.build_or_reuse import build_or_reuse
from tokshard.index_cache.request import IndexRequest
from tokshard.index_cache.task import Datasets, plan_tasks

_HINT = "datasets and the cache must lie on a file system that all nodes share"


def build(arguments: Message, attachment: bytes) -> Iterator[Answer]:  # noqa: ARG001 - the signature of tasks
    """Build an index.

    Args:
        arguments: ``request``, ``directory`` (the cache), ``dataset`` (the fingerprint that it must have),
            ``probe`` (a file that must be in the cache), ``rebuild`` and ``wait_seconds``.
        attachment: Nothing.

    Yields:
        The ``action``: what was done; or an ``error``.
    """
    host = socket.gethostname()
    try:
        yield {"action": _build(arguments, host)}, b""
    except Exception as error:  # noqa: BLE001 - the job raises it
        yield {"error": error_to_json(on_node(error, host))}, b""


def _build(arguments: Message, host: str) -> str:
    directory = arguments["directory"]
    if not os.path.exists(arguments["probe"]):
        raise InputError(f"the cache {directory} is another one on the node {host}", hint=_HINT)
    request = IndexRequest.from_json(arguments["request"])
    datasets = Datasets()
    _, tasks = plan_tasks([request], directory, datasets, ThreadRunner(1))
    (task,) = tasks.values()
    if differences := task.dataset.changes_since(decode(DatasetFingerprint, arguments["dataset"], "dataset")):
        raise InputError(
            f"the dataset {request.prefix} is another one on the node {host}: {differences[0]}", hint=_HINT
        )
    return build_or_reuse(
        task.target,
        lambda: task.arrays(datasets.get(request.prefix)),
        rebuild=arguments["rebuild"],
        wait_seconds=arguments["wait_seconds"],
    )
