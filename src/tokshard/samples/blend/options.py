"""Options of ``tokshard blend``, and the parameters of Megatron's dataset builder that follow from them."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokshard.core import megatron_defaults
from tokshard.core.codec import Count, Positive, Record
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError
from tokshard.samples.index.options import (
    DEFAULT_SPLIT_WARNING,
    NamingOptions,
    TrainingOptions,
    check_path_as,
    neutral_identifiers,
)
from tokshard.samples.index.packing import Packing, PackMethod, packing_of
from tokshard.samples.index.sizes import Sizes
from tokshard.samples.index.splits import Split, parse_split
from tokshard.storage.lock import LockMode, check_lock_mode

if TYPE_CHECKING:
    from tokshard.samples.blend.recipe import BlendRecipe, Mixture, RecipeDefaults, Unit

CACHE_NAME = "cache"


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
    surplus: float
    extra_token: bool
    drop_last_partial: bool
    path_as: tuple[tuple[str, str], ...]
    packing: Packing | None = None

    def _validate(self) -> None:
        if self.packing is not None:
            self.packing.check_sequence_length(self.sequence_length)
        if not 0 <= self.surplus < math.inf:
            raise UsageError(
                f"surplus must be a fraction of at least 0, got {self.surplus:g}",
                hint=f"pass for example {megatron_defaults.SURPLUS}",
            )
        object.__setattr__(self, "surplus", float(self.surplus))  # an int would be another text in JSON
        self.shares  # noqa: B018 - raises for an invalid split string

    @property
    def shares(self) -> Split:
        """The shares of the splits."""
        return parse_split(self.split)

    def size_of(self, split_name: str) -> int | None:
        """Return the samples asked for in a split."""
        size: int | None = getattr(self.sizes, split_name)
        return size

    def training_path(self, prefix: str) -> str:
        """Return the prefix as the training run will name it, which enters the hashes.

        Example:
            >>> options = BlendOptions(("out/web",), sequence_length=8, path_as=(("out", "/data/v1"),))
            >>> recipe, config = options.resolve()
            >>> config.training_path("out/web"), config.training_path("output/web")
            ('/data/v1/web', 'output/web')
        """
        return PathMapping(self.path_as).map(prefix)


@dataclass(frozen=True)
class BlendOptions:
    """Options of :func:`tokshard.blend`.

    The mixture is given in one way: by ``sources``, by one of Megatron's files, or by words for each split.
    What no option gives is taken from the recipe file, then from ``naming.like``, then from Megatron.

    Attributes:
        sources: Weights and path prefixes in turn, prefixes alone, one recipe file (``*.toml``), one of
            Megatron's files per split (``*.json``), one file of words (``@file``), or a recipe.
        output: The directory of ``blend.json``; not needed for a dry run.
        train: The words of a mixture for training alone.
        valid: The words of a mixture for validation alone.
        test: The words of a mixture for testing alone.
        data_args_path: Megatron's file of words.
        per_split_data_args_path: Megatron's JSON of words for each split.
        multiple_validation_sets: Whether the sources of validation stay apart.
        unit: The unit of the weights: ``"samples"`` or ``"tokens"``.
        epochs: The epochs to read of each source that the recipe gives none.
        max_epochs: The limit on the epochs of each source that the recipe gives none.
        temperature: Weights (or sizes) are taken to the power of 1/temperature.
        sequence_length: The tokens of a sample.
        split: The split string.
        seed: The seed of all shuffles.
        extra_token: Whether each sample has one more token, the last label.
        drop_last_partial: Whether validation drops its last, incomplete sample.
        pack: ``"concat"`` for Megatron's samples; ``"best-fit"`` packs whole documents into samples. None for
            that of the recipe. A source of a recipe can have its own.
        max_documents_per_sample: Documents of a packed sample at most; None for any number.
        pad_multiple: The room of each document of a packed sample is a multiple of this many tokens.
        num_samples: The samples of training, validation and testing; None in it is one epoch.
        surplus: The samples built beyond those that the weights ask for, as a fraction.
        training: The arguments of the job that decide the sizes, instead of ``num_samples``.
        naming: The tokenizer of the job.
        path_as: Pairs (path here, path at training time).
        cache_directory: Megatron's ``--data-cache-path``; None for ``OUTPUT/cache``.
        rebuild: Whether to replace indexes that are stale, damaged or not made by tokshard.
        force: Whether to replace another blend at ``output``.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.
        allow_tokenizer_mismatch: Whether datasets of different tokenizers, or of another one than the job's,
            may be blended.
        workers: Threads; None for one for each core.

    Raises:
        UsageError: Options contradict each other, or a value is out of range.
    """

    sources: tuple[str, ...] | BlendRecipe = ()
    output: str | os.PathLike[str] | None = None
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    data_args_path: str | None = None
    per_split_data_args_path: str | None = None
    multiple_validation_sets: bool = False
    unit: Unit | None = None
    epochs: float | None = None
    max_epochs: float | None = None
    temperature: float | None = None
    sequence_length: int | None = None
    split: str | None = None
    seed: int | None = None
    extra_token: bool = True
    drop_last_partial: bool = True
    pack: PackMethod | None = None
    max_documents_per_sample: int | None = None
    pad_multiple: int | None = None
    num_samples: Sizes | None = None
    surplus: float | None = None
    training: TrainingOptions = TrainingOptions()  # noqa: RUF009 - frozen
    naming: NamingOptions = NamingOptions()  # noqa: RUF009 - frozen
    path_as: tuple[tuple[str, str], ...] = ()
    cache_directory: str | os.PathLike[str] | None = None
    rebuild: bool = False
    force: bool = False
    lock: LockMode = "flock"
    allow_tokenizer_mismatch: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        self._check_mixture()
        if self.num_samples is not None and self.training != TrainingOptions():
            raise UsageError("--num-samples and the training arguments exclude each other")
        self._training_sizes  # noqa: B018 - raises for arguments that are missing or out of range
        if self.split is not None:
            parse_split(self.split)

    def _check_mixture(self) -> None:
        ways = {
            "the arguments": bool(self.sources),
            "--data-args-path": self.data_args_path is not None,
            "--per-split-data-args-path": self.per_split_data_args_path is not None,
            "--train, --valid, --test": any(words is not None for words in self._separate),
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) != 1:
            message = f"{' and '.join(given)} exclude each other" if given else "a mixture is required"
            raise UsageError(
                message,
                hint="pass for example 0.7 data/web 0.3 data/code, or recipe.toml",
            )

    @property
    def _training_sizes(self) -> Sizes | None:
        return self.training.sizes(self.naming.megatron)

    @property
    def _separate(self) -> tuple[str | None, str | None, str | None]:
        return self.train, self.valid, self.test

    @property
    def cache(self) -> str | None:
        """The directory of the index files; None where neither it nor the output is given."""
        if self.cache_directory is not None:
            return os.fspath(self.cache_directory)
        return None if self.output is None else os.path.join(self.output, CACHE_NAME)

    def resolve(self) -> tuple[BlendRecipe, BuilderConfig]:
        """Read the files that the options name, and return the recipe and the builder's parameters.

        Raises:
            UsageError: The sequence length is missing, or a value is invalid or has no effect.
            InputError: A file cannot be read.
        """
        from tokshard.samples.blend.recipe import prefixes

        (recipe, defaults), like = self._adjusted_recipe(), self.naming.settings()
        sequence_length = _first(
            self.sequence_length, defaults.sequence_length, like and like.sequence_length
        )
        if sequence_length is None:
            raise UsageError("the sequence length is required", hint="pass for example --seq-length 4096")
        split = _first(self.split, defaults.split)
        if recipe.per_split is not None and split is not None:
            raise UsageError(
                f"--split {split!r} and data for each split exclude each other",
                hint="omit --split; a Megatron job with both will not start",
            )
        mixtures = [mixture for mixture in (recipe.mixture, *(recipe.per_split or ())) if mixture is not None]
        packed = any(source.pack == "best-fit" for mixture in mixtures for source in mixture.sources)
        packing = packing_of(
            "best-fit" if packed else "concat", self.max_documents_per_sample, self.pad_multiple
        )
        named = prefixes((recipe.mixture, *(recipe.per_split or ())))
        check_path_as(self.path_as, (*named, self.cache or ""))
        identifiers = self.naming.identifiers()
        sizes = _first(self.num_samples, self._training_sizes, defaults.num_samples, Sizes(None, 0, 0))
        config = BuilderConfig(
            sequence_length=sequence_length,
            sizes=sizes,
            tokenizer=neutral_identifiers(named[0]) if identifiers is None else identifiers,
            split=_first(split, like and like.split, megatron_defaults.SPLIT),
            seed=_first(self.seed, defaults.seed, like and like.random_seed, megatron_defaults.SEED),
            surplus=_first(self.surplus, defaults.surplus, megatron_defaults.SURPLUS),
            path_as=self.path_as,
            extra_token=self.extra_token,
            drop_last_partial=self.drop_last_partial,
            packing=packing,
        )
        return recipe, config

    def early_warnings(self) -> tuple[str, ...]:
        """Return the warnings that do not need the datasets: they can be shown before the work begins.

        Raises:
            UsageError, InputError: See :meth:`resolve`.
        """
        (recipe, defaults), like = self._adjusted_recipe(), self.naming.settings()
        known = (self.split, defaults.split, like and like.split, recipe.per_split)
        return () if any(known) else (DEFAULT_SPLIT_WARNING,)

    def _adjusted_recipe(self) -> tuple[BlendRecipe, RecipeDefaults]:
        recipe, defaults = self._read_recipe()
        if self.multiple_validation_sets:
            recipe = replace(recipe, multiple_validation_sets=True)
        if recipe.per_split is None:
            return replace(recipe, mixture=self._adjusted(recipe.mixture, defaults.pack)), defaults
        train, valid, test = (self._adjusted(mixture, defaults.pack) for mixture in recipe.per_split)
        return replace(recipe, per_split=(train, valid, test)), defaults

    def _read_recipe(self) -> tuple[BlendRecipe, RecipeDefaults]:
        from tokshard.samples.blend import recipe_files
        from tokshard.samples.blend.recipe import RecipeDefaults

        if isinstance(self.sources, tuple) and self.sources:
            return recipe_files.read_arguments(self.sources)
        if self.data_args_path is not None:
            recipe = recipe_files.read_data_args(self.data_args_path)
        elif self.per_split_data_args_path is not None:
            recipe = recipe_files.read_per_split(self.per_split_data_args_path)
        elif isinstance(self.sources, tuple):
            train, valid, test = (None if words is None else _words(words) for words in self._separate)
            recipe = recipe_files.parse_per_split_words(train, valid, test)
        else:
            recipe = self.sources
        return recipe, RecipeDefaults()

    def _adjusted(self, mixture: Mixture | None, pack: PackMethod | None) -> Mixture | None:
        if mixture is None:
            return None
        own = _first(self.pack, pack)
        default = None if own == "concat" else own  # as in recipes of earlier versions
        sources = tuple(
            replace(
                source,
                epochs=_first(source.epochs, self.epochs),
                max_epochs=_first(source.max_epochs, self.max_epochs),
                pack=_first(source.pack, default),
            )
            for source in mixture.sources
        )
        return replace(
            mixture,
            sources=sources,
            unit=_first(self.unit, mixture.unit),
            temperature=_first(self.temperature, mixture.temperature),
        )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot split {text!r} into words: {error}") from None
