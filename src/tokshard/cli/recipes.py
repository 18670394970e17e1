"""From the arguments and options of ``blend`` to a recipe and the builder's parameters."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokshard.cli.options import check_path_as, neutral_identifiers
from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes

if TYPE_CHECKING:
    from tokshard.blending.options import BuilderConfig
    from tokshard.blending.recipe import BlendRecipe, Mixture
    from tokshard.index_cache.likeness import Likeness


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions:
    """How a mixture is given: by words or one file, by files of Megatron's, or by words for each split."""

    words: tuple[str, ...]
    data_args_path: str | None
    per_split_data_args_path: str | None
    train: str | None
    valid: str | None
    test: str | None
    multiple_validation_sets: bool
    unit: str | None
    temperature: float | None
    epochs: float | None
    max_epochs: float | None
    own_seeds: bool

    def recipe(self, seed: int | None) -> BlendRecipe:
        """Return the recipe.

        Args:
            seed: The seed of the run, or None for that of the recipe, or Megatron's.

        Raises:
            UsageError: It is given in several ways or none, or cannot be meant.
            InputError: A file cannot be read.
        """
        from tokshard.blending.recipe import with_own_seeds
        from tokshard.gpt_index.seed import DEFAULT_SEED

        recipe = self._read()
        if self.multiple_validation_sets:
            recipe = replace(recipe, multiple_validation_sets=True)
        if recipe.per_split is None:
            recipe = replace(recipe, mixture=self._adjusted(recipe.mixture))
        else:
            train, valid, test = map(self._adjusted, recipe.per_split)
            recipe = replace(recipe, per_split=(train, valid, test))
        if not self.own_seeds:
            return recipe
        own = recipe.defaults.seed if seed is None else seed
        return with_own_seeds(recipe, DEFAULT_SEED if own is None else own)

    def _read(self) -> BlendRecipe:
        from tokshard.blending import recipe_files

        separate = (self.train, self.valid, self.test)
        ways = {
            "the arguments": bool(self.words),
            "--data-args-path": self.data_args_path is not None,
            "--per-split-data-args-path": self.per_split_data_args_path is not None,
            "--train, --valid, --test": any(text is not None for text in separate),
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) != 1:
            told = f"is given by {' and by '.join(given)}" if given else "is not given"
            raise UsageError(
                f"the mixture {told}",
                hint="for example: tokshard blend 0.7 data/web 0.3 data/code, or tokshard blend recipe.toml",
            )
        if self.data_args_path is not None:
            return recipe_files.read_data_args(self.data_args_path)
        if self.per_split_data_args_path is not None:
            return recipe_files.read_per_split(self.per_split_data_args_path)
        if self.words:
            return recipe_files.read_arguments(self.words)
        train, valid, test = (None if text is None else _words(text) for text in separate)
        return recipe_files.parse_per_split_words(train, valid, test)

    def _adjusted(self, mixture: Mixture | None) -> Mixture | None:
        """Return a mixture with what the options say of all its sources."""
        if mixture is None:
            return None
        sources = tuple(
            replace(
                source,
                epochs=self.epochs if source.epochs is None else source.epochs,
                max_epochs=self.max_epochs if source.max_epochs is None else source.max_epochs,
            )
            for source in mixture.sources
        )
        changed: dict[str, Any] = {"unit": self.unit, "temperature": self.temperature}
        said = {name: value for name, value in changed.items() if value is not None}
        return replace(mixture, sources=sources, **said)


def builder_config(
    recipe: BlendRecipe,
    *,
    sequence_length: int | None,
    sizes: Sizes | None,
    split: str | None,
    seed: int | None,
    surplus: float | None,
    like: Likeness | None,
    identifiers: dict[str, Any] | None,
    path_as: tuple[tuple[str, str], ...],
    cache: str | None,
    **others: Any,
) -> BuilderConfig:
    """Return the builder's parameters: of the options, else of the recipe, ``--like``, or Megatron.

    Raises:
        UsageError: The sequence length is not given, or a value cannot be meant or has no effect.
    """
    from tokshard.blending.options import DEFAULT_SURPLUS, BuilderConfig
    from tokshard.blending.recipe import prefixes
    from tokshard.gpt_index.seed import DEFAULT_SEED
    from tokshard.gpt_index.splits import DEFAULT_SPLIT

    said = recipe.defaults
    length = _first(sequence_length, said.sequence_length, like and like.sequence_length)
    if length is None:
        raise UsageError("the sequence length is not given", hint="for example --seq-length 4096")
    if sizes is None:
        sizes = Sizes(*said.num_samples) if said.num_samples else Sizes(None, 0, 0)
    if recipe.per_split is not None and (given := _first(split, said.split)) is not None:
        raise UsageError(
            f"the split {given!r} is of no use: each split has data of its own",
            hint="leave it out; a Megatron job with both will not start",
        )
    named = prefixes((recipe.mixture, *(recipe.per_split or ())))
    check_path_as(path_as, (*named, cache or ""))
    if identifiers is None:
        identifiers = neutral_identifiers(named[0])
    return BuilderConfig(
        sequence_length=length,
        sizes=sizes,
        tokenizer=identifiers,
        split=_first(split, said.split, like and like.split, DEFAULT_SPLIT),
        seed=_first(seed, said.seed, like and like.random_seed, DEFAULT_SEED),
        surplus=_first(surplus, said.surplus, DEFAULT_SURPLUS),
        path_as=path_as,
        **others,
    )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be split in words: {error}") from None
