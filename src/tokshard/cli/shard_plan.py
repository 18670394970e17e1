"""``tokshard shard-plan``: options of a new plan or of one that continues another, calls, and rendering."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer  # noqa: TC002 - typer itself reads the annotation of the context

import tokshard
from tokshard import BatchSizes, ReplanOptions, ShardPlanOptions
from tokshard.cli import options, plan_options, rendering
from tokshard.cli.command_run import command_run
from tokshard.core.formatting import counted, duration, size
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard import ShardPlanReport


COMMON_OPTIONS = plan_options.COMMON_OPTIONS


def shard_plan(
    ctx: typer.Context,
    output: plan_options.Output,
    sources: plan_options.Sources = None,
    documents: plan_options.Documents = ShardPlanOptions.documents,
    split: plan_options.Split = None,
    path_as: plan_options.PathAs = None,
    digests: plan_options.Digests = ShardPlanOptions.digests,
    allow_tokenizer_mismatch: plan_options.AllowTokenizerMismatch = ShardPlanOptions.allow_tokenizer_mismatch,
    world_size: plan_options.WorldSize = None,
    data_parallel: plan_options.DataParallel = None,
    tensor_parallel: plan_options.TensorParallel = ShardPlanOptions.tensor_parallel,
    pipeline_parallel: plan_options.PipelineParallel = ShardPlanOptions.pipeline_parallel,
    context_parallel: plan_options.ContextParallel = ShardPlanOptions.context_parallel,
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
    shuffle_window: plan_options.ShuffleWindow = ShardPlanOptions.shuffle_window,
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
    from_plan: plan_options.FromPlan = None,
    blend: plan_options.Blend = None,
    moved: plan_options.Moved = None,
    force: plan_options.Force = ShardPlanOptions.force,
    lock: options.Lock = ShardPlanOptions.lock,
    dry_run: plan_options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    r"""Plan which samples each rank of a training job reads at each step.

    All ranks take the same number of steps, and no sample is read twice in an epoch. The defaults are
    Megatron's order.

    Examples:
        tokshard shard-plan mix --data-parallel 8 --global-batch-size 256 -o plan

        tokshard shard-plan mix --world-size 1024 --tensor-parallel 8 \
            --pipeline-parallel 4 --global-batch-size 1024 -o plan

        tokshard shard-plan 'data/chat-*' --documents --mode contiguous \
            --shuffle shards --data-parallel 8 --bucket-buffer 4096 -o plan

        tokshard shard-plan --from plan --consumed-samples 1M --data-parallel 16 \
            -o plan2
    """
    with command_run(as_json=as_json, quiet=quiet) as run:
        given = Given(ctx)
        if from_plan is not None:
            mapping = PathMapping.of(options.parse_moved(moved))
            replanning = replan_options(from_plan, given, mapping, blend=blend)
            report = tokshard.replan(replanning, dry_run=dry_run, progress=run.progress)
        else:
            given.refuse(_ONLY_FROM, "requires --from")
            planning = ShardPlanOptions(
                sources=tuple(sources or ()),
                output=output,
                documents=documents,
                split=split,
                path_as=options.parse_path_as(path_as),
                digests=digests,
                allow_tokenizer_mismatch=allow_tokenizer_mismatch,
                world_size=world_size,
                data_parallel=data_parallel,
                tensor_parallel=tensor_parallel,
                pipeline_parallel=pipeline_parallel,
                context_parallel=context_parallel,
                mtp_stages=parse_stages(mtp_stages),
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
                shuffle_window=shuffle_window,
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
                force=force,
                lock=lock,
            )
            report = tokshard.shard_plan(planning, dry_run=dry_run, progress=run.progress)
        run.warn(report.plan.messages)
        run.show(report, _show)


def _show(report: ShardPlanReport) -> None:
    from tokshard.checks.inspect.plan_facts import describe_plan

    rendering.show(describe_plan(report.plan, charts=False))
    if report.files is None or report.size_bytes is None:
        rendering.line("nothing was written (--dry-run)")
        return
    rendering.outcome(
        [
            ("written", f"{report.output}: {counted(report.files, 'file')}, {size(report.size_bytes)}"),
            ("time", duration(report.seconds)),
            ("next", f"tokshard inspect {shlex.quote(report.output)}"),
        ]
    )


_FIXED = (
    "sources",
    "documents",
    "split",
    "path_as",
    "digests",
    "epochs",
    "equal_counts",
    "shuffle",
    "shuffle_block",
    "shuffle_window",
    "shuffle_per_epoch",
    "bucket_buffer",
    "bucket_pack",
    "bucket_by",
    "document_boundaries",
    "full_validation",
)
"""Options that a plan has from the one that it continues."""

_SAME_NAME = (
    "output",
    "world_size",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "order",
    "micro_batch_size",
    "eval_micro_batch_size",
    "eval_global_batch_size",
    "mode",
    "tail",
    "data_sharding",
    "steps",
    "seed",
    "allow_tokenizer_mismatch",
    "force",
    "lock",
)
"""Options that are called the same here and in :class:`tokshard.ReplanOptions`."""

_ONLY_FROM = ("blend", "moved")
"""Options that require ``--from``."""


class Given:
    """The options that the user of a running command has passed, by the names of their parameters."""

    def __init__(self, ctx: typer.Context) -> None:
        self._command = ctx.command
        self._values: dict[str, Any] = {}
        for name, value in ctx.params.items():
            source = ctx.get_parameter_source(name)
            if source is not None and source.name not in {"DEFAULT", "DEFAULT_MAP"}:
                self._values[name] = value

    def value(self, name: str) -> Any:
        """Return an option, or None if it was not passed."""
        return self._values.get(name)

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse options that do not apply.

        Raises:
            UsageError: One of them was passed.
        """
        for name in names:
            if name in self._values:
                from tokshard.cli.parser_errors import name_of

                option = name_of(next(each for each in self._command.params if each.name == name))
                raise UsageError(f"{option} {reason}", hint=f"leave out {option}")


def replan_options(
    path: str,
    given: Given,
    moved: PathMapping,
    *,
    blend: str | None,
) -> ReplanOptions:
    """Return the options of a plan that continues another one; options not passed keep its values.

    Raises:
        UsageError: ``--consumed-samples`` was not passed, or an option does not apply.
    """
    given.refuse(_FIXED, "cannot be changed with --from: the continued plan determines it")
    if blend is None and given.value("seed") is not None:
        raise UsageError("--seed has no effect with --from unless --blend begins new source epochs")
    if blend is not None and given.value("dry_run"):
        raise UsageError("--dry-run cannot be used with --blend", hint="leave out --dry-run")
    consumed = given.value("consumed_samples")
    if consumed is None:
        raise UsageError(
            "--from requires --consumed-samples, the samples that all ranks have consumed",
            hint="pass the consumed samples from Megatron's log or checkpoint",
        )
    named = {name: value for name in _SAME_NAME if (value := given.value(name)) is not None}
    stages = given.value("mtp_stages")
    return ReplanOptions(
        plan=path,
        consumed_samples=consumed,
        consumed_valid_samples=tuple(given.value("consumed_valid_samples") or ()),
        mtp_stages=None if stages is None else parse_stages(stages),
        batch_sizes=BatchSizes(
            global_batch_size=given.value("global_batch_size"),
            step_batch_size_schedule=given.value("step_batch_size_schedule"),
            rampup_batch_size=given.value("rampup_batch_size"),
            decrease_if_needed=bool(given.value("decrease_batch_size_if_needed")),
        ),
        blend=blend,
        moved=moved,
        **named,
    )


def parse_stages(text: str | None) -> tuple[int, ...]:
    """Return the pipeline stages of ``--mtp-stages``.

    Raises:
        UsageError: The text is not a list of numbers.
    """
    try:
        return tuple(int(word) for word in (text or "").split(",") if word)
    except ValueError:
        raise UsageError(
            f"--mtp-stages must be a list of numbers, got {text!r}",
            hint="pass numbers such as --mtp-stages 3,7",
        ) from None
