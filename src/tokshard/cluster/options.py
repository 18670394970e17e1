"""Options of Ray clusters."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokshard.errors import UsageError

ADDRESS_VARIABLE = "RAY_ADDRESS"

_HINT_CLIENT = (
    "run the command on a node of the cluster with --ray-address auto, or let Ray run it there: "
    "ray job submit -- tokshard ..."
)


@dataclass(frozen=True)
class RayOptions:
    """Options of a Ray cluster.

    Attributes:
        address: ``"auto"`` for the cluster of this machine, or ``HOST:PORT``; None for what the variable
            ``RAY_ADDRESS`` says, else ``"auto"``.
        cpus_per_task: CPUs that each task asks for; may be a fraction.
        retries: How often a piece of work that was lost with its worker or node is given out again.
        tasks: Most tasks at a time; None for twice as many as the cluster has room for, so that none of
            its CPUs waits.

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
            raise UsageError(f"--ray-cpus-per-task {self.cpus_per_task:g} is no number of CPUs")
        if self.cpus_per_task > 1 and self.cpus_per_task != int(self.cpus_per_task):
            raise UsageError(f"--ray-cpus-per-task {self.cpus_per_task:g}: above 1 Ray takes whole CPUs only")
        if self.retries < 0:
            raise UsageError(f"--ray-retries {self.retries} is less than 0")
        if self.resolved.startswith("ray://"):
            raise UsageError(
                f"the Ray address {self.resolved!r} is that of Ray Client, which cannot hand back results "
                "one by one",
                hint=_HINT_CLIENT,
            )
        if self.resolved != "auto" and self.endpoint is None:
            raise UsageError(
                f"the Ray address {self.resolved!r} is neither 'auto' nor HOST:PORT",
                hint="for example --ray-address 10.0.0.1:6379",
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
