"""merge against Megatron's own add_index over the same list, byte for byte."""

from __future__ import annotations

import random

import numpy as np
import pytest

from oracle.support import megatron_or_skip
from tokshard import MergeOptions, merge
from tokshard.dataset.layout import DTYPES

pytestmark = pytest.mark.oracle

ROUNDS = 6
INTEGERS = sorted(dtype.name for dtype in DTYPES.values() if dtype.kind in "iu")


@pytest.fixture(scope="module")
def megatron():
    return megatron_or_skip()


def make_part(megatron, prefix, name, rng, *, multimodal):
    """A dataset by Megatron: documents of sequences, among them empty ones; sometimes none at all."""
    limits = np.iinfo(name)
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", getattr(np, name), multimodal)
    for _ in range(rng.choice([0, 1, 30])):
        lengths = [rng.choice([0, 1, 2, 50]) for _ in range(rng.randrange(4))]
        tokens = [rng.randint(0, limits.max) for _ in range(sum(lengths))]
        modes = [rng.randrange(-128, 128) for _ in lengths]
        builder.add_document(np.array(tokens, name), lengths, *([modes] if multimodal else []))
    builder.finalize(f"{prefix}.idx")


def contents(prefix):
    return tuple(open(f"{prefix}{suffix}", "rb").read() for suffix in (".bin", ".idx"))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("multimodal", [False, True])
def test_the_bytes_are_those_of_add_index(tmp_path, megatron, name, multimodal):
    for number in range(ROUNDS):
        rng = random.Random(f"{name} {multimodal} {number}")
        parts = [str(tmp_path / f"{number}-{part}") for part in range(rng.randrange(1, 5))]
        for part in parts:
            make_part(megatron, part, name, rng, multimodal=multimodal)
        parts += rng.choices(parts, k=rng.randrange(2))  # the same one again
        theirs, ours, again = (str(tmp_path / f"{side}{number}") for side in ("theirs", "ours", "again"))
        builder = megatron.IndexedDatasetBuilder(f"{theirs}.bin", getattr(np, name), multimodal)
        for part in parts:
            builder.add_index(part)
        builder.finalize(f"{theirs}.idx")
        merge(MergeOptions(inputs=parts, output=ours, multimodal=multimodal))
        assert contents(ours) == contents(theirs)
        # Once more as one that has a manifest, which the kernel copies.
        merge(MergeOptions(inputs=[ours], output=again, multimodal=multimodal))
        assert contents(again) == contents(theirs)
