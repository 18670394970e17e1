"""Digests are written into files that must stay readable for ever: their values are frozen here."""

from __future__ import annotations

import hashlib
import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokshard.storage import digest, reading

VECTORS = {
    b"": "99aa06d3014798d86001c324468d497f",
    b"tokshard": "901f4e0b31d41ea97f4e2de3fbf2e494",
    bytes(range(256)) * 5: "d92ab3a1cb0542a74844b009e164352e",
}


@pytest.mark.parametrize("content", VECTORS)
def test_frozen_content_digests(tmp_path, content):
    assert digest.content_digest(content) == VECTORS[content]
    (tmp_path / "x").write_bytes(content)
    assert digest.file_digest(str(tmp_path / "x")) == VECTORS[content]


@given(pieces=st.lists(st.binary(max_size=40)))
def test_content_may_come_in_any_buffers(pieces):
    whole = b"".join(pieces)
    assert digest.content_digest(*pieces) == digest.content_digest(whole)
    assert digest.content_digest(*map(memoryview, pieces)) == digest.content_digest(bytearray(whole))


def test_a_file_is_digested_across_read_boundaries(tmp_path, monkeypatch):
    content = bytes(range(256)) * 100
    (tmp_path / "x").write_bytes(content)
    for size in (1000, len(content) - 1, len(content), len(content) + 1):
        monkeypatch.setattr(reading, "READ_BYTES", size)
        assert digest.file_digest(str(tmp_path / "x")) == xxhash.xxh3_128(content).hexdigest()


@given(pieces=st.lists(st.binary(max_size=20), max_size=6))
def test_the_piecewise_digest_is_the_digest_of_the_digests(pieces):
    digests = [xxhash.xxh3_128(piece) for piece in pieces]
    expected = xxhash.xxh3_128(b"".join(piece_hash.digest() for piece_hash in digests)).hexdigest()
    assert digest.piecewise_digest(piece_hash.hexdigest() for piece_hash in digests) == expected


def test_the_piecewise_digest_sees_order_and_number_of_pieces():
    first, second = digest.content_digest(b"1"), digest.content_digest(b"2")
    seen = {
        digest.piecewise_digest(pieces)
        for pieces in ([], [first], [second], [first, second], [second, first], [first, first])
    }
    assert len(seen) == 6
    assert digest.piecewise_digest([first, second]) == "0dc760cecc476072a538771d85e1d71e"


IDENTITIES = [
    (None, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    (
        {"b": [1, 2.5, True], "a": "ü\ud800\n"},
        "4b9eefb88f0221e6754a27043ee7aefff29e484432b77f2519742515ea749438",
    ),
]


@pytest.mark.parametrize(("value", "expected"), IDENTITIES)
def test_frozen_identity_digests(value, expected):
    assert digest.identity_digest(value) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(value=JSON)
def test_an_identity_does_not_depend_on_the_order_of_keys_or_on_a_round_trip(value):
    expected = hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()
    assert digest.identity_digest(value) == expected
    assert digest.identity_digest(reversed_keys(value)) == expected
    assert digest.identity_digest(json.loads(json.dumps(value))) == expected


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [reversed_keys(item) for item in value]
    return value
