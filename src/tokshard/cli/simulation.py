"""``shard-plan --simulate`` and ``--staging``: what a plan reads, in tables and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.cli import rendering, terminal
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokshard.sharding.plan import Plan
    from tokshard.sharding.reading.simulation import StepLoad

DEFAULT_STEPS = 10
_SHOWN_NODES = 16
_NUMBERS = ("samples", "documents", "bytes", "pages", "files", "seconds")


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What is asked of a simulation.

    Attributes:
        steps: How many steps from the first on.
        ranks_per_node: How many neighbouring ranks are on a node.
        bandwidth: Bytes a second; None for no times.
        stream: The stream.
        simulates: Whether the steps are to be followed.
        directory: Where the lists of files go; None for no lists.
        remote: Where the root directory lies in an object store.
    """

    steps: int = DEFAULT_STEPS
    ranks_per_node: int = 8
    bandwidth: int | None = None
    stream: str = "train"
    simulates: bool = False
    directory: str | None = None
    remote: str | None = None

    def check(self, *, dry_run: bool) -> None:
        """Check that the options fit together.

        Raises:
            UsageError: They do not.
        """
        if dry_run and self.directory is not None:
            raise UsageError("--dry-run writes nothing: leave out --staging")
        if self.remote is not None and self.directory is None:
            raise UsageError("--staging-remote needs --staging, the directory of the lists")
        if self.bandwidth is not None and not self.simulates:
            raise UsageError("--bandwidth has a meaning with --simulate only")


def simulate(plan: Plan, request: SimulationRequest) -> list[StepLoad]:
    """Return what the first steps take."""
    from tokshard.sharding.reading.simulation import Simulation

    simulation = Simulation(
        plan, request.stream, ranks_per_node=request.ranks_per_node, bandwidth=request.bandwidth
    )
    return list(simulation.steps(0, request.steps))


def simulation_json(steps: Sequence[StepLoad], request: SimulationRequest) -> dict[str, Any]:
    """Return the loads as JSON values."""
    from tokshard.sharding.reading.simulation import summarise

    return {
        "stream": request.stream,
        "ranks_per_node": request.ranks_per_node,
        "bandwidth": request.bandwidth,
        "rank": summarise([one for step in steps for one in step.ranks]),
        "node": summarise([one for step in steps for one in step.nodes]),
        "steps": [one.to_json() for one in steps],
    }


def show_simulation(steps: Sequence[StepLoad], request: SimulationRequest) -> None:
    """Print what a rank and a node read in a step, and each node over all steps."""
    from tokshard.sharding.reading.simulation import summarise

    terminal.say(
        f"simulated {terminal.count(len(steps))} steps of {terminal.safe(request.stream)}, "
        f"{terminal.count(request.ranks_per_node)} ranks a node:"
    )
    rows = []
    for label, loads in (
        ("a step of a rank", [one for step in steps for one in step.ranks]),
        ("a step of a node", [one for step in steps for one in step.nodes]),
    ):
        summary = summarise(loads)
        for which in ("least", "mean", "most"):
            shown = [_shown(name, summary[name][which]) if name in summary else "-" for name in _NUMBERS]
            rows.append([f"  {label}, {which}", *shown])
    rendering.table(["", "samples", "documents", "tokens", "pages", "open files", "time"], rows)
    _show_nodes(steps)


def _show_nodes(steps: Sequence[StepLoad]) -> None:
    if not steps:
        return
    count = len(steps[0].nodes)
    rows = []
    for node in range(min(count, _SHOWN_NODES)):
        loads = [step.nodes[node] for step in steps]
        seconds = [one.seconds for one in loads if one.seconds is not None]
        numbers: list[float | None] = [
            sum(one.samples for one in loads),
            sum(one.documents for one in loads),
            sum(one.bytes for one in loads),
            sum(one.pages for one in loads),
            max(one.files for one in loads),
            sum(seconds) if seconds else None,
        ]
        cells = [
            "-" if number is None else _shown(name, number)
            for name, number in zip(_NUMBERS, numbers, strict=True)
        ]
        rows.append([f"  node {node}, all steps", *cells])
    rendering.table(["", "samples", "documents", "tokens", "pages", "open files", "time"], rows)
    if count > _SHOWN_NODES:
        terminal.say(f"  ... {terminal.count(count)} nodes in all: see --json")


def _shown(name: str, number: float) -> str:
    if name == "bytes":
        return terminal.size(number)
    if name == "seconds":
        return terminal.duration(number)
    return terminal.count(round(number))


def write_lists(plan: Plan, request: SimulationRequest) -> dict[str, Any]:
    """Write the lists of what nodes read in the first steps; return what was written, as JSON values."""
    from tokshard.sharding.reading.staging import stage, write_staging

    nodes = stage(plan, request.stream, 0, request.steps, ranks_per_node=request.ranks_per_node)
    directory = request.directory or ""
    names = write_staging(nodes, directory, plan_id=plan.plan_id, remote=request.remote)
    return {
        "directory": directory,
        "files": list(names),
        "nodes": [
            {
                "node": one.node,
                "files": len(one.files),
                "bytes": one.size_bytes,
                "read_bytes": one.read_bytes,
            }
            for one in nodes
        ],
    }


def show_lists(written: dict[str, Any], request: SimulationRequest) -> None:
    """Print what was written for staging."""
    directory = terminal.safe(written["directory"])
    terminal.say(f"{directory}: what each node reads in the first {terminal.count(request.steps)} steps")
    rows = [
        [
            f"  node {one['node']}",
            terminal.count(one["files"]),
            terminal.size(one["bytes"]),
            terminal.size(one["read_bytes"]),
        ]
        for one in written["nodes"][:_SHOWN_NODES]
    ]
    rendering.table(["", "files", "size", "is read"], rows)
    if len(written["nodes"]) > _SHOWN_NODES:
        terminal.say(f"  ... {terminal.count(len(written['nodes']))} nodes in all")
    terminal.say(f"next: rsync -a --files-from={directory}/node-0000.files STORAGE:/ /")
