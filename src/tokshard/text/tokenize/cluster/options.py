"""Options of Ray clusters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from tokshard.core.codec import Count
from tokshard.core.options import Option, Options
from tokshard.errors import UsageError

CLUSTER = "Ray cluster"
ADDRESS_VARIABLE = "RAY_ADDRESS"

_HINT_CLIENT = (
    "pass --ray-address auto on a node of the cluster, or submit the command as a Ray job: "
    "ray job submit -- tokshard ..."
)

_rare = partial(Option, group=CLUSTER, is_rare=True)


@dataclass(frozen=True, kw_only=True)
class RayOptions(Options):
    """Options of a Ray cluster.

    Attributes:
        tasks: The maximum number of tasks in flight; None for twice as many as the cluster has room for,
            which keeps all CPUs busy.

    Raises:
        UsageError: A value is invalid.

    Example:
        >>> RayOptions(ray_address="10.0.0.1:6379").endpoint
        ('10.0.0.1', 6379)
    """

    ray_address: Annotated[
        str | None,
        _rare(
            "Connect to this cluster; auto is the one of this machine.",
            metavar="auto|HOST:PORT",
            default=f"${ADDRESS_VARIABLE}, or auto",
        ),
    ] = None
    ray_cpus_per_task: Annotated[float, _rare("Reserve N CPUs for each task.", default="1")] = 1.0
    ray_retries: Annotated[Count, _rare("Retry work that was lost with its node up to N times.")] = 3
    tasks: int | None = None

    def _validate(self) -> None:
        cpus = self.ray_cpus_per_task
        if not 0 < cpus <= 1 << 20:
            raise UsageError(f"--ray-cpus-per-task must be a positive number, got {cpus:g}")
        if cpus > 1 and cpus != int(cpus):
            raise UsageError(f"--ray-cpus-per-task must be an integer if above 1, got {cpus:g}")
        if self.resolved.startswith("ray://"):
            raise UsageError(
                f"--ray-address must not be a Ray Client address (Ray Client cannot stream results), got "
                f"{self.resolved!r}",
                hint=_HINT_CLIENT,
            )
        if self.resolved != "auto" and self.endpoint is None:
            raise UsageError(
                f"--ray-address must be 'auto' or HOST:PORT, got {self.resolved!r}",
                hint="pass for example --ray-address 10.0.0.1:6379",
            )

    @property
    def resolved(self) -> str:
        """The address to connect to."""
        return self.ray_address or os.environ.get(ADDRESS_VARIABLE) or "auto"

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of the address, if it has them."""
        host, _, port = self.resolved.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            return None
        return host.strip("[]"), int(port)
