"""Options of the commands that can do their work on a Ray cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tokshard.cluster.options import DEFAULT_CPUS_PER_TASK, DEFAULT_RETRIES, RayOptions
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard.tokenization.workers.ray import RayExecutor

_CLUSTER = "Ray cluster"


class Executor(StrEnum):
    """Choices of --executor."""

    local = "local"
    ray = "ray"


ExecutorChoice = Annotated[
    Executor,
    typer.Option(
        "--executor", help="Where the work is done: here, or on a Ray cluster.", rich_help_panel=_CLUSTER
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="auto|HOST:PORT",
        help="The cluster.",
        show_default="RAY_ADDRESS, or auto: that of this machine",
        rich_help_panel=_CLUSTER,
    ),
]
RayCpusPerTask = Annotated[
    float | None,
    typer.Option(
        "--ray-cpus-per-task",
        metavar="N",
        help="CPUs of each task.",
        show_default=f"{DEFAULT_CPUS_PER_TASK:g}",
        rich_help_panel=_CLUSTER,
    ),
]
RayRetries = Annotated[
    int | None,
    typer.Option(
        "--ray-retries",
        metavar="N",
        help="How often work that was lost with its node is given out again.",
        show_default=str(DEFAULT_RETRIES),
        rich_help_panel=_CLUSTER,
    ),
]


def ray_options(
    executor: Executor,
    address: str | None,
    cpus_per_task: float | None,
    retries: int | None,
    *,
    workers: int | None,
) -> RayOptions | None:
    """Return which Ray cluster to use; None for this machine.

    Args:
        executor: The value of ``--executor``.
        address: The value of ``--ray-address``, if given.
        cpus_per_task: The value of ``--ray-cpus-per-task``, if given.
        retries: The value of ``--ray-retries``, if given.
        workers: With Ray the most tasks at a time.

    Raises:
        UsageError: A value cannot be meant, or is for a cluster that is not to be used.
    """
    given = {"--ray-address": address, "--ray-cpus-per-task": cpus_per_task, "--ray-retries": retries}
    if executor is Executor.local:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} has a meaning only with --executor ray")
        return None
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is less than 1")
    return RayOptions(
        address=address,
        cpus_per_task=DEFAULT_CPUS_PER_TASK if cpus_per_task is None else cpus_per_task,
        retries=DEFAULT_RETRIES if retries is None else retries,
        tasks=workers,
    )


def ray_executor(options: RayOptions | None, *, alone: bool) -> RayExecutor | None:
    """Return what encodes on a Ray cluster; None for this machine.

    Args:
        options: Which cluster.
        alone: Whether nothing is said of job arrays, which divide the work in another way.

    Raises:
        UsageError: Something is.
    """
    if options is None:
        return None
    if not alone:
        raise UsageError(
            "--executor ray and the options of job arrays are two ways to divide the work",
            hint="leave out one of them",
        )
    from tokshard.tokenization.workers.ray import RayExecutor

    return RayExecutor(options)
