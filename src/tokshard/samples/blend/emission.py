"""A blend in Megatron's own words: arguments, or the JSON of blends per split."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokshard.core import megatron_rules
from tokshard.core.formatting import shown_path
from tokshard.core.presentation import launch_with
from tokshard.errors import UsageError
from tokshard.samples.blend.options import BlendOptions, Form
from tokshard.samples.blend.plan import BlendPlan
from tokshard.samples.blend.recipe import Mixture, check_prefix
from tokshard.samples.blend.weights import BlendWeights
from tokshard.samples.index.splits import SPLITS

if TYPE_CHECKING:
    from tokshard.samples.blend.job import BlendReport


def emit_megatron(blend: BlendPlan | BlendReport, options: BlendOptions, form: Form = "megatron-args") -> str:
    """Return a blend for Megatron: the arguments of a job in one line, or the content of a file.

    Args:
        blend: The report of a run or of a dry run, or a plan.
        options: The options that it was made by.
        form: ``"megatron-args"``: arguments, quoted for a shell. ``"megatron-json"``: a file for
            ``--per-split-data-args-path``. ``"megatron-words"``: a file for ``--data-args-path``.

    Raises:
        UsageError: There is no such form of this blend, Megatron would misread a prefix, or the blend is
            packed and has no cache.
    """
    if form == "megatron-json":
        return emit_megatron_json(blend).rstrip("\n")
    if form == "megatron-words":
        return emit_megatron_words(blend).rstrip("\n")
    if blend.builder.packing is not None and options.cache is None:
        raise UsageError(
            "the arguments of a blend with packed samples require the directory of its cache",
            hint="pass --output or --cache-dir",
        )
    cache = None if options.cache is None else blend.builder.training_path(options.cache)
    return shlex.join(emit_megatron_args(blend, cache, size_arguments=options.training.words()))


def emit_megatron_args(
    blend: BlendPlan | BlendReport, cache_directory: str | None = None, *, size_arguments: Sequence[str] = ()
) -> list[str]:
    """Return the arguments with which a Megatron run reads a blend.

    Sizes of validation follow from other arguments of a run (steps, intervals), and so are not among them,
    unless they are given.

    Args:
        blend: The report or the plan of a blend.
        cache_directory: Where the indexes are at training time, for ``--data-cache-path``.
        size_arguments: The run's own arguments that the sizes come from; ``--train-samples`` without.

    Raises:
        UsageError: Megatron would misread a prefix.
    """
    config = blend.builder
    words: list[str] = []
    if blend.recipe.mixture is not None:
        words += ["--data-path", *_checked_words(blend, blend.recipe.mixture, blend.resolved[0])]
        words += ["--split", str(config.split)]
    else:
        for name, mixture, resolved in zip(SPLITS, blend.recipe.per_split or (), blend.resolved, strict=True):
            if mixture is not None:
                words += [f"--{name}-data-path", *_checked_words(blend, mixture, resolved)]
    if blend.recipe.multiple_validation_sets:
        words.append("--multiple-validation-sets")
    if config.sizes.valid is None:
        words.append("--full-validation")
    words += ["--seq-length", str(config.sequence_length), "--seed", str(config.seed)]
    if size_arguments:
        words += size_arguments
    elif config.sizes.train is not None:
        words += ["--train-samples", str(config.sizes.train)]
    if config.surplus != megatron_rules.SURPLUS:
        words += ["--mid-level-dataset-surplus", repr(config.surplus)]
    return words if cache_directory is None else [*words, "--data-cache-path", cache_directory]


def emit_megatron_json(blend: BlendPlan | BlendReport) -> str:
    """Return the content of a file for Megatron's ``--per-split-data-args-path``.

    Raises:
        UsageError: The splits share one mixture, for which there is no such file; or as for
            :func:`emit_megatron_args`.
    """
    if blend.recipe.per_split is None:
        raise UsageError(
            "--emit megatron-json requires sources for each split, but this blend has one mixture",
            hint="pass --emit megatron-args, which prints --data-path and --split",
        )
    mixtures = zip(SPLITS, blend.recipe.per_split, blend.resolved, strict=True)
    value = {
        name: None if mixture is None else _words(blend, mixture, resolved)
        for name, mixture, resolved in mixtures
    }
    return json.dumps(value, indent=2) + "\n"


def emit_megatron_words(blend: BlendPlan | BlendReport) -> str:
    """Return the content of a file for Megatron's ``--data-args-path``: the words of ``--data-path``.

    Raises:
        UsageError: Each split has separate sources, for which there is no such file; a prefix has white
            space in it, where Megatron would cut it; or as for :func:`emit_megatron_args`.
    """
    if blend.recipe.mixture is None:
        raise UsageError(
            "--emit megatron-words requires one mixture, but this blend has sources for each split",
            hint="pass --emit megatron-json, for --per-split-data-args-path",
        )
    words = _words(blend, blend.recipe.mixture, blend.resolved[0])
    for word in words:
        if len(word.split()) != 1:
            raise UsageError(
                f"--emit megatron-words cannot write the path prefix {word!r}: it contains white space",
                hint="pass --emit megatron-args, which prints --data-path",
            )
    return " ".join(words) + "\n"


def _checked_words(
    blend: BlendPlan | BlendReport, mixture: Mixture, resolved: BlendWeights | None
) -> list[str]:
    words = _words(blend, mixture, resolved)
    for word in words:
        if word.startswith("-"):
            raise UsageError(
                f"Megatron would read the path prefix {word!r} as an option",
                hint=f"pass ./{word}",
            )
    return words


def _words(blend: BlendPlan | BlendReport, mixture: Mixture, resolved: BlendWeights | None) -> list[str]:
    prefixes = []
    for source in mixture.sources:
        prefixes.append(blend.builder.training_path(source.prefix))
        check_prefix(prefixes[-1])
    weights = resolved.weights if resolved is not None else None
    if weights is None:
        return prefixes
    pairs = zip(weights, prefixes, strict=True)
    return [word for weight, prefix in pairs for word in (_number(weight), prefix)]


def _number(weight: float) -> str:
    return str(int(weight)) if weight == int(weight) else repr(weight)


def next_step(report: BlendReport, options: BlendOptions, path: str) -> str:
    """Return what to do with a blend that was written to a path."""
    if options.naming.are_given:
        arguments = emit_megatron(report, options)
        if any(source.plan.packed is not None for split in report.splits for source in split.sources):
            arguments += " --eod-mask-loss"
        return launch_with(arguments)
    directory = shlex.quote(shown_path(os.path.dirname(path)))
    return f"tokshard shard-plan {directory} --data-parallel N --global-batch-size N -o PLAN"
