import doctest
import importlib
import pkgutil

import pytest

import tokshard

MODULES = [module.name for module in pkgutil.walk_packages(tokshard.__path__, "tokshard.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 150
