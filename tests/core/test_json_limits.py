"""The structure of JSON is counted as a parser would find it, in blocks of any size."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core import json_limits
from tokshard.core.json_limits import JsonLimits

JSON = st.recursive(
    st.none() | st.integers() | st.text('a[]{}:,"\\\n \u00e9', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('k[,"\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=30,
)


def measured(value):
    """Return (containers, values, depth) of a parsed value."""
    if not isinstance(value, list | dict):
        return 0, 1, 0
    inner = [measured(item) for item in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(containers for containers, _, _ in inner),
        1 + keys + sum(values for _, values, _ in inner),
        1 + max((depth for _, _, depth in inner), default=0),
    )


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 16])
@given(value=JSON, indent=st.sampled_from([None, 2]))
def test_exactly_what_exceeds_a_limit_is_refused(block, value, indent):
    content = json.dumps(value, indent=indent).encode()
    containers, values, depth = measured(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_BLOCK_BYTES", block)
        assert JsonLimits(containers, values, depth).excess(content) is None
        assert JsonLimits(containers, values).excess(content) is None
        if containers:
            assert JsonLimits(containers - 1, values, depth).excess(content).limit == "containers"
            assert JsonLimits(containers, values, depth - 1).excess(content).limit == "depth"
        assert JsonLimits(containers, values - 1, depth).excess(content).limit == "values"


@given(content=st.text('[]{}":,\\ 1\n', max_size=60).map(str.encode) | st.binary(max_size=80))
def test_the_count_does_not_depend_on_the_blocks_even_for_invalid_json(content):
    limits = [JsonLimits(containers, values, 3) for containers in (1, 4) for values in (2, 9)]
    results = []
    for block in (1, 5, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_limits, "_BLOCK_BYTES", block)
            results.append([limit.excess(content) is None for limit in limits])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    "piece", [b"[],", b'"",', b'\\"', b'"' + b"x" * 1_000_000 + b'",', b"[" * 300 + b"]" * 300]
)
@pytest.mark.parametrize("begin", [b"", b'"'])
def test_memory_does_not_depend_on_the_size(begin, piece):
    content = begin + piece * (4_000_000 // len(piece))
    tracemalloc.start()
    try:
        JsonLimits(10**9, 100, 10**9).excess(content)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
