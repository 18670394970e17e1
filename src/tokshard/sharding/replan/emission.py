"""Arguments with which an unmodified Megatron job reads the rest of a run at another sequence length.

A job that resumes from a checkpoint starts at the samples that the checkpoint has consumed: it would skip as
many of the new ones. Since 0.16 it starts at the first one after ``--phase-transition-iterations``, if the
global batch size is the same in all phases, and requests as many samples as are left of ``--train-samples``
(``get_train_valid_test_num_samples`` and ``build_train_valid_test_data_loaders`` of its ``training.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokshard.blending.emission import emit_megatron_args
from tokshard.blending.plan import BlendPlan
from tokshard.errors import UsageError
from tokshard.gpt_index.splits import TRAIN
from tokshard.index_cache.identifiers import NEUTRAL
from tokshard.sharding.history import StoppedStream, stops_of
from tokshard.sharding.planning import MegatronCache
from tokshard.sharding.replan.sequence_length import index_description

if TYPE_CHECKING:
    from tokshard.blending.recipe import Source
    from tokshard.sharding.plan import Plan
    from tokshard.sharding.sources import SampleSource

_LEARNING_RATE = (
    "the learning-rate schedule counts samples: pass --override-opt_param-scheduler or "
    "--use-checkpoint-opt_param-scheduler, because --train-samples differs from the checkpoint's"
)
_REBUILD = "build the blend with --like, --megatron or --tokenizer-identifiers, and plan again"


def check_emission(source: SampleSource) -> None:
    """Check that a Megatron job can read views of the datasets of a stream.

    Raises:
        UsageError: Their indexes have names that no job looks for, or that no one job looks for.
        MissingFileError, InputError: A description is missing or cannot be read.
    """
    found: dict[str, list[object]] = {"seeds": [], "tokenizers": []}
    for reference in source.datasets:
        description = index_description(reference)
        identifiers = description.tokenizer or {}
        if identifiers.get("class") == NEUTRAL:
            raise UsageError(
                f"--emit-cache requires the tokenizer of the Megatron job: the index of {reference.prefix} "
                "was built without it",
                hint=_REBUILD,
            )
        for name, value in (("seeds", description.random_seed), ("tokenizers", identifiers)):
            if value not in found[name]:
                found[name].append(value)
    for name, values in found.items():
        if len(values) > 1:
            raise UsageError(
                f"--emit-cache requires indexes of one job: those of the plan have {len(values)} {name}",
                hint="leave out --emit-cache, and read the new plan with tokshard.loader",
            )


def megatron_cache(plan: Plan, blends: Mapping[str, BlendPlan], cache_directory: str) -> MegatronCache:
    """Return the cache of a new plan, and the arguments and the notes that go with it.

    Args:
        plan: The new plan, whose last stop changed the sequence length.
        blends: The blends of the views, by stream.
        cache_directory: The directory of their indexes.
    """
    stream = plan.streams[TRAIN]
    words = emit_megatron_args(blends[TRAIN], cache_directory)
    words += _validation(plan, blends)
    schedule = stream.assignment.schedule
    words += ["--global-batch-size", str(schedule.segments[-1][1])]
    notes: list[str] = []
    iteration = _iteration(stops_of(plan.history, TRAIN), plan)
    if iteration is None:
        notes.append(
            "the job must start with 0 consumed samples: Megatron begins new data at a checkpoint "
            "(--phase-transition-iterations) only if all phases have one constant global batch size"
        )
    elif iteration:
        place = words.index("--train-samples") + 1
        words[place] = str(stream.assignment.consumed_samples + int(words[place]))
        words += ["--phase-transition-iterations", str(iteration)]
        notes.append(f"resume from the checkpoint of iteration {iteration}, with Megatron 0.16 or later")
        notes.append(f"check the launch script with `tokshard doctor --iteration {iteration}`")
        notes.append(_LEARNING_RATE)
    if any(source.pack is not None for source in _sources(blends[TRAIN])):
        notes.append("the packed samples exclude --dataloader-defer-npy-index-mmap")
    others = [name for name in blends if name != TRAIN]
    if others:
        notes.append(
            f"the cache has the indexes of training; Megatron builds those of {' and '.join(others)} when it "
            "starts"
        )
    return MegatronCache(cache_directory, tuple(words), tuple(notes))


def _validation(plan: Plan, blends: Mapping[str, BlendPlan]) -> list[str]:
    words: list[str] = []
    sets = [name for name in blends if name.partition(".")[0] == "valid"]
    if sets:
        words += ["--valid-data-path", *(source.prefix for name in sets for source in _sources(blends[name]))]
    several = any("." in name for name in sets)
    if several:
        words.append("--multiple-validation-sets")
    if several or any(plan.streams[name].mode == "full-validation" for name in sets):
        words.append("--full-validation")
    if "test" in blends:
        words += ["--test-data-path", *(source.prefix for source in _sources(blends["test"]))]
    return words


def _sources(blend: BlendPlan) -> list[Source]:
    mixtures = blend.recipe.per_split or ()
    return [source for mixture in mixtures if mixture is not None for source in mixture.sources]


def _iteration(stops: Sequence[StoppedStream], plan: Plan) -> int | None:
    # The steps that the job has taken; None unless the global batch size was and stays the same.
    after = plan.streams[TRAIN].assignment
    schedules = [*(stop.assignment.schedule for stop in stops), after.schedule]
    sizes = {size for schedule in schedules for _, size in schedule.segments}
    if len(sizes) > 1 or any(schedule.round_down for schedule in schedules):
        return None
    iteration, rest = divmod(after.consumed_samples, sizes.pop())
    return None if rest else iteration
