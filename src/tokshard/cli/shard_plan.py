"""``tokshard shard-plan``: options, one library call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer  # noqa: TC002 - typer itself reads the annotation of the context

import tokshard
from tokshard import BatchSizes, ShardPlanOptions, ShardPlanReport, SimulateOptions
from tokshard.cli import failures, options, plan_options, replanning, simulation, terminal, views
from tokshard.cli.events import recorded
from tokshard.cli.notes import warn
from tokshard.cli.options import LogJson
from tokshard.core.path_mapping import PathMapping

if TYPE_CHECKING:
    from tokshard import Plan, PlanFiles


def shard_plan(
    ctx: typer.Context,
    output: plan_options.Output,
    sources: plan_options.Sources = None,
    from_plan: plan_options.FromPlan = None,
    blend: plan_options.Blend = None,
    moved: plan_options.Moved = None,
    documents: plan_options.Documents = ShardPlanOptions.documents,
    split: plan_options.Split = None,
    path_as: plan_options.PathAs = None,
    digests: plan_options.Digests = ShardPlanOptions.digests,
    world_size: plan_options.WorldSize = None,
    data_parallel: plan_options.DataParallel = None,
    tensor_parallel: plan_options.TensorParallel = ShardPlanOptions.tensor_parallel,
    pipeline_parallel: plan_options.PipelineParallel = ShardPlanOptions.pipeline_parallel,
    context_parallel: plan_options.ContextParallel = ShardPlanOptions.context_parallel,
    expert_parallel: plan_options.ExpertParallel = ShardPlanOptions.expert_parallel,
    expert_tensor_parallel: plan_options.ExpertTensorParallel = None,
    virtual_pipeline: plan_options.VirtualPipeline = None,
    mtp_stages: plan_options.MtpStages = None,
    order: plan_options.Order = ShardPlanOptions.order,
    micro_batch_size: plan_options.MicroBatchSize = ShardPlanOptions.micro_batch_size,
    global_batch_size: plan_options.GlobalBatchSize = None,
    step_batch_size_schedule: plan_options.StepBatchSizeSchedule = None,
    rampup_batch_size: plan_options.RampupBatchSize = None,
    decrease_batch_size_if_needed: plan_options.DecreaseBatchSizeIfNeeded = False,
    steps: plan_options.Steps = None,
    epochs: plan_options.Epochs = None,
    consumed_samples: plan_options.ConsumedSamples = ShardPlanOptions.consumed_samples,
    mode: plan_options.Mode = ShardPlanOptions.mode,
    data_sharding: plan_options.DataSharding = ShardPlanOptions.data_sharding,
    equal_counts: plan_options.EqualCounts = ShardPlanOptions.equal_counts,
    shuffle: plan_options.Shuffle = ShardPlanOptions.shuffle,
    shuffle_block: plan_options.ShuffleBlock = ShardPlanOptions.shuffle_block,
    shuffle_per_epoch: plan_options.ShufflePerEpoch = ShardPlanOptions.shuffle_per_epoch,
    tail: plan_options.Tail = ShardPlanOptions.tail,
    seed: plan_options.Seed = ShardPlanOptions.seed,
    bucket_buffer: plan_options.BucketBuffer = None,
    bucket_pack: plan_options.BucketPack = None,
    bucket_by: plan_options.BucketBy = None,
    document_boundaries: plan_options.DocumentBoundaries = ShardPlanOptions.document_boundaries,
    eval_global_batch_size: plan_options.EvalGlobalBatchSize = None,
    eval_micro_batch_size: plan_options.EvalMicroBatchSize = None,
    full_validation: plan_options.FullValidation = ShardPlanOptions.full_validation,
    consumed_valid_samples: plan_options.ConsumedValidSamples = None,
    simulate: plan_options.Simulate = False,
    staging: plan_options.Staging = None,
    simulate_steps: plan_options.SimulateSteps = SimulateOptions.steps,
    simulate_stream: plan_options.SimulateStream = SimulateOptions.stream,
    ranks_per_node: plan_options.RanksPerNode = SimulateOptions.ranks_per_node,
    bandwidth: plan_options.Bandwidth = None,
    staging_remote: plan_options.StagingRemote = None,
    packed: plan_options.Packed = ShardPlanOptions.packed,
    force: plan_options.Force = ShardPlanOptions.force,
    dry_run: plan_options.DryRun = False,
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
        looking = simulation.look_ahead(
            simulate=simulate,
            stream=simulate_stream,
            steps=simulate_steps,
            ranks_per_node=ranks_per_node,
            bandwidth=bandwidth,
            directory=staging,
            remote=staging_remote,
            dry_run=dry_run,
        )
        given = replanning.Given.of(ctx)
        if from_plan is not None:
            pairs = (one.partition("=") for one in moved or ())
            mapping = PathMapping.of((old, new) for old, _, new in pairs)
            plan = tokshard.dry_run_replan(replanning.replan_options(from_plan, given, blend, mapping))
        else:
            given.refuse(replanning.ONLY_FROM, "has a meaning with --from only")
            plan = tokshard.dry_run_shard_plan(
                ShardPlanOptions(
                    sources=tuple(sources or ()),
                    output=output,
                    documents=documents,
                    split=split,
                    path_as=options.parse_path_as(path_as),
                    digests=digests,
                    world_size=world_size,
                    data_parallel=data_parallel,
                    tensor_parallel=tensor_parallel,
                    pipeline_parallel=pipeline_parallel,
                    context_parallel=context_parallel,
                    expert_parallel=expert_parallel,
                    expert_tensor_parallel=expert_tensor_parallel,
                    virtual_pipeline=virtual_pipeline,
                    mtp_stages=replanning.parse_stages(mtp_stages),
                    order=order,
                    micro_batch_size=micro_batch_size,
                    batch_sizes=BatchSizes(
                        global_batch_size=global_batch_size,
                        step_batch_size_schedule=step_batch_size_schedule,
                        rampup_batch_size=rampup_batch_size,
                        decrease_if_needed=decrease_batch_size_if_needed,
                    ),
                    steps=steps,
                    epochs=epochs,
                    consumed_samples=consumed_samples,
                    mode=mode,
                    data_sharding=data_sharding,
                    equal_counts=equal_counts,
                    shuffle=shuffle,
                    shuffle_block=shuffle_block,
                    shuffle_per_epoch=shuffle_per_epoch,
                    tail=tail,
                    seed=seed,
                    bucket_buffer=bucket_buffer,
                    bucket_pack=bucket_pack,
                    bucket_by=bucket_by,
                    document_boundaries=document_boundaries,
                    eval_global_batch_size=eval_global_batch_size,
                    eval_micro_batch_size=eval_micro_batch_size,
                    full_validation=full_validation,
                    consumed_valid_samples=tuple(consumed_valid_samples or ()),
                )
            )
        warn(plan.warnings, log=log, quiet=quiet)
        _finish(
            plan, output, looking, packed=packed, force=force, dry_run=dry_run, as_json=as_json, quiet=quiet
        )


def _finish(
    plan: Plan,
    output: str,
    looking: simulation.LookAhead,
    *,
    packed: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the plan and the lists, follow it, and say what it is."""
    reads = None if looking.simulate is None else tokshard.simulate_plan(plan, looking.simulate)
    files = None if dry_run else tokshard.write_plan(plan, output, packed=packed, force=force)
    lists = None if looking.staging is None else tokshard.stage_plan(plan, looking.staging)
    if as_json:
        terminal.say_json(ShardPlanReport.of(plan, output, files, reads, lists).to_json())
        return
    if quiet:
        return
    _show(plan, output, files)
    if reads is not None:
        simulation.show_simulation(reads)
    if lists is not None and looking.staging is not None:
        simulation.show_staging(lists, looking.staging)
    if files is not None:
        terminal.say(f"next: tokshard inspect {terminal.safe(output)}")


def _show(plan: Plan, output: str, files: PlanFiles | None) -> None:
    views.show(tokshard.describe(plan, charts=False))
    replanning.show_proofs(plan)
    if files is None:
        terminal.say("nothing was written (--dry-run)")
        return
    size = f"{terminal.count(files.count)} files, {terminal.size(files.size_bytes)}"
    terminal.say(f"{terminal.safe(output)}: {size}")
