"""Options of ``tokshard blend``, and the parameters of Megatron's dataset builder that follow from them."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from tokshard.core import megatron_rules
from tokshard.core.codec import Count, Positive, Record
from tokshard.core.options import Force, Option, StrPath
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import BlendRecipe, Epochs, Mixture, Unit
from tokshard.samples.index.options import (
    DEFAULT_SPLIT_WARNING,
    IndexingOptions,
    check_path_as,
    neutral_identifiers,
)
from tokshard.samples.index.packing import Packing, packing_of
from tokshard.samples.index.sizes import Sizes, Surplus
from tokshard.samples.index.splits import Split, parse_split

CACHE_NAME = "cache"

Form = Literal["megatron-args", "megatron-json", "megatron-words"]
"""The forms in which a blend is printed for Megatron."""

_MIXTURE = "Mixture"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderConfig(Record):
    """The parameters of Megatron's dataset builder, which determine the bytes and names of index files.

    Raises:
        UsageError: A number is out of range, or the split string is invalid.

    Attributes:
        sequence_length: Tokens of a sample, without the extra token.
        sizes: Samples requested in each split. The training size is null for one epoch, and if the recipe
            determines it (tokens, epochs).
        tokenizer: The tokenizer's identifiers, which are hashed.
        split: Split string. Not used if each split has its own sources.
        seed: Seed of all shuffles.
        surplus: Samples built of each source beyond its part of the blend, as a fraction of that part.
        extra_token: Whether each sample has one more token, so that every token has the next one as its
            label.
        drop_last_partial: Whether validation drops its last, incomplete sample.
        path_as: Pairs of a path here and its path at training time. The second replaces the first at the
            beginning of a prefix before it is hashed.
        packing: Options of packed sources. Absent if no source is packed.
    """

    sequence_length: Positive
    sizes: Sizes
    tokenizer: Any
    split: str
    seed: Count
    surplus: Surplus
    extra_token: bool
    drop_last_partial: bool
    path_as: tuple[tuple[str, str], ...]
    packing: Packing | None = None

    def _validate(self) -> None:
        if self.packing is not None:
            self.packing.check_sequence_length(self.sequence_length)
        object.__setattr__(self, "surplus", float(self.surplus))  # an int would be another text in JSON
        self.shares  # noqa: B018 - raises for an invalid split string

    @property
    def shares(self) -> Split:
        """The shares of the splits."""
        return parse_split(self.split)

    def size_of(self, split_name: str) -> int | None:
        """Return the samples requested in a split."""
        size: int | None = getattr(self.sizes, split_name)
        return size

    def training_path(self, prefix: str) -> str:
        """Return the prefix as the training run will name it, which enters the hashes.

        Example:
            >>> options = BlendOptions(sources=("out/web",), seq_length=8, path_as=(("out", "/data/v1"),))
            >>> recipe, config = options.resolve()
            >>> config.training_path("out/web"), config.training_path("output/web")
            ('/data/v1/web', 'output/web')
        """
        return PathMapping(self.path_as).map(prefix)


def _words_of(purpose: str, split: str) -> Option:
    return Option(
        f"Use these weights and prefixes for {purpose} only.",
        aliases=(f"--{split}-data-path",),
        metavar="'WORDS'",
        group=_MIXTURE,
    )


@dataclass(frozen=True, kw_only=True)
class BlendOptions(IndexingOptions):
    """Options of :func:`tokshard.blend`.

    The mixture is given in one way: by ``sources``, by one of Megatron's files, by words for each split, or
    as a ``recipe``. What no option gives is taken from the recipe file, then from ``naming.like``, then from
    Megatron. A dry run needs no ``output``.

    Attributes:
        recipe: The mixture as an object.

    Raises:
        UsageError: Options contradict each other, or a value is out of range.
    """

    sources: Annotated[
        tuple[str, ...],
        Option(
            "Weights and path prefixes or quoted globs, path prefixes only, a recipe.toml, a JSON file as "
            "for Megatron's --per-split-data-args-path, or @FILE with such words.",
            is_argument=True,
            metavar="[[WEIGHT] PREFIX...]",
        ),
    ] = ()
    output: Annotated[
        StrPath | None,
        Option(
            "Write DIR/blend.json, and the indexes to DIR/cache.",
            aliases=("-o",),
            metavar="DIR",
            with_launch=True,
        ),
    ] = None
    train: Annotated[str | None, _words_of("training", "train")] = None
    valid: Annotated[str | None, _words_of("validation", "valid")] = None
    test: Annotated[str | None, _words_of("testing", "test")] = None
    data_args_path: Annotated[
        StrPath | None,
        Option(
            "Read weights and prefixes from a file for Megatron's --data-args-path.",
            metavar="FILE",
            group=_MIXTURE,
            is_rare=True,
        ),
    ] = None
    per_split_data_args_path: Annotated[
        StrPath | None,
        Option(
            "Read weights and prefixes of each split from a JSON file for Megatron's option of that name.",
            metavar="FILE",
            group=_MIXTURE,
            is_rare=True,
        ),
    ] = None
    multiple_validation_sets: Annotated[
        bool, Option("Keep the validation sets of the datasets apart.", group=_MIXTURE, is_rare=True)
    ] = False
    unit: Annotated[
        Unit | None,
        Option(
            "Read weights as shares of the samples, or as amounts of tokens.",
            default="samples",
            group=_MIXTURE,
        ),
    ] = None
    epochs: Annotated[
        Epochs | None,
        Option("Read each dataset this many times, instead of by weight.", metavar="NUMBER", group=_MIXTURE),
    ] = None
    max_epochs: Annotated[
        Epochs | None,
        Option(
            "Read no dataset more than this many times; the others get its remaining share.",
            metavar="NUMBER",
            group=_MIXTURE,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Option(
            "Raise weights (or sizes) to the power 1/T.",
            metavar="T",
            default="1",
            group=_MIXTURE,
            is_rare=True,
        ),
    ] = None
    force: Force = False
    recipe: BlendRecipe | None = None

    def _validate(self) -> None:
        if self.num_samples is not None and (words := self.training.words()):
            raise UsageError(f"--num-samples cannot be used with {words[0]}", hint="leave out one of them")
        super()._validate()
        ways = {
            "the arguments": bool(self.sources),
            "recipe": self.recipe is not None,
            "--data-args-path": self.data_args_path is not None,
            "--per-split-data-args-path": self.per_split_data_args_path is not None,
            "--train, --valid, --test": any(words is not None for words in self._separate),
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) != 1:
            raise UsageError(
                f"{given[0]} cannot be used with {given[1]}" if given else "a mixture is required",
                hint="pass for example 0.7 data/web 0.3 data/code, or recipe.toml",
            )

    @property
    def _separate(self) -> tuple[str | None, str | None, str | None]:
        return self.train, self.valid, self.test

    @property
    def cache(self) -> str | None:
        """The directory of the index files; None if neither it nor the output is set."""
        if self.cache_dir is not None:
            return os.fspath(self.cache_dir)
        return None if self.output is None else os.path.join(self.output, CACHE_NAME)

    def resolve(self) -> tuple[BlendRecipe, BuilderConfig]:
        """Read the files that the options name, and return the recipe and the builder's parameters.

        Raises:
            UsageError: The sequence length is missing, or a value is invalid or has no effect.
            InputError: A file cannot be read.
        """
        (recipe, options), like = self._with_recipe(), self.naming.settings()
        if self.recipe is None:
            from tokshard.samples.blend.globs import expand_globs  # help must not load numpy

            recipe = expand_globs(recipe)
        sequence_length = _first(options.seq_length, like and like.sequence_length)
        if sequence_length is None:
            raise UsageError("the sequence length is required", hint="pass for example --seq-length 4096")
        if recipe.is_per_split and options.split is not None:
            raise UsageError(
                f"--split {options.split!r} cannot be used with data for each split",
                hint="omit --split; a Megatron job with both will not start",
            )
        check_path_as(self.path_as, (*(source.prefix for source in recipe.sources), self.cache or ""))
        is_packed = any(source.pack is not None for source in recipe.sources)
        identifiers = self.naming.identifiers()
        config = BuilderConfig(
            sequence_length=sequence_length,
            sizes=_first(options.num_samples, self.job_sizes, Sizes(None, 0, 0)),
            tokenizer=neutral_identifiers(recipe.sources[0].prefix) if identifiers is None else identifiers,
            split=_first(options.split, like and like.split, megatron_rules.SPLIT),
            seed=_first(options.seed, like and like.random_seed, megatron_rules.SEED),
            surplus=_first(options.surplus, megatron_rules.SURPLUS),
            path_as=self.path_as,
            extra_token=self.add_extra_token,
            drop_last_partial=self.drop_last_partial_validation,
            packing=packing_of(
                "best-fit" if is_packed else None, options.max_documents_per_sample, options.pad_multiple
            ),
        )
        return recipe, config

    def early_warnings(self) -> tuple[str, ...]:
        """Return the warnings that do not need the datasets: they can be shown before the work begins.

        Raises:
            UsageError, InputError: See :meth:`resolve`.
        """
        (recipe, options), like = self._with_recipe(), self.naming.settings()
        is_known = options.split or (like and like.split) or recipe.is_per_split
        return () if is_known else (DEFAULT_SPLIT_WARNING,)

    def _with_recipe(self) -> tuple[BlendRecipe, BlendOptions]:
        """Return the recipe, changed by these options, and the options, completed by the recipe file."""
        recipe, given = self._read_recipe()
        if self.job_sizes is not None:
            given.pop("num_samples", None)
        options = replace(self, **{name: value for name, value in given.items() if not self.is_given(name)})
        recipe = recipe.map(partial(_adjusted, options=options))
        several = recipe.multiple_validation_sets or self.multiple_validation_sets
        return replace(recipe, multiple_validation_sets=several), options

    def _read_recipe(self) -> tuple[BlendRecipe, dict[str, Any]]:
        from tokshard.samples.blend import recipe_files

        if self.recipe is not None:
            return self.recipe, {}
        if self.sources:
            return recipe_files.read_arguments(self.sources)
        if self.data_args_path is not None:
            return recipe_files.read_data_args(os.fspath(self.data_args_path)), {}
        if self.per_split_data_args_path is not None:
            return recipe_files.read_per_split(os.fspath(self.per_split_data_args_path)), {}
        separate = (None if text is None else _words(text) for text in self._separate)
        return recipe_files.parse_words(*separate), {}


_EXCLUDED = (
    ("epochs", "weight", "leave out the weights, or pass --max-epochs to limit the epochs"),
    ("epochs", "max_epochs", "keep one of them"),
    ("max_epochs", "epochs", "keep one of them"),
)
"""Options for all sources, the fields that no source may have with them, and hints."""


def _adjusted(mixture: Mixture, options: BlendOptions) -> Mixture:
    for option, field, hint in _EXCLUDED:
        for source in mixture.sources:
            amount = getattr(options, option)
            if amount is not None and getattr(source, option) is None and getattr(source, field) is not None:
                raise UsageError(
                    f"--{option.replace('_', '-')} {amount:g} cannot be used with the "
                    f"{field.replace('_', ' ')} of {source.prefix}",
                    hint=hint,
                )
    sources = tuple(
        replace(
            source,
            epochs=_first(source.epochs, options.epochs),
            max_epochs=_first(source.max_epochs, options.max_epochs),
            # A resolved recipe records only the packing that differs from Megatron's samples.
            pack="best-fit" if _first(source.pack, options.pack) == "best-fit" else None,
        )
        for source in mixture.sources
    )
    return replace(
        mixture,
        sources=sources,
        unit=_first(options.unit, mixture.unit),
        temperature=_first(options.temperature, mixture.temperature),
    )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot split {text!r} into words: {error}") from None
