"""Options of Ray clusters."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokshard.errors import UsageError

ADDRESS_VARIABLE = "RAY_ADDRESS"

_HINT_CLIENT = (
    "pass --ray-address auto on a node of the cluster, or submit the command as a Ray job: "
    "ray job submit -- tokshard ..."
)


@dataclass(frozen=True)
class RayOptions:
    """Options of a Ray cluster.

    Attributes:
        address: ``"auto"`` for the cluster of this machine, or ``HOST:PORT``; None for the variable
            ``RAY_ADDRESS``, or ``"auto"`` if it is not set.
        cpus_per_task: CPUs reserved for each task; may be a fraction.
        retries: How often work that was lost with its worker or node is repeated.
        tasks: The maximum number of tasks in flight; None for twice as many as the cluster has room for,
            which keeps all CPUs busy.

    Raises:
        UsageError: A value is invalid.

    Example:
        >>> RayOptions(address="10.0.0.1:6379").endpoint
        ('10.0.0.1', 6379)
    """

    address: str | None = None
    cpus_per_task: float = 1.0
    retries: int = 3
    tasks: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cpus_per_task <= 1 << 20:
            raise UsageError(f"--ray-cpus-per-task must be a positive number, got {self.cpus_per_task:g}")
        if self.cpus_per_task > 1 and self.cpus_per_task != int(self.cpus_per_task):
            raise UsageError(f"--ray-cpus-per-task must be an integer if above 1, got {self.cpus_per_task:g}")
        if self.retries < 0:
            raise UsageError(f"--ray-retries must be at least 0, got {self.retries}")
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
        return self.address or os.environ.get(ADDRESS_VARIABLE) or "auto"

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of the address, if it has them."""
        host, _, port = self.resolved.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            return None
        return host.strip("[]"), int(port)
