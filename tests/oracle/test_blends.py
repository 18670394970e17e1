"""Blends of every kind against Megatron's builder, and the blending kernels against its C++."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from oracle import candidate
from oracle.comparison import EQUAL, campaign, compare
from oracle.configurations import random_configuration
from oracle.reference import Megatron
from oracle.support import cases, shared
from tokshard.errors import UsageError
from tokshard.samples.blend.order import build_blending_indices, build_exhaustive_blending_indices

pytestmark = pytest.mark.oracle

ROUNDS, CONFIGURATIONS = 6, 20


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.mark.parametrize("part", shared(ROUNDS))
@pytest.mark.parametrize("kind", ["blend", "per-split"])
def test_files_are_equal_found_and_read_alike(tmp_path, megatron, kind, part, record_property):
    numbers = range(part * CONFIGURATIONS, (part + 1) * CONFIGURATIONS)
    counts = campaign((random_configuration(kind, number) for number in numbers), megatron, tmp_path)
    print(dict(counts))
    record_property("results", dict(counts))
    assert counts.total() == CONFIGURATIONS
    assert counts[EQUAL] > CONFIGURATIONS // 4


# Configurations without a surplus in which Megatron finds, too late, that a source has too few samples.
OVERDRAWN = (149, 159, 171, 253, 359, 743, 878, 991)
SURPLUS_STEP = 1e-6


def run(configuration, megatron, directory):
    with pytest.MonkeyPatch.context() as patch:
        return compare(configuration, megatron, str(directory), patch)


@pytest.mark.parametrize("number", OVERDRAWN)
def test_the_surplus_that_is_advised_is_the_smallest_that_megatron_can_use(tmp_path, megatron, number):
    configuration = random_configuration("per-split", number)
    assert run(configuration, megatron, tmp_path / "none") == "Megatron: IndexError"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError) as caught:
        patch.chdir(tmp_path / "none")
        candidate.build(configuration, "ours")
    surplus = float(re.search(r"--surplus (\S+)", caught.value.hint)[1])
    less = max(0.0, surplus - SURPLUS_STEP)
    assert run(replace(configuration, surplus=surplus), megatron, tmp_path / "enough") == EQUAL
    assert run(replace(configuration, surplus=less), megatron, tmp_path / "less") == "Megatron: IndexError"


WEIGHTS = {
    "random": lambda count: np.random.RandomState(count).random_sample(count) + 1e-4,
    "equal": np.ones,
    "round": lambda count: np.arange(count) % 9 + 1.0,
    "steep": lambda count: 1.0 / np.arange(1, count + 1) ** 2,
    "three parts": lambda count: np.resize([0.3, 0.3, 0.4], count),
}


GREEDY = [(1, 50), (2, 70_000), (3, 1_200_000), (64, 120_000), (1000, 60_000)]
EXHAUSTIVE = [*GREEDY[:-1], (1000, 90_000)]


@pytest.mark.parametrize(("name", "shape"), cases(sorted(WEIGHTS), GREEDY))
def test_greedy_blends_are_equal(megatron, name, shape):
    count, size = shape
    weights = WEIGHTS[name](count)
    weights = weights / np.sum(weights)
    expected = np.zeros(size, np.int16), np.zeros(size, np.int64)
    megatron.helpers.build_blending_indices(*expected, weights.tolist(), count, size, False)
    equal_pairs(build_blending_indices(weights, size), expected)


@pytest.mark.parametrize(("name", "shape"), cases(sorted(WEIGHTS), EXHAUSTIVE))
def test_exhaustive_blends_are_equal(megatron, name, shape):
    count, size = shape
    weights = WEIGHTS[name](count)
    sizes = np.maximum(1, weights / np.sum(weights) * size).astype(np.int64)
    total = int(sizes.sum())
    expected = np.zeros(total, np.int16), np.zeros(total, np.int64)
    megatron.helpers.build_exhaustive_blending_indices(*expected, sizes.tolist(), count)
    equal_pairs(build_exhaustive_blending_indices(sizes), expected)


def equal_pairs(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
