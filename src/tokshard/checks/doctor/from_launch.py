"""The indexes that a launch script's job looks up, as options of the commands that build them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokshard.checks.doctor.build_command import BuildCommand
from tokshard.checks.doctor.forecast import (
    NOT_HERE_HINT,
    config_of_launch,
    is_blend,
    missing_directories,
    not_on_this_machine,
    prefixes_of,
    recipe_of_launch,
)
from tokshard.checks.doctor.launch.arguments import LaunchArguments, parse_step_schedule
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.programs import unchecked_options, unsupported_data
from tokshard.checks.doctor.launch.rules import (
    check_arguments,
    reason_data_unknown,
    reason_names_unknown,
    reason_sizes_unknown,
    skipped,
)
from tokshard.checks.doctor.launch.source import read_job
from tokshard.checks.doctor.lookups import (
    Candidate,
    JobCache,
    TokenizerNames,
    candidates_of_launch,
    chosen_candidate,
    identifiers_of_launch,
)
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.core.findings import Finding
from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import MissingFileError, TokshardError, UsageError
from tokshard.samples.blend.options import BlendOptions, BuilderConfig
from tokshard.samples.blend.plan import SplitPlan, plan_requests
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.index.options import BuildIndicesOptions, NamingOptions, effective_pairs

# With these errors a job does not start, or reads other data than it seems to.
_DECISIVE = frozenset(
    {"arguments", "no-single-source", "no-data", "split-excluded", "default-split", "split"}
)


@dataclass(frozen=True, slots=True)
class LaunchIndexes:
    """The indexes that the job of a launch script looks up.

    Attributes:
        recipe: The mixture of the job, with the path prefixes of this machine.
        config: The parameters of the job's dataset builder.
        cache_directory: The job's ``--data-cache-path`` on this machine; None if the job has none.
        tokenizer: A copy of the job's tokenizer on this machine, if the job's path is another one.
        global_batch_size: The samples of the job's last step; None if unknown.
        changes_batch_size: Whether earlier steps have other batch sizes.
        blend_command: The command that builds them.
        warnings: Messages for the user.
        defers_index_loading: Whether the job computes the sizes of indexes from token counts, so that it
            cannot read packed indexes.
    """

    recipe: BlendRecipe
    config: BuilderConfig
    cache_directory: str | None
    tokenizer: str | None
    global_batch_size: int | None
    changes_batch_size: bool
    blend_command: str
    warnings: tuple[str, ...]
    defers_index_loading: bool = False

    def blend_options(self) -> BlendOptions:
        """Return options of :func:`tokshard.blend` without an output."""
        config, recipe = self.config, self.recipe
        paths = (*prefixes_of(recipe), self.cache_directory or "")
        return BlendOptions(
            recipe=recipe,
            seq_length=config.sequence_length,
            split=config.split if recipe.per_split is None else None,
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
            given: Options that the command which is suggested instead must have, too.

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
            global_batch_size=None if self.changes_batch_size else self.global_batch_size,
            cache_dir=self.cache_directory,
        )

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

    Example:
        >>> command = "torchrun pretrain_gpt.py --data-path 0.7 web 0.3 code --split 99,1,0 --seq-length 64 "
        >>> command += "--train-iters 10 --global-batch-size 8 --eval-interval 5 --tokenizer-model llama"
        >>> found = indexes_of_launch(DoctorOptions(launch=command, megatron="0.19"))
        >>> options = found.blend_options()  # add an output, and pass them to tokshard.blend
        >>> options.num_samples, options.split
        (Sizes(train=80, valid=2400, test=800), '99,1,0')
    """
    options = job if isinstance(job, DoctorOptions) else DoctorOptions(launch=job)
    launches = read_job(options)
    found: list[LaunchIndexes | TokshardError] = []
    for launch in launches:
        try:
            found.append(_indexes(launch, options))
        except TokshardError as error:
            found.append(error)
    first, *others = found
    if any(_key(other) != _key(first) for other in others):
        lines = "; ".join(f"line {launch.line}" for launch in launches)
        raise UsageError(
            f"{len(launches)} launch commands need different indexes: {lines}",
            hint="pass one of the commands in quotes; `tokshard doctor --show-command` prints them",
        )
    if isinstance(first, TokshardError):
        raise first
    warnings = dict.fromkeys(
        warning for each in found if isinstance(each, LaunchIndexes) for warning in each.warnings
    )
    return replace(first, warnings=tuple(warnings))


def _key(found: LaunchIndexes | TokshardError) -> object:
    if isinstance(found, TokshardError):
        return type(found), found.message
    return found.recipe, found.config, found.cache_directory, found.tokenizer


def _indexes(launch: Launch, options: DoctorOptions) -> LaunchIndexes:
    arguments, paths = launch.arguments, PathMapping(options.path_as)
    _require_known(launch, options)
    recipe = recipe_of_launch(arguments, paths)
    if missing := missing_directories(prefixes_of(recipe)):
        reason, hint = not_on_this_machine(missing), NOT_HERE_HINT.format("the command")
        raise MissingFileError(f"datasets are {reason}", path=missing[0], hint=hint)
    config = config_of_launch(arguments, arguments.sizes(options.megatron), options.path_as)
    cache, splits = JobCache(arguments, paths), plan_requests(recipe, config)
    identifiers = _identifiers(arguments, options, cache, splits)
    command = BuildCommand.of(options, launch)
    return LaunchIndexes(
        recipe=recipe,
        config=replace(config, tokenizer=identifiers),
        cache_directory=cache.directory,
        tokenizer=_local_tokenizer(arguments, paths),
        global_batch_size=_last_batch_size(arguments),
        changes_batch_size=bool(arguments.rampup_batch_size or arguments.step_batch_size_schedule),
        blend_command=command.text(is_blend=True, names=TokenizerNames("file"), is_named=True),
        warnings=tuple(_warnings(launch)),
        defers_index_loading=arguments.dataloader_defer_npy_index_mmap,
    )


def _last_batch_size(arguments: LaunchArguments) -> int | None:
    if arguments.step_batch_size_schedule is None:
        return arguments.batch_size
    return parse_step_schedule(arguments.step_batch_size_schedule, arguments.seq_length)[-1][1]


def _require_known(launch: Launch, options: DoctorOptions) -> None:
    arguments = launch.arguments
    unsupported = unsupported_data(launch)
    if unsupported is not None:
        raise UsageError(
            f"tokshard cannot build the indexes of this job: {unsupported.reason}",
            hint="run `tokshard doctor` to check its other arguments",
        )
    for result in check_arguments(arguments, options.megatron):
        if isinstance(result, Finding) and result.severity == "error" and result.code in _DECISIVE:
            raise UsageError(result.message, hint=result.hint)
    reason = reason_data_unknown(arguments) or reason_sizes_unknown(arguments)
    if options.like is None and options.tokenizer_identifiers is None:
        reason = reason or reason_names_unknown(arguments)
    if reason is not None:
        hint = skipped("cache", reason).hint
        raise UsageError(f"the indexes of the job are unknown: {reason}", hint=hint and _in_quotes(hint))


def _in_quotes(hint: str) -> str:
    is_parameter = hint.endswith("the parameters of the script after its name")
    return f"{hint}, in quotes: --from-launch 'SCRIPT PARAMETER'" if is_parameter else hint


def _identifiers(
    arguments: LaunchArguments, options: DoctorOptions, cache: JobCache, splits: Sequence[SplitPlan]
) -> dict[str, object] | None:
    chosen: Candidate | None = chosen_candidate(arguments, options)
    if chosen is not None:
        return chosen.identifiers
    likeliest = cache.likeliest(splits)
    if cache.has_names_of([split.with_tokenizer(likeliest.identifiers) for split in splits]):
        return likeliest.identifiers
    candidates = candidates_of_launch(arguments)
    if len(candidates) == 1:
        return candidates[0].identifiers
    if not candidates:
        return identifiers_of_launch(arguments, MEGATRON_VERSIONS[-2])  # the error tells why
    *others, last = (_either(candidate.names.versions) for candidate in reversed(candidates))
    raise UsageError(
        "the Megatron version of the job is unknown, and no cached index tells it",
        hint="pass --megatron VERSION; the names of the cache files differ between "
        f"{', '.join(others)} and {last}",
    )


def _either(versions: Sequence[str]) -> str:
    first, *others = reversed(versions)
    return f"{first} (or {', '.join(others)})" if others else first


def _local_tokenizer(arguments: LaunchArguments, paths: PathMapping) -> str | None:
    model = arguments.tokenizer_model
    if model is None or os.path.exists(model):
        return None
    here = paths.inverse().map(model)
    return here if os.path.exists(here) else None


def _warnings(launch: Launch) -> list[str]:
    warnings = [f"{reason}; {skipped('launch', reason).hint}" for reason in launch.reasons_undecided()]
    if (reason := launch.reason_unread()) is not None:
        warnings.append(f"scripts {reason}")
    if (reason := launch.arguments.reason_hidden()) is not None:
        warnings.append(f"{reason}; if they concern the data, {skipped('arguments', reason).hint}")
    if unchecked := unchecked_options(launch):
        warnings.append(f"the effect of {', '.join(unchecked)} on the indexes is not known")
    return warnings
