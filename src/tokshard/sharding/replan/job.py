"""Going on from a plan in another world, or with other weights: nothing is lost or repeated, and proved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.layouts import Blocked
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.order import SampleOrder
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.planning import World, world_of
from tokshard.sharding.replan.continuation import Dealing, deal_epochs, go_on
from tokshard.sharding.replan.history import (
    Replanning,
    Reweighting,
    StoppedStream,
    history_of,
    stops_of,
)
from tokshard.sharding.replan.ingredients import Ingredient, match_ingredients, read_weights
from tokshard.sharding.replan.proof import StreamProof, prove_remainder
from tokshard.sharding.replan.recheck import before_counts, continuation_problems
from tokshard.sharding.replan.reweighted import count_draws, standings_of, write_mixture
from tokshard.sharding.replan.reweighting import mix
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.sources import Places, SampleSource
from tokshard.sharding.topology import Topology
from tokshard.storage import syscalls

TRAIN = "train"
FULL_VALIDATION = "full-validation"
STRIPED_MODES = ("single", "sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRequest:
    """How a plan goes on; what is None stays as it is.

    Attributes:
        consumed_samples: What all ranks have read of training, as Megatron counts it.
        consumed_valid_samples: What they have read of each validation set; one number counts for all, none
            is none.
        topology: The ranks.
        micro_batch_size: The samples of a micro-batch of one rank.
        schedule: The global batch size over time, by the consumed samples of the whole run.
        eval_micro_batch_size: The samples of a micro-batch of validation and testing.
        eval_global_batch_size: The samples of a step there. None is the last batch size of training where
            one is given, else what the plan had.
        mode: How samples are dealt out from now on. None keeps the mode and, in the epoch under way, the
            order: batches of the same size hold the same samples as without the stop.
        tail: What happens to samples that do not fill a batch.
        sharded: In mode ``cyclic``, whether each rank has its own block.
        steps: The number of steps of training; None for as many as the plan had left to read.
        blend: Another blend to go on with; see :func:`~tokshard.sharding.replan.ingredients.read_weights`.
        seed: The seed of laps that begin after the stop.
    """

    consumed_samples: int
    consumed_valid_samples: Sequence[int] = ()
    topology: Topology | None = None
    micro_batch_size: int | None = None
    schedule: BatchSchedule | None = None
    eval_micro_batch_size: int | None = None
    eval_global_batch_size: int | None = None
    mode: str | None = None
    tail: str | None = None
    sharded: bool | None = None
    steps: int | None = None
    blend: str | None = None
    seed: int = DEFAULT_SEED

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON values, for people who read a plan."""
        value = {name: getattr(self, name) for name in self.__slots__}
        value["topology"] = None if self.topology is None else self.topology.to_json()
        value["schedule"] = None if self.schedule is None else self.schedule.to_json()
        return value | {"consumed_valid_samples": list(self.consumed_valid_samples)}


@dataclass(frozen=True, slots=True)
class _Continued:
    """A stream that goes on, where it was stopped, and what the user should know."""

    stream: Stream
    stopped: StoppedStream
    warnings: tuple[str, ...] = ()


def replan(plan: Plan, request: ReplanRequest, directory: str | os.PathLike[str]) -> Plan:
    """Plan what is read after a stop.

    Without another blend this opens no data, except the arrays of a blend to count its datasets. With
    one it looks at each sample that was planned, and writes the new order into the directory: 10 bytes a
    sample.

    Args:
        plan: The plan that was stopped.
        request: How it goes on.
        directory: Where the new plan will be written; see
            :func:`~tokshard.sharding.publication.write_plan`.

    Raises:
        UsageError: The consumed samples are not at the end of a step, nothing is left, or sizes do not
            fit, with the numbers.
        MissingFileError, IntegrityError: A file that is needed is not there or has changed, or the plan
            is damaged.
        StorageError: The new order cannot be written.

    Example::

        request = ReplanRequest(consumed_samples=4096, topology=Topology(16))
        write_plan(replan(read_plan("plan"), request, "plan2"), "plan2")
    """
    topology = request.topology or plan.topology
    history = history_of(plan)
    _check_valid_counts(plan, request)
    continued = {}
    for name, stream in plan.streams.items():
        try:
            stops = stops_of(history, name)
            if name == TRAIN and request.blend is not None:
                place = os.path.abspath(directory)
                continued[name] = _reweighted(name, stream, stops, topology, request, plan, place)
            else:
                continued[name] = _continued(name, stream, stops, topology, request, plan)
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", hint=error.hint) from error
    if request.blend is not None and TRAIN not in plan.streams:
        raise UsageError("the plan has no training to be weighted anew")
    entry = Replanning(plan.plan_id, {name: one.stopped for name, one in continued.items()})
    return Plan(
        topology=topology,
        streams={name: one.stream for name, one in continued.items()},
        options=request.to_json(),
        history=(*plan.history, entry.to_json()),
        warnings=tuple(warning for one in continued.values() for warning in one.warnings),
    )


def _continued(
    name: str,
    stream: Stream,
    stops: tuple[StoppedStream, ...],
    topology: Topology,
    request: ReplanRequest,
    plan: Plan,
) -> _Continued:
    """Go on with what is unread of the same samples."""
    stopped = stream.assignment
    step = stop_step(stopped, _consumed(name, plan, request))
    world, schedule = _world(name, stream, topology, request)
    dealing = _dealing(name, stream, request)
    steps = request.steps if name == TRAIN else None
    continuation = go_on(stopped, step, world, schedule, dealing, steps=steps)
    after = continuation.assignment
    for _, message in continuation_problems(stopped, step, after):
        raise UsageError(f"the plan cannot go on: {message}")
    key_of = None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)
    before = before_counts(stops, stopped, step)
    proof = prove_remainder(stopped, step, after, Locator(stream.source), before, key_of)
    changed = replace(stream, assignment=after, mode=dealing.mode, tail=dealing.tail)
    return _Continued(changed, StoppedStream(stopped, step, proof))


def _reweighted(
    name: str,
    stream: Stream,
    stops: tuple[StoppedStream, ...],
    topology: Topology,
    request: ReplanRequest,
    plan: Plan,
    directory: str,
) -> _Continued:
    """Go on with other weights: each dataset at its own next unread sample."""
    stopped = stream.assignment
    step = stop_step(stopped, _consumed(name, plan, request))
    consumed = stopped.consumed_after(step)
    world, schedule = _world(name, stream, topology, request)
    dealing = _dealing(name, stream, request)
    left = stopped.consumed_after(stopped.steps) - consumed
    steps = request.steps or schedule.timeline(world.group, consumed, stop=consumed + left).steps_within(left)
    if not steps:
        raise UsageError(f"no step is left after {consumed} consumed samples", hint="give --steps")
    timeline = schedule.timeline(world.group, consumed, steps=steps)
    samples = int(timeline.consumed(np.array([steps]))[0]) - consumed
    pairs, warnings = read_weights(request.blend or "", stream.source, name)
    ingredients = match_ingredients(pairs, stream.source, standings_of(stream, step, stops))
    identity = {"plan_id": plan.plan_id, "stream": name, "step": step, "samples": samples}
    source, record, proof = _mixed(ingredients, samples, request.seed, directory, name, identity)
    whole = deal_epochs(SampleOrder(samples), 0, 1, world, dealing)
    after = Assignment((whole,), world.micro_batch_size, schedule, steps, consumed)
    if stream.sort_key is not None:
        warnings = (*warnings, "the new blend is read in its own order, without bucketing")
    changed = Stream(source, after, dealing.mode, dealing.tail, boundaries=stream.boundaries)
    return _Continued(changed, StoppedStream(stopped, step, proof, record), warnings)


def _mixed(
    ingredients: Sequence[Ingredient],
    samples: int,
    seed: int,
    directory: str,
    name: str,
    identity: dict[str, Any],
) -> tuple[SampleSource, Reweighting, StreamProof]:
    """Write a new blend; return its samples, how it was made, and what was counted."""
    weights = [one.weight for one in ingredients]
    standings = [one.standing for one in ingredients]
    drawn = sum(weight > 0 for weight in weights)
    mixture = mix(weights[:drawn], standings[:drawn], samples, seed)
    datasets = tuple(one.reference for one in ingredients)
    identity["datasets"] = [one.to_json(Places.nowhere()) for one in datasets]
    syscalls.make_directory(directory)
    files, record = write_mixture(
        mixture, standings, weights, seed, directory=directory, stream=name, made_from=identity
    )
    source = SampleSource("blend", name, samples, datasets, files)
    return source, record, count_draws(Locator(source), standings, mixture.laps)


def _world(
    name: str, stream: Stream, topology: Topology, request: ReplanRequest
) -> tuple[World, BatchSchedule]:
    """Return who goes on with a stream, and its batch sizes."""
    ranks, size, schedule = (
        topology.data_parallel,
        stream.assignment.micro_batch_size,
        stream.assignment.schedule,
    )
    if stream.mode == FULL_VALIDATION:
        return World(ranks, 1), BatchSchedule.constant(ranks)
    if name == TRAIN:
        size, schedule = request.micro_batch_size or size, request.schedule or schedule
        mode = request.mode or stream.mode
    else:
        size, mode = request.eval_micro_batch_size or request.micro_batch_size or size, stream.mode
        batch = request.eval_global_batch_size
        if batch is None and request.schedule is not None:
            batch = request.schedule.segments[-1][1]
        if batch is not None:
            schedule = BatchSchedule.constant(batch)
    return world_of(ranks, size, mode, schedule), schedule


def _dealing(name: str, stream: Stream, request: ReplanRequest) -> Dealing:
    """Return how a stream is dealt out from now on."""
    layout = stream.assignment.passes[-1].layout
    sharded = isinstance(layout, Blocked)
    if name != TRAIN:
        return Dealing(stream.mode, stream.tail, sharded)
    return Dealing(
        mode=request.mode or stream.mode,
        tail=request.tail or stream.tail,
        sharded=sharded if request.sharded is None else request.sharded,
        keep_order=request.mode is None or request.mode in STRIPED_MODES,
    )


def _consumed(name: str, plan: Plan, request: ReplanRequest) -> int:
    """Return the consumed samples of a stream; of one that nothing is said of, those it began with."""
    if name == TRAIN:
        return request.consumed_samples
    sets = [one for one in plan.streams if one.partition(".")[0] == "valid"]
    counts = list(request.consumed_valid_samples)
    if name not in sets or not counts:
        return plan.streams[name].assignment.consumed_samples
    return counts[sets.index(name)] if len(counts) > 1 else counts[0]


def _check_valid_counts(plan: Plan, request: ReplanRequest) -> None:
    sets = [one for one in plan.streams if one.partition(".")[0] == "valid"]
    if len(request.consumed_valid_samples) not in {0, 1, len(sets)}:
        raise UsageError(
            f"{len(request.consumed_valid_samples)} counts of consumed validation samples are given, "
            f"but the validation sets are {len(sets)}",
            hint="give one count for all sets, or one for each in their order",
        )


def stop_step(stopped: Assignment, consumed: int) -> int:
    """Return how many steps were taken when so many samples are consumed.

    Raises:
        UsageError: No step ends there.
    """
    last = stopped.consumed_after(stopped.steps)
    if consumed > last:
        raise UsageError(f"{consumed} consumed samples are more than the {last} of the plan")
    return stopped.timeline.boundary(consumed) if consumed < last else stopped.steps
