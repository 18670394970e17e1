"""A blend for Megatron: arguments of a job, or a file of words or of blends per split."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

from tokshard.core import megatron_rules
from tokshard.core.formatting import shown_path
from tokshard.core.presentation import launch_with
from tokshard.errors import UsageError
from tokshard.samples.blend.options import BlendOptions, Form
from tokshard.samples.blend.plan import BlendPlan
from tokshard.samples.blend.recipe import check_prefix
from tokshard.samples.index.splits import SPLITS

if TYPE_CHECKING:
    from tokshard.samples.blend.job import BlendReport


def emit_megatron(blend: BlendPlan | BlendReport, options: BlendOptions, form: Form = "megatron-args") -> str:
    """Return a blend for Megatron: the arguments of a job in one line, or the content of a file.

    Args:
        blend: The report of a run or of a dry run, or a plan.
        options: The options of the run.
        form: ``"megatron-args"``: arguments, quoted for a shell. ``"megatron-json"``: a file for
            ``--per-split-data-args-path``. ``"megatron-words"``: a file for ``--data-args-path``.

    Raises:
        UsageError: The blend cannot be written in this form, Megatron would misread a prefix, or the blend is
            packed and has no cache.
    """
    if form == "megatron-json":
        if not blend.recipe.is_per_split:
            raise UsageError(
                "--emit megatron-json requires sources for each split, but this blend has one mixture",
                hint="pass --emit megatron-args, which prints --data-path and --split",
            )
        return json.dumps(dict(zip(SPLITS, _data_words(blend), strict=True)), indent=2)
    if form == "megatron-words":
        if blend.recipe.is_per_split:
            raise UsageError(
                "--emit megatron-words requires one mixture, but this blend has sources for each split",
                hint="pass --emit megatron-json, for --per-split-data-args-path",
            )
        words = [word for words in _data_words(blend) for word in words or ()]
        for word in words:
            if len(word.split()) != 1:  # Megatron would split it
                raise UsageError(
                    f"--emit megatron-words cannot write the path prefix {word!r}: it contains white space",
                    hint="pass --emit megatron-args, which prints --data-path",
                )
        return " ".join(words)
    return shlex.join(_arguments(blend, options))


def _arguments(blend: BlendPlan | BlendReport, options: BlendOptions) -> list[str]:
    """Return the arguments with which a Megatron run reads a blend.

    The sizes of validation follow from the steps and intervals of a run, which are among the arguments only
    if they are given.
    """
    config, is_per_split = blend.builder, blend.recipe.is_per_split
    if config.packing is not None and options.cache is None:
        raise UsageError(
            "the arguments of a blend with packed samples require the directory of its cache",
            hint="pass --output or --cache-dir",
        )
    names = [f"--{split}-data-path" for split in SPLITS] if is_per_split else ["--data-path"]
    arguments: list[str] = []
    for name, words in zip(names, _data_words(blend), strict=True):
        for word in words or ():
            if word.startswith("-"):
                raise UsageError(
                    f"Megatron would read the path prefix {word!r} as an option", hint=f"pass ./{word}"
                )
        arguments += [name, *words] if words else []
    if not is_per_split:
        arguments += ["--split", str(config.split)]
    if blend.recipe.multiple_validation_sets:
        arguments.append("--multiple-validation-sets")
    if config.sizes.valid is None:
        arguments.append("--full-validation")
    arguments += ["--seq-length", str(config.sequence_length), "--seed", str(config.seed)]
    if size_arguments := options.training.words():
        arguments += size_arguments
    elif config.sizes.train is not None:
        arguments += ["--train-samples", str(config.sizes.train)]
    if config.surplus != megatron_rules.SURPLUS:
        arguments += ["--mid-level-dataset-surplus", repr(config.surplus)]
    if options.cache is not None:
        arguments += ["--data-cache-path", config.training_path(options.cache)]
    return arguments


def _data_words(blend: BlendPlan | BlendReport) -> list[list[str] | None]:
    """Return the words of each mixture of a blend, as ``--data-path`` takes them."""
    words_of_mixtures: list[list[str] | None] = []
    for mixture, resolved in zip(blend.recipe.mixtures, blend.resolved, strict=True):
        if mixture is None:
            words_of_mixtures.append(None)
            continue
        words = []
        for number, source in enumerate(mixture.sources):
            prefix = blend.builder.training_path(source.prefix)
            check_prefix(prefix)
            if resolved is not None and resolved.weights is not None:
                weight = resolved.weights[number]
                words.append(str(int(weight)) if weight == int(weight) else repr(weight))
            words.append(prefix)
        words_of_mixtures.append(words)
    return words_of_mixtures


def next_step(report: BlendReport, options: BlendOptions, path: str) -> str:
    """Return what to do with a blend that was written to a path."""
    if options.naming.are_given:
        arguments = emit_megatron(report, options)
        if any(source.plan.packed is not None for split in report.splits for source in split.sources):
            arguments += " --eod-mask-loss"
        return launch_with(arguments)
    directory = shlex.quote(shown_path(os.path.dirname(path)))
    return f"tokshard shard-plan {directory} --data-parallel N --global-batch-size N -o PLAN"
