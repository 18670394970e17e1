"""``tokshard shard-plan``: options, one library call, one rendering."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, options, plans, replanning, simulation, terminal
from tokshard.cli.events import LogJson, recorded
from tokshard.cli.quantities import parse_bytes, parse_count
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard.sharding.plan.document import Plan
    from tokshard.sharding.plan.publication import PlanFiles
    from tokshard.sharding.reading.simulation import StepLoad
    from tokshard.sharding.schedule import BatchSchedule
    from tokshard.sharding.source.samples import SampleSource

SCHEMA = "tokshard.shard-plan/1"

_SAMPLES = "Samples"
_RANKS = "Ranks"
_BATCHES = "Batches and steps"
_ORDER = "Order"
_EVALUATION = "Validation and testing"
_GOING_ON = "Going on from a plan"
_LOOKING_AHEAD = "What it will read"


_Sizes = tuple[int | None, str | None, tuple[int, int, int] | None]
"""``--global-batch-size``, ``--step-batch-size-schedule`` and ``--rampup-batch-size``."""


def _number(*names: str, text: str, panel: str, shown: str | bool = False) -> Any:
    return typer.Option(
        *names, parser=parse_count, metavar="N", help=text, show_default=shown, rich_help_panel=panel
    )


def _choice(name: str, text: str, panel: str, default: str) -> Any:
    return typer.Option(name, help=text, show_default=default, rich_help_panel=panel)


def shard_plan(
    ctx: typer.Context,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="PLAN", help="Write plan.json and rank-*.json here.", show_default=False
        ),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="A blend (directory or blend.json), or built indexes; with --documents data sets.",
            show_default=False,
        ),
    ] = None,
    from_plan: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLAN",
            help="Go on from this plan after --consumed-samples; what is not given stays as it is.",
            show_default=False,
            rich_help_panel=_GOING_ON,
        ),
    ] = None,
    blend: Annotated[
        str | None,
        typer.Option(
            "--blend",
            metavar="NEW",
            help="With other weights: a blend, or a recipe, or words such as '0.7 data/web 0.3 data/code'.",
            show_default=False,
            rich_help_panel=_GOING_ON,
        ),
    ] = None,
    moved: Annotated[
        list[str] | None,
        typer.Option(
            "--moved",
            metavar="OLD=NEW",
            help="Data of the plan that lay below OLD lies below NEW; may be repeated.",
            show_default=False,
            rich_help_panel=_GOING_ON,
        ),
    ] = None,
    documents: Annotated[
        bool,
        typer.Option("--documents", help="The samples are the documents.", rich_help_panel=_SAMPLES),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="NAMES",
            help="Only these: train,valid,test. Of documents also shares, such as 98,1,1.",
            show_default="all; of documents train",
            rich_help_panel=_SAMPLES,
        ),
    ] = None,
    path_as: Annotated[
        list[str] | None,
        typer.Option(
            "--path-as",
            metavar="LOCAL=TRAINING",
            help="The data that an index names TRAINING lies at LOCAL; may be repeated.",
            show_default=False,
            rich_help_panel=_SAMPLES,
        ),
    ] = None,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests/--no-digests",
            help="Read .idx files whole to see that indexes were made from them.",
            rich_help_panel=_SAMPLES,
        ),
    ] = True,
    world_size: Annotated[int | None, _number("--world-size", text="All ranks.", panel=_RANKS)] = None,
    data_parallel: Annotated[
        int | None,
        _number("--data-parallel", text="Ranks that read different samples, instead.", panel=_RANKS),
    ] = None,
    tensor_parallel: Annotated[
        int,
        _number("--tensor-parallel", "--tensor-model-parallel-size", text="Tensor.", panel=_RANKS, shown="1"),
    ] = 1,
    pipeline_parallel: Annotated[
        int,
        _number(
            "--pipeline-parallel", "--pipeline-model-parallel-size", text="Pipeline.", panel=_RANKS, shown="1"
        ),
    ] = 1,
    context_parallel: Annotated[
        int,
        _number("--context-parallel", "--context-parallel-size", text="Context.", panel=_RANKS, shown="1"),
    ] = 1,
    expert_parallel: Annotated[
        int,
        _number("--expert-parallel", "--expert-model-parallel-size", text="Expert.", panel=_RANKS, shown="1"),
    ] = 1,
    expert_tensor_parallel: Annotated[
        int | None,
        _number(
            "--expert-tensor-parallel",
            "--expert-tensor-parallel-size",
            text="Tensor, of expert layers.",
            panel=_RANKS,
            shown="as tensor",
        ),
    ] = None,
    virtual_pipeline: Annotated[
        int | None,
        _number(
            "--virtual-pipeline",
            "--virtual-pipeline-model-parallel-size",
            text="Model chunks of a rank.",
            panel=_RANKS,
        ),
    ] = None,
    mtp_stages: Annotated[
        str | None,
        typer.Option(
            "--mtp-stages",
            metavar="N,...",
            help="Pipeline stages with multi-token prediction: they read every field.",
            show_default=False,
            rich_help_panel=_RANKS,
        ),
    ] = None,
    order: Annotated[
        str, _choice("--order", "Dimensions from the fastest.", _RANKS, "tp-cp-ep-dp-pp")
    ] = "tp-cp-ep-dp-pp",
    micro_batch_size: Annotated[
        int,
        _number("--micro-batch-size", text="Samples of a rank at a time.", panel=_BATCHES, shown="1"),
    ] = 1,
    global_batch_size: Annotated[
        int | None,
        _number(
            "--global-batch-size",
            text="Samples of a step.",
            panel=_BATCHES,
            shown="micro batch x data-parallel",
        ),
    ] = None,
    step_batch_size_schedule: Annotated[
        str | None,
        typer.Option(
            "--step-batch-size-schedule",
            metavar="'N:SIZE ...'",
            help="Samples of a step from N tokens on (documents: N samples); Megatron since 0.18.",
            show_default=False,
            rich_help_panel=_BATCHES,
        ),
    ] = None,
    rampup_batch_size: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            "--rampup-batch-size",
            metavar="START INCREMENT SAMPLES",
            help="Grow to the global batch size; Megatron up to 0.17.",
            show_default=False,
            rich_help_panel=_BATCHES,
        ),
    ] = None,
    decrease_batch_size_if_needed: Annotated[
        bool,
        typer.Option(
            "--decrease-batch-size-if-needed",
            help="Round sizes down that the ranks do not divide.",
            rich_help_panel=_BATCHES,
        ),
    ] = False,
    steps: Annotated[
        int | None,
        _number(
            "--steps",
            "--train-iters",
            text="Steps of training.",
            panel=_BATCHES,
            shown="what the epochs fill",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        _number("--epochs", text="How often training data is read.", panel=_BATCHES, shown="1"),
    ] = None,
    consumed_samples: Annotated[
        int,
        _number("--consumed-samples", text="Read before by all ranks.", panel=_BATCHES, shown="0"),
    ] = 0,
    mode: Annotated[
        str,
        _choice("--mode", "single, cyclic, contiguous, sequential or chunked.", _ORDER, "single"),
    ] = "single",
    data_sharding: Annotated[
        bool,
        typer.Option(
            "--data-sharding/--no-data-sharding",
            help="cyclic: each rank has samples of its own.",
            rich_help_panel=_ORDER,
        ),
    ] = True,
    equal_counts: Annotated[
        bool,
        typer.Option(
            "--equal-counts",
            help="cyclic without sharding: cut what Megatron gives to some ranks only.",
            rich_help_panel=_ORDER,
        ),
    ] = False,
    shuffle: Annotated[
        str, _choice("--shuffle", "none, shards, samples or blocks.", _ORDER, "none")
    ] = "none",
    shuffle_block: Annotated[
        int, _number("--shuffle-block", text="Samples of a block.", panel=_ORDER, shown="65536")
    ] = 65536,
    shuffle_per_epoch: Annotated[
        bool,
        typer.Option("--shuffle-per-epoch", help="Shuffle each epoch anew.", rich_help_panel=_ORDER),
    ] = False,
    tail: Annotated[
        str,
        _choice("--tail", "What fills no batch: drop, pad or error.", _ORDER, "drop"),
    ] = "drop",
    seed: Annotated[
        int, _number("--seed", text="Of shuffles and buckets.", panel=_ORDER, shown="1234")
    ] = 1234,
    bucket_buffer: Annotated[
        int | None,
        _number("--bucket-buffer", text="Sort so many samples at a time.", panel=_ORDER),
    ] = None,
    bucket_pack: Annotated[
        int | None,
        _number(
            "--bucket-pack",
            text="So many similar samples come together.",
            panel=_ORDER,
            shown="micro batch x data-parallel",
        ),
    ] = None,
    bucket_by: Annotated[
        str | None,
        _choice(
            "--bucket-by",
            "Of documents length or sequences, else pieces (of documents).",
            _ORDER,
            "length, or pieces",
        ),
    ] = None,
    document_boundaries: Annotated[
        bool,
        typer.Option(
            "--document-boundaries",
            help="Attention ends with documents: every stage reads their boundaries.",
            rich_help_panel=_ORDER,
        ),
    ] = False,
    eval_global_batch_size: Annotated[
        int | None,
        _number(
            "--eval-global-batch-size", text="Samples of a step.", panel=_EVALUATION, shown="as training"
        ),
    ] = None,
    eval_micro_batch_size: Annotated[
        int | None,
        _number(
            "--eval-micro-batch-size",
            text="Samples of a rank at a time.",
            panel=_EVALUATION,
            shown="as training",
        ),
    ] = None,
    full_validation: Annotated[
        bool,
        typer.Option(
            "--full-validation", help="All of validation, one sample a rank.", rich_help_panel=_EVALUATION
        ),
    ] = False,
    consumed_valid_samples: Annotated[
        list[int] | None,
        _number(
            "--consumed-valid-samples",
            text="Read before; once for all sets, or for each.",
            panel=_EVALUATION,
            shown="0",
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Count samples, documents, bytes, pages and open files of steps, ranks and nodes.",
            rich_help_panel=_LOOKING_AHEAD,
        ),
    ] = False,
    staging: Annotated[
        str | None,
        typer.Option(
            "--staging",
            metavar="DIR",
            help="Write for each node the files and byte ranges that it reads: for rsync or s5cmd.",
            show_default=False,
            rich_help_panel=_LOOKING_AHEAD,
        ),
    ] = None,
    simulate_steps: Annotated[
        int,
        _number("--simulate-steps", text="In so many steps.", panel=_LOOKING_AHEAD, shown="10"),
    ] = simulation.DEFAULT_STEPS,
    simulate_stream: Annotated[
        str, _choice("--simulate-stream", "Of this stream.", _LOOKING_AHEAD, "train")
    ] = "train",
    ranks_per_node: Annotated[
        int,
        _number("--ranks-per-node", text="Neighbouring ranks of a node.", panel=_LOOKING_AHEAD, shown="8"),
    ] = 8,
    bandwidth: Annotated[
        int | None,
        typer.Option(
            "--bandwidth",
            parser=parse_bytes,
            metavar="SIZE",
            help="What a node gets from storage in a second, such as 2GB: adds times.",
            show_default=False,
            rich_help_panel=_LOOKING_AHEAD,
        ),
    ] = None,
    staging_remote: Annotated[
        str | None,
        typer.Option(
            "--staging-remote",
            metavar="URL",
            help="Where / lies in an object store, such as s3://bucket/cluster: adds lists for s5cmd.",
            show_default=False,
            rich_help_panel=_LOOKING_AHEAD,
        ),
    ] = None,
    packed: Annotated[
        bool,
        typer.Option("--packed", help="Put all ranks' manifests into one file.", rich_help_panel=options.RUN),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another plan.", rich_help_panel=options.RUN)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Plan and check, and write nothing.", rich_help_panel=options.RUN),
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    log_json: LogJson = None,
) -> None:
    """Plan which samples every rank of a job reads: the same number of steps everywhere, nothing twice.

    [bold]Examples[/bold]

    tokshard shard-plan mix --data-parallel 8 --global-batch-size 256 -o plan

    tokshard shard-plan mix --world-size 1024 --tensor-parallel 8 --pipeline-parallel 4
    --context-parallel 2 --micro-batch-size 2 --global-batch-size 1024 -o plan

    tokshard shard-plan 'data/chat-*' --documents --mode contiguous --shuffle shards
    --data-parallel 8 --bucket-buffer 4096 -o plan

    tokshard shard-plan --from plan --consumed-samples 1M --data-parallel 16 -o plan2

    The default is what Megatron does: mode single, no shuffle, and the tail is dropped.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "shard-plan") as log:
        from tokshard.sharding.plan.job import plan_shards
        from tokshard.sharding.plan.request import PlanRequest, StreamRequest
        from tokshard.sharding.source.discovery import Wanted, open_sources
        from tokshard.sharding.topology import Topology

        looking = simulation.SimulationRequest(
            simulate_steps, ranks_per_node, bandwidth, simulate_stream, simulate, staging, staging_remote
        )
        looking.check(dry_run=dry_run)
        given = replanning.Given.of(ctx)
        sizes = (global_batch_size, step_batch_size_schedule, rampup_batch_size)
        if from_plan is not None:
            plan = _plan_from(from_plan, given, blend, moved, sizes, round_down=decrease_batch_size_if_needed)
        else:
            given.refuse(replanning.ONLY_FROM, "has a meaning with --from only")
            topology = Topology(
                _world_size(
                    world_size, data_parallel, tensor_parallel * pipeline_parallel * context_parallel
                ),
                tensor=tensor_parallel,
                pipeline=pipeline_parallel,
                context=context_parallel,
                order=order,
                virtual_pipeline=virtual_pipeline,
                mtp_stages=_stages(mtp_stages),
                expert=expert_parallel,
                expert_tensor=expert_tensor_parallel,
            )
            wanted = Wanted(documents, split, options.parse_path_as(path_as), digests)
            found = open_sources(sources or (), wanted)
            source = next(iter(found.values()))
            schedule = _schedule(sizes, source, round_down=decrease_batch_size_if_needed)
            train = StreamRequest(
                mode=mode,
                tail=tail,
                shuffle=shuffle,
                seed=seed,
                block=shuffle_block,
                per_epoch=shuffle_per_epoch,
                sharded=data_sharding,
                equal_counts=equal_counts,
                micro_batch_size=micro_batch_size,
                schedule=schedule,
                steps=steps,
                epochs=epochs,
                consumed_samples=consumed_samples,
                bucket_buffer=bucket_buffer,
                bucket_pack=bucket_pack,
                sort_key=bucket_by,
                boundaries=document_boundaries,
            )
            request = PlanRequest(
                train=train,
                eval_global_batch_size=eval_global_batch_size,
                eval_micro_batch_size=eval_micro_batch_size,
                full_validation=full_validation,
                consumed_valid_samples=tuple(consumed_valid_samples or ()),
            )
            plan = plan_shards(found, topology, request)
        log.warnings(plan.warnings)
        _finish(
            plan, output, looking, packed=packed, force=force, dry_run=dry_run, as_json=as_json, quiet=quiet
        )


def _plan_from(
    path: str,
    given: replanning.Given,
    blend: str | None,
    moved: list[str] | None,
    sizes: _Sizes,
    *,
    round_down: bool,
) -> Plan:
    """Go on from a plan."""
    from tokshard.sharding.plan.document import read_plan
    from tokshard.sharding.replan.job import replan

    roots = {old: new for old, _, new in (one.partition("=") for one in moved or ())}
    plan = read_plan(path, roots=roots)
    source = next(iter(plan.streams.values())).source
    request = replanning.replan_request(
        plan,
        given,
        blend,
        world_size=_world_size,
        schedule=_schedule(sizes, source, round_down=round_down),
        mtp_stages=_stages(given.value("mtp_stages")),
    )
    return replan(plan, request, given.value("output"))


def _world_size(world_size: int | None, data_parallel: int | None, model: int) -> int:
    """Return the number of ranks.

    Raises:
        UsageError: It is not said, or said in two ways that differ.
    """
    if world_size is None and data_parallel is None:
        raise UsageError("how many ranks are there?", hint="give --world-size or --data-parallel")
    if data_parallel is None:
        return world_size or 0
    if world_size is not None and world_size != data_parallel * model:
        raise UsageError(
            f"--world-size {world_size} is not --data-parallel {data_parallel} x tensor x pipeline x context "
            f"= {data_parallel} x {model} = {data_parallel * model}",
            hint="give one of the two",
        )
    return data_parallel * model


def _stages(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in (text or "").split(",") if word)
    except ValueError:
        raise UsageError(f"--mtp-stages {text!r} is no list of numbers", hint="for example 3,7") from None


def _schedule(sizes: _Sizes, source: SampleSource, *, round_down: bool) -> BatchSchedule | None:
    """Return the batch size over time; None if nothing is said of it.

    Raises:
        UsageError: It is said in two ways, or not completely.
    """
    from tokshard.sharding.schedule import BatchSchedule

    size, steps, rampup = sizes
    if steps is not None:
        if size is not None or rampup is not None:
            other = "--global-batch-size" if size is not None else "--rampup-batch-size"
            raise UsageError(f"--step-batch-size-schedule and {other} exclude each other")
        return replace(BatchSchedule.parse(steps, source.sequence_length), round_down=round_down)
    if rampup is not None:
        if size is None:
            raise UsageError("--rampup-batch-size needs --global-batch-size, the size that it grows to")
        return BatchSchedule.rampup(*rampup, size, round_down=round_down)
    if size is None:
        if round_down:
            raise UsageError("--decrease-batch-size-if-needed needs --global-batch-size")
        return None
    return BatchSchedule.constant(size, round_down=round_down)


def _finish(
    plan: Plan,
    output: str,
    looking: simulation.SimulationRequest,
    *,
    packed: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the plan and the lists, follow it, and say what it is."""
    from tokshard.sharding.plan.publication import write_plan

    for warning in () if quiet else plan.warnings:
        terminal.tell(f"warning: {terminal.safe(warning)}")
    loads = simulation.simulate(plan, looking) if looking.simulates else None
    files = None if dry_run else write_plan(plan, output, packed=packed, force=force)
    lists = simulation.write_lists(plan, looking) if looking.directory is not None else None
    if as_json:
        terminal.say_json(_json(plan, output, files, looking, loads, lists))
        return
    if quiet:
        return
    _show(plan, output, files)
    if loads is not None:
        simulation.show_simulation(loads, looking)
    if lists is not None:
        simulation.show_lists(lists, looking)
    if files is not None:
        terminal.say(f"next: tokshard inspect {terminal.safe(output)}")


def _json(
    plan: Plan,
    output: str,
    files: PlanFiles | None,
    looking: simulation.SimulationRequest,
    loads: list[StepLoad] | None,
    lists: dict[str, Any] | None,
) -> dict[str, Any]:
    from tokshard.diagnosis.plans import PlanSummary

    written = None
    if files is not None:
        written = {"directory": files.directory, "files": len(files.names), "bytes": files.size_bytes}
    return {
        "schema": SCHEMA,
        "plan": plan.to_json(output),
        "coverage": PlanSummary.of(plan).coverage_json(),
        "written": written,
        "simulation": None if loads is None else simulation.simulation_json(loads, looking),
        "staging": lists,
    }


def _show(plan: Plan, output: str, files: PlanFiles | None) -> None:
    from tokshard.diagnosis.plans import PlanSummary

    plans.show_summary(PlanSummary.of(plan))
    replanning.show_proofs(plan)
    if files is None:
        terminal.say("nothing was written (--dry-run)")
        return
    size = f"{terminal.count(len(files.names))} files, {terminal.size(files.size_bytes)}"
    terminal.say(f"{terminal.safe(output)}: {size}")
