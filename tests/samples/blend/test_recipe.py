import pytest

from support.blends import mixture_of
from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import BlendRecipe, Source
from tokshard.samples.blend.recipe_files import (
    parse_recipe,
)


@pytest.mark.parametrize(
    "text",
    [
        "[[source]]\nprefix = 'a'\nweight = 0",
        "[[source]]\nprefix = 'a'\nweight = -1",
        "[[source]]\nprefix = 'a'\nweight = inf",
        "[[source]]\nprefix = '7'",
        "[[source]]\nprefix = ''",
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
    assert len(mixture_of(*sources[:-1]).sources) == 32_766
    with pytest.raises(UsageError, match=r"int16.*32767"):
        mixture_of(*sources)


def test_a_recipe_has_one_mixture_or_one_for_each_split():
    mixture = mixture_of(Source("a"))
    assert not BlendRecipe((mixture,), multiple_validation_sets=False).is_per_split
    assert BlendRecipe((None, mixture, None), multiple_validation_sets=False).for_split("valid") is mixture
    for mixtures, message in (
        ((), "either sources for all splits or sources for each split"),
        ((mixture, mixture), "either sources for all splits or sources for each split"),
        ((None,), "at least one split must have a source"),
        ((None, None, None), "at least one split must have a source"),
    ):
        with pytest.raises(UsageError, match=message):
            BlendRecipe(mixtures, multiple_validation_sets=False)
