import pytest

from tokshard.blending.recipe import BlendRecipe, Mixture, Source, with_own_seeds
from tokshard.blending.recipe_files import (
    parse_recipe,
)
from tokshard.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "[[source]]\nprefix = 'a'\nweight = 0",
        "[[source]]\nprefix = 'a'\nweight = -1",
        "[[source]]\nprefix = 'a'\nweight = inf",
        "[[source]]\nprefix = '7'",
        "[[source]]\nprefix = ''",
        "[[source]]\nprefix = 'a'\nseed = -1",
        "[[source]]\nprefix = 'a'\nepochs = 0",
        "[[source]]\nprefix = 'a'\nepochs = 1\nweight = 1",
        "[[source]]\nprefix = 'a'\nepochs = 1\nmax_epochs = 2",
        "[[source]]\nprefix = 'a'\nweight = 1\n[[source]]\nprefix = 'b'",
        "unit = 'words'\n[[source]]\nprefix = 'a'",
        "unit = 'tokens'\n[[source]]\nprefix = 'a'",
        "temperature = 0\n[[source]]\nprefix = 'a'",
        "temperature = 2\n[[source]]\nprefix = 'a'\nepochs = 1",
        "multiple_validation_sets = true\n[[source]]\nprefix = 'a'",
    ],
)
def test_recipes_that_cannot_be_meant_are_refused(text):
    with pytest.raises(UsageError):
        parse_recipe(text)


def test_the_number_of_sources_is_limited_by_name():
    sources = tuple(Source(f"s{number}") for number in range(32_767))
    assert len(Mixture(sources[:-1]).sources) == 32_766
    with pytest.raises(UsageError, match=r"int16.*32767"):
        Mixture(sources)


def test_a_recipe_has_one_mixture_or_one_for_each_split():
    mixture = Mixture((Source("a"),))
    for arguments in (
        {},
        {"mixture": mixture, "per_split": (mixture, None, None)},
        {"per_split": (None, None, None)},
    ):
        with pytest.raises(UsageError):
            BlendRecipe(**arguments)


def test_repetitions_get_seeds_of_their_own_in_each_split():
    twice = Mixture((Source("a", 1), Source("b", 1), Source("a", 2), Source("a", 3, seed=5)))
    recipe = with_own_seeds(BlendRecipe(per_split=(twice, None, twice)), 10)
    for mixture in (recipe.per_split[0], recipe.per_split[2]):
        assert [source.seed for source in mixture.sources] == [None, None, 11, 5]


def test_a_repetition_is_one_in_whatever_spelling():
    spelled = Mixture((Source("data/a", 1), Source("./data/a", 1), Source("data/x/../a", 1)))
    recipe = with_own_seeds(BlendRecipe(spelled), 10)
    assert [source.seed for source in recipe.mixture.sources] == [None, 11, 12]
