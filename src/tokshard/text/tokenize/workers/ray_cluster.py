"""A Ray cluster: the options that name it, and the connection to it."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from tokshard.core.background import Background
from tokshard.core.options import Option, Options
from tokshard.errors import MissingExtraError, UsageError, WorkerError, reason_of
from tokshard.text.tokenize.options import CLUSTER

_CONNECT_SECONDS = 60.0
_REACH_SECONDS = 10.0
_rare = partial(Option, group=CLUSTER, is_rare=True)


@dataclass(frozen=True, kw_only=True)
class RayOptions(Options):
    """Options of a Ray cluster.

    Raises:
        UsageError: A value is invalid.

    Example:
        >>> RayOptions(ray_address="10.0.0.1:6379").resolved
        '10.0.0.1:6379'
    """

    ray_address: Annotated[
        str | None,
        _rare(
            "Connect to this cluster; auto is the one of this machine.",
            metavar="auto|HOST:PORT",
            default="$RAY_ADDRESS, or auto",
        ),
    ] = None
    ray_cpus_per_task: Annotated[float, _rare("Reserve N CPUs for each task.", default="1")] = 1.0

    def _validate(self) -> None:
        cpus = self.ray_cpus_per_task
        address = self.resolved
        if not 0 < cpus <= 1 << 20:
            raise UsageError(f"--ray-cpus-per-task must be a positive number, got {cpus:g}")
        if cpus > 1 and cpus != int(cpus):
            raise UsageError(f"--ray-cpus-per-task must be an integer if above 1, got {cpus:g}")
        if address.startswith("ray://"):
            raise UsageError(
                f"--ray-address must not be a Ray Client address, got {address!r}",
                hint="pass --ray-address auto on a node of the cluster, or submit the command as a Ray job: "
                "ray job submit -- tokshard ...",
            )
        host, _, port = address.rpartition(":")
        if address != "auto" and (not host or not port.isdecimal() or "/" in host):
            raise UsageError(
                f"--ray-address must be 'auto' or HOST:PORT, got {address!r}",
                hint="pass for example --ray-address 10.0.0.1:6379",
            )

    @property
    def resolved(self) -> str:
        """The address to connect to."""
        return self.ray_address or os.environ.get("RAY_ADDRESS") or "auto"

    def connect(self) -> Any:
        """Return the module ``ray``, connected to the cluster.

        Raises:
            MissingExtraError: Ray is not installed.
            WorkerError: The cluster does not exist or does not respond.
        """
        try:
            import ray
        except ImportError:
            raise MissingExtraError("--executor ray", "ray") from None
        if self.resolved != "auto":
            self.reach(self.resolved)
        # In a thread: elsewhere Ray takes over signals, and it looks for minutes for a cluster that is gone.
        call = Background(lambda: ray.init(self.resolved, log_to_driver=False, logging_level=logging.ERROR))
        if not wait([call], _CONNECT_SECONDS).done:
            raise self._unusable(f"no response within {_CONNECT_SECONDS:g} s")
        try:
            call.result()
        except Exception as error:
            raise self._unusable(first_sentence(error)) from error
        return ray

    def reach(self, address: str) -> None:
        """Raise WorkerError if nobody listens at the address of the cluster's head."""
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
        except OSError as error:
            raise self._unusable(f"no response from {address}: {reason_of(error)}") from error

    def slots(self, ray: Any) -> int:
        """Return how many tasks the cluster has CPUs for; raise UsageError if no node has enough for one."""
        nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        each = self.ray_cpus_per_task
        most = max(nodes, default=0.0)
        if each > most:
            raise UsageError(
                f"--ray-cpus-per-task must be at most {most:g}, the CPUs of the largest node of the Ray "
                f"cluster at {self.resolved}, got {each:g}",
                hint="lower --ray-cpus-per-task",
            )
        return sum(int(cpus / each) for cpus in nodes)

    def _unusable(self, reason: str) -> WorkerError:
        return WorkerError(
            f"cannot use the Ray cluster at {self.resolved}: {reason}",
            hint="start a cluster (ray start --head), pass --ray-address HOST:PORT, or omit --executor ray",
        )


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error of Ray."""
    return str(error).strip().partition("\n")[0].partition(". ")[0]
