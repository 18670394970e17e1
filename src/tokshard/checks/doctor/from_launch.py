"""The indexes that a launch script's job looks up, and its ranks and batches, as options of commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from tokshard.checks.doctor.build_command import BuildCommand
from tokshard.checks.doctor.forecast import config_of_launch, is_blend, local_recipe, prefixes_of
from tokshard.checks.doctor.launch.arguments import MODEL_SIZES, LaunchArguments, option_of
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.programs import unchecked_options, unsupported_data
from tokshard.checks.doctor.launch.rules import (
    check_arguments,
    check_processes,
    unknown_data,
    unknown_names,
    unknown_sizes,
)
from tokshard.checks.doctor.launch.source import read_job
from tokshard.checks.doctor.launch.unknown import NO_WORLD_SIZE, Unknown
from tokshard.checks.doctor.lookups import (
    JobCache,
    TokenizerNames,
    candidates_of_launch,
    chosen_candidate,
    identifiers_of_launch,
)
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.core.findings import Finding
from tokshard.core.formatting import shown_path
from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.core.options import StrPath, declared_options, several
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, TokshardError, UsageError
from tokshard.ranks.discovery import read_blends
from tokshard.ranks.options import ShardPlanOptions, batch_schedule
from tokshard.ranks.schedule import MAX_SAMPLES, BatchSchedule
from tokshard.ranks.topology import DEFAULT_ORDER
from tokshard.samples.blend.options import BlendOptions, BuilderConfig
from tokshard.samples.blend.plan import SplitPlan, plan_requests
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.index.options import BuildIndicesOptions, NamingOptions, effective_pairs

ResultT = TypeVar("ResultT")

_BATCHES = ("micro_batch_size", "global_batch_size", "rampup_batch_size", "step_batch_size_schedule")
_STEPS = ("train_iters", "train_samples", "phase_transition_iterations")
_SAMPLERS = ("dataloader_type", "no_data_sharding")
_EVALUATION = ("eval_global_batch_size", "eval_micro_batch_size", "full_validation")
_PLANNED = (*MODEL_SIZES, *_BATCHES, *_STEPS, *_EVALUATION, "seq_length", *_SAMPLERS)
# Modes by --dataloader-type; an external loader decides itself.
_MODES = {None: "single", "single": "single", "cyclic": "cyclic", "external": None}
# Options that change batches or the order of samples in a way that plans do not have.
_IGNORED = (
    "hybrid_context_parallel",
    "iterations_to_skip",
    "skip_train_iteration_range",
    "use_checkpoint_args",
)


@dataclass(frozen=True, slots=True)
class LaunchIndexes:
    """The indexes that the job of a launch script looks up.

    Attributes:
        recipe: The mixture of the job, with the path prefixes of this machine.
        config: The parameters of the job's dataset builder.
        cache_directory: The job's ``--data-cache-path`` on this machine, or None.
        tokenizer: The path of the job's tokenizer on this machine, if it differs from the job's.
        global_batch_size: The samples of the job's last step, or None if unknown.
        blend_command: The command that builds a blend of these indexes, for a hint.
        doctor_command: The command that checks the job.
        warnings: Messages for the user.
        defers_index_loading: Whether the job computes the sizes of indexes from token counts and therefore
            cannot read packed indexes.
    """

    recipe: BlendRecipe
    config: BuilderConfig
    cache_directory: str | None
    tokenizer: str | None
    global_batch_size: int | None
    blend_command: str
    doctor_command: str
    warnings: tuple[str, ...]
    defers_index_loading: bool = False

    def blend_options(self) -> BlendOptions:
        """Return options of :func:`tokshard.blend` without an output."""
        config, recipe = self.config, self.recipe
        paths = (*prefixes_of(recipe), self.cache_directory or "")
        return BlendOptions(
            recipe=recipe,
            seq_length=config.sequence_length,
            split=None if recipe.is_per_split else config.split,
            seed=config.seed,
            num_samples=config.sizes,
            surplus=config.surplus,
            naming=self._naming,
            path_as=effective_pairs(config.path_as, paths),
            cache_dir=self.cache_directory,
            global_batch_size=self.global_batch_size,
        )

    def build_indices_options(self, given: Sequence[str] = ()) -> BuildIndicesOptions:
        """Return options of :func:`tokshard.build_indices`.

        Args:
            given: Options to repeat in the command that an error suggests.

        Raises:
            UsageError: The job reads a blend.
        """
        splits = plan_requests(self.recipe, self.config)
        if is_blend(splits):
            raise UsageError(
                "the job reads a blend, and tokshard build-indices builds indexes of single datasets",
                hint=f"run {self.blend_command}" + (f" with {shlex.join(given)}" if given else ""),
            )
        return BuildIndicesOptions(
            requests=tuple(request for split in splits for request in split.requests),
            naming=self._naming,
            cache_dir=self.cache_directory,
        )

    def next_step(self, cache: StrPath | None) -> str:
        """Return the instruction to follow after the indexes are built in a cache."""
        check = f"check the launch script with `{self.doctor_command}`"
        if self.cache_directory is not None or cache is None:
            return check
        directory = shown_path(self.config.training_path(os.fspath(cache)))
        return f"add --data-cache-path {shlex.quote(directory)} to the launch command; {check}"

    @property
    def _naming(self) -> NamingOptions:
        return NamingOptions(tokenizer_identifiers=self.config.tokenizer, tokenizer=self.tokenizer)


def indexes_of_launch(job: str | os.PathLike[str] | DoctorOptions) -> LaunchIndexes:
    """Return the indexes that :func:`tokshard.doctor` looks up for a launch script, for building them.

    Args:
        job: The path of a launch script, a launch command, or options.

    Raises:
        UsageError: An argument that decides about the indexes or the version of Megatron is unknown, several
            launch commands need different indexes, or the job reads other data than GPT's.
        InputError: A file cannot be read, or the data is not on this machine.
        StorageError: The cache cannot be read.
    """
    options = job if isinstance(job, DoctorOptions) else DoctorOptions(launch=job)
    launches = read_job(options)
    recipe, config, cache_directory, tokenizer = _common("indexes", launches, partial(_indexes, options))
    first = launches[0]
    build = BuildCommand.of(options, first)
    return LaunchIndexes(
        recipe=recipe,
        config=config,
        cache_directory=cache_directory,
        tokenizer=tokenizer,
        global_batch_size=_last_batch_size(first.arguments),
        blend_command=build.text(is_blend=True, names=TokenizerNames("file"), is_named=True),
        doctor_command=shlex.join(("tokshard", "doctor", *build.options, build.launch)),
        warnings=_warnings(launches, "the data", "the indexes", unchecked_options),
        defers_index_loading=first.arguments.dataloader_defer_npy_index_mmap,
    )


def _common(kind: str, launches: Sequence[Launch], derive: Callable[[Launch], ResultT]) -> ResultT:
    """Return the result that all launch commands have in common.

    Raises:
        UsageError: The results differ.
        TokshardError: All launch commands have the same error.
    """
    results: list[ResultT] = []
    errors: list[TokshardError] = []
    for launch in launches:
        try:
            results.append(derive(launch))
        except TokshardError as error:
            errors.append(error)
    are_equal = all(result == results[0] for result in results)
    if not are_equal or (results and errors) or len({error.message for error in errors}) > 1:
        lines = "; ".join(f"line {launch.line}" for launch in launches)
        raise UsageError(
            f"{len(launches)} launch commands need different {kind}: {lines}",
            hint="pass one of the commands in quotes; `tokshard doctor --show-command` prints them",
        )
    if errors:
        raise errors[0]
    return results[0]


def _indexes(
    options: DoctorOptions, launch: Launch
) -> tuple[BlendRecipe, BuilderConfig, str | None, str | None]:
    """Return the recipe, the builder's parameters, and the local paths of the cache and the tokenizer."""
    arguments, paths = launch.arguments, PathMapping(options.path_as)
    _require_known(launch, options)
    recipe = local_recipe(arguments, paths)
    if not isinstance(recipe, BlendRecipe):
        message = recipe.message if isinstance(recipe, Finding) else recipe.reason
        raise InputError(message, hint=recipe.hint)
    config = config_of_launch(arguments, options.megatron, options.path_as)
    cache, splits = JobCache(arguments, paths), plan_requests(recipe, config)
    config = replace(config, tokenizer=_identifiers(arguments, options, cache, splits))
    return recipe, config, cache.directory, _local_tokenizer(arguments, paths)


def _last_batch_size(arguments: LaunchArguments) -> int | None:
    if arguments.step_batch_size_schedule is None:
        return arguments.batch_size
    return arguments.step_schedule().segments[-1][1]


def _require_known(launch: Launch, options: DoctorOptions) -> None:
    arguments = launch.arguments
    unsupported = unsupported_data(launch)
    if unsupported is not None:
        raise UsageError(
            f"tokshard cannot build the indexes of this job: {unsupported.reason}",
            hint="run `tokshard doctor` to check its other arguments",
        )
    for result in check_arguments(arguments, options.megatron):
        # A job with any of these errors does not start, or reads other data than it seems to.
        if isinstance(result, Finding) and result.severity == "error":
            raise UsageError(result.message, hint=result.hint)
    unknown = unknown_data(arguments) or unknown_sizes(arguments)
    if options.like is None and options.tokenizer_identifiers is None:
        unknown = unknown or unknown_names(arguments)
    if unknown is not None:
        raise UsageError(f"the indexes of the job are unknown: {unknown.reason}", hint=_hint_of(unknown))


def _hint_of(unknown: Unknown) -> str:
    quotes = ", in quotes: --from-launch 'SCRIPT PARAMETER'" if unknown.has_parameters else ""
    return unknown.hint + quotes


def _identifiers(
    arguments: LaunchArguments, options: DoctorOptions, cache: JobCache, splits: Sequence[SplitPlan]
) -> dict[str, object] | None:
    if (chosen := chosen_candidate(arguments, options)) is not None:
        return chosen.identifiers
    likeliest = cache.likeliest(splits)
    if cache.has_names_of([split.with_tokenizer(likeliest.identifiers) for split in splits]):
        return likeliest.identifiers
    candidates = candidates_of_launch(arguments)
    if len(candidates) == 1:
        return candidates[0].identifiers
    if not candidates:
        return identifiers_of_launch(arguments, MEGATRON_VERSIONS[-2])  # raises the error with the reason
    names = [" or ".join(reversed(candidate.names.versions)) for candidate in reversed(candidates)]
    raise UsageError(
        "the Megatron version of the job is unknown, and no cached index determines it",
        hint=f"pass --megatron VERSION; the names of the cache files differ between {'; '.join(names)}",
    )


def _local_tokenizer(arguments: LaunchArguments, paths: PathMapping) -> str | None:
    model = arguments.tokenizer_model
    if model is None or os.path.exists(model):
        return None
    local = paths.inverse().map(model)
    return local if os.path.exists(local) else None


def _warnings(
    launches: Sequence[Launch], subject: str, result: str, unchecked_of: Callable[[Launch], Sequence[str]]
) -> tuple[str, ...]:
    """Return the warnings about parts of launch commands that were not read, each once."""
    warnings: list[str] = []
    for launch in launches:
        warnings += [f"{undecided.reason}; {undecided.hint}" for undecided in launch.undecided_commands()]
        if (scripts := launch.unread_scripts()) is not None:
            warnings.append(f"scripts {scripts.reason}")
        if (hidden := launch.arguments.hidden_arguments()) is not None:
            warnings.append(f"{hidden.reason}; if they concern {subject}, {hidden.hint}")
        if unchecked := unchecked_of(launch):
            warnings.append(f"{', '.join(unchecked)} may change {result} in ways that are not checked")
    return tuple(dict.fromkeys(warnings))


def plan_of_launch(job: DoctorOptions, given: Mapping[str, Any]) -> tuple[ShardPlanOptions, tuple[str, ...]]:
    """Return the options of a plan for a launch script's job, and warnings.

    Args:
        job: The launch script.
        given: Options of the plan on the command line, by fields.

    Raises:
        UsageError: A number of the plan is unknown or invalid, an option is given that the launch command
            decides about, or several launch commands need different plans.
        InputError: A file cannot be read.
    """
    launches = read_job(job)
    options = _common("plans", launches, partial(_plan, given))
    return options, _warnings(launches, "ranks or batches", "the plan", _ignored_options)


def _ignored_options(launch: Launch) -> list[str]:
    return [option_of(name) for name in _IGNORED if name in launch.others]


def _plan(given: Mapping[str, Any], launch: Launch) -> ShardPlanOptions:
    arguments = launch.arguments
    passed = dict(given)
    if arguments.world_size is None and "world_size" in given:
        unknown = tuple(pair for pair in arguments.unknown if pair[0] != "world_size")
        arguments = replace(arguments, world_size=passed.pop("world_size"), unknown=unknown)
    _require_numbers(arguments)
    decided = _decided(arguments, launch.others)
    for field in passed:
        if field in decided:
            name = declared_options(ShardPlanOptions)[field].name
            raise UsageError(
                f"{name} cannot be used with --from-launch",
                hint=f"remove {name}: the launch command decides about it",
            )
    try:
        options = ShardPlanOptions(**passed, **decided)
    except UsageError as error:
        error.hint = error.hint or "correct this option, or the launch command"
        raise
    unplanned = {
        "--phase-transition-iterations": arguments.phase_transition_iterations is not None,
        "--pipeline-model-parallel-layout and --mtp-num-layers": (
            bool(options.mtp_stages) and "pipeline_model_parallel_layout" in launch.others
        ),
        "--step-batch-size-schedule in tokens": options.documents and options.step_batch_size_schedule,
    }
    for option, is_present in unplanned.items():
        if is_present:
            raise UsageError(
                f"the launch command has {option}, which --from-launch cannot plan",
                hint="pass the ranks, batches and steps as options instead of --from-launch",
            )
    blends = {} if options.documents else read_blends(several(options.sources))
    for path, blend in blends.items():
        sequence_length = blend.builder.sequence_length
        if arguments.sequence_length not in {None, sequence_length}:
            raise UsageError(
                f"{path} has samples of {sequence_length} tokens, but the launch command has "
                f"--seq-length {arguments.sequence_length}",
                hint="pass the blend of this job, which tokshard blend --from-launch builds",
            )
    return _with_progress(options, arguments)


def _require_numbers(arguments: LaunchArguments) -> None:
    """Raise an error for a number of the plan that is unknown, missing or invalid."""
    unknown = arguments.unknown_value(*_PLANNED)
    if unknown is None and arguments.world_size is None:
        unknown = arguments.unknown_value("world_size") or NO_WORLD_SIZE
        hint = f"{_hint_of(unknown)}, or --world-size N"
        unknown = replace(unknown, hint=hint, has_parameters=False)
    has_sizes = any(getattr(arguments, name) is not None for name in MODEL_SIZES)
    has_steps = arguments.train_iters or arguments.train_samples
    if unknown is None and not (has_sizes and has_steps and arguments.micro_batch_size):
        unknown = arguments.hidden_arguments()
    if unknown is None and arguments.micro_batch_size is None:
        unknown = Unknown("the command does not contain --micro-batch-size")
    if unknown is not None:
        raise UsageError(f"the plan of the job is unknown: {unknown.reason}", hint=_hint_of(unknown))
    for finding in check_processes(arguments):
        if finding.severity == "error":
            raise UsageError(finding.message, hint=finding.hint)


def _decided(arguments: LaunchArguments, others: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a plan that a launch command decides, by fields."""
    is_external = arguments.dataloader_type == "external"
    # Megatron broadcasts the batches of an external loader to the other ranks of a replica.
    sizes = [1 if is_external else getattr(arguments, name) or 1 for name in MODEL_SIZES]
    tensor, pipeline, context = sizes
    # ShardPlanOptions refuses words that are not numbers.
    words = arguments.rampup_batch_size or ()
    rampup = tuple(int(word) if word.replace("_", "").isdecimal() else word for word in words)
    schedule = arguments.step_batch_size_schedule
    batch = arguments.global_batch_size if schedule is None else None
    rounds_down = arguments.decrease_batch_size_if_needed
    decided: dict[str, Any] = {
        "world_size": arguments.data_parallel_size if is_external else arguments.world_size,
        "data_parallel": None,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "mtp_stages": (pipeline - 1,) if "mtp_num_layers" in others and pipeline > 1 else (),
        "order": "tp-cp-ep-pp-dp" if "use_tp_pp_dp_mapping" in others else DEFAULT_ORDER,
        "micro_batch_size": arguments.micro_batch_size,
        "global_batch_size": batch,
        "step_batch_size_schedule": schedule,
        "rampup_batch_size": rampup or None,
        "decrease_batch_size_if_needed": rounds_down and (batch or schedule) is not None,
        "data_sharding": not arguments.no_data_sharding,
        **{name: getattr(arguments, name) for name in _EVALUATION},
    }
    if (mode := _MODES.get(arguments.dataloader_type)) is not None:
        decided["mode"] = mode
    if arguments.train_iters or arguments.train_samples:
        decided["steps"] = arguments.train_iters or None
    return decided


def _with_progress(options: ShardPlanOptions, arguments: LaunchArguments) -> ShardPlanOptions:
    """Return the options with the consumed samples and the remaining steps of a job that resumes."""
    group = options.micro_batch_size * options.topology().data_parallel
    samples = arguments.train_samples and min(arguments.train_samples, MAX_SAMPLES)
    schedule = batch_schedule(options, arguments.seq_length) or BatchSchedule.constant(group)
    timeline = schedule.timeline(group, stop=samples, steps=arguments.train_iters)
    step = arguments.iteration or 0
    consumed = options.consumed_samples
    if not consumed:
        consumed = int(timeline.consumed(step))
    elif arguments.iteration is None:
        step = timeline.boundary(consumed)
    steps = options.steps
    if arguments.train_iters:
        steps = arguments.train_iters - step
    elif samples:
        remaining = schedule.timeline(group, consumed, stop=samples)
        steps = remaining.steps_within(max(0, samples - consumed))
    if steps is not None and steps < 1:
        raise UsageError(
            f"the job has no steps after step {step:,} and {consumed:,} consumed samples",
            hint="pass the --iteration or --consumed-samples of a checkpoint of this job",
        )
    return replace(options, consumed_samples=consumed, steps=steps)
