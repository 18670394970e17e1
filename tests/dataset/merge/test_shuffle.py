"""P61: shuffling against a slow twin that holds all documents, with runs of a few documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import Plain, datasets
from tokshard import MergeOptions, merge
from tokshard.core.keyed_orders import derive_key, mix
from tokshard.dataset.merge import documents, options, shuffle, shuffled_output

PIECE_BYTES = 12


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "MIN_MEMORY_BYTES", 1)
    monkeypatch.setattr(shuffle, "CHECKPOINT_BYTES", 40)
    monkeypatch.setattr(shuffled_output, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(documents, "CHUNK_BYTES", 10)


def order_of(count: int, seed: int) -> list[int]:
    """The documented order, one document at a time."""
    key = derive_key("tokshard.sorted/1:documents", seed, 0)

    def word(number: int) -> int:
        inner = mix(np.array([(number + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64))
        return int(mix(np.array([(key + int(inner[0])) % 2**64], np.uint64))[0])

    return sorted(range(count), key=word)


def shuffled(plains: list[Plain], seed: int) -> tuple[Plain, list[int]]:
    """The slow twin."""
    all_documents = [document for plain in plains for document in plain.documents]
    order = order_of(len(all_documents), seed)
    modes = None
    if plains[0].modes is not None:
        left = iter([mode for plain in plains for mode in plain.modes])
        by_document = [[next(left) for _ in document] for document in all_documents]
        modes = [mode for number in order for mode in by_document[number]]
    return Plain(plains[0].dtype, [all_documents[number] for number in order], modes), order


def pair(prefix: str) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@st.composite
def lists_of_datasets(draw):
    first = draw(datasets())
    others = st.lists(datasets(first.dtype, first.modes is not None), max_size=3)
    return [first, *draw(others)]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    lists_of_datasets(),
    st.integers(0, 2**63 - 1),
    st.sampled_from([1, 600, 1500, 1 << 20]),
    st.sampled_from([1, 2, 4]),
)
def test_a_shuffle_is_the_documented_order(plains, seed, memory, workers):
    multimodal = plains[0].modes is not None
    names = [f"p{number}" for number in range(len(plains))]
    for name, plain in zip(names, plains, strict=True):
        plain.write(name)
    common = {"multimodal": multimodal, "force": True, "memory_bytes": memory, "workers": workers}
    report = merge(MergeOptions(names, "out", shuffle=seed, **common))
    wanted, order = shuffled(plains, seed)
    assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())
    assert np.fromfile("out.tokshard/order.bin", "<i8").tolist() == order
    assert (report.shuffle.seed, report.documents) == (seed, len(order))
    assert not Path("out.tokshard/work").exists()
