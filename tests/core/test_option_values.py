"""Parsers of option values."""

from __future__ import annotations

import pytest

from tokshard.core.options import parse_bytes, parse_count
from tokshard.samples.index.sizes import Sizes


def test_counts_are_read_as_people_write_them():
    texts = ["7", "1_000", "1,000", "4k", "2.5M", "10B", "1.5T", "2.0"]
    assert [parse_count(text) for text in texts] == [7, 1000, 1000, 4000, 2_500_000, 10**10, 15 * 10**11, 2]
    assert parse_count("1,234,567.0") == 1_234_567
    assert Sizes.parse(" 1k , none") == Sizes(1000, None, 0)
    for wrong in (
        "",
        "x",
        "--1",
        "1.5",
        "1.5e3",
        "1MB",
        "0x10",
        "1,2",
        "10,20",
        "1,0000",
        "1,000,0",
        "1000,000",
    ):
        with pytest.raises(Exception, match="must be a whole number such as"):
            parse_count(wrong)


def test_sizes_with_a_fraction_are_exact():
    texts = {f"{whole}.{part:03d}": 1000 * whole + part for whole in range(10) for part in range(1000)}
    for unit, scale in (("kB", 1), ("m", 1000), ("GB", 10**6), ("T", 10**9)):
        assert [parse_bytes(f"{text}{unit}") for text in texts] == [each * scale for each in texts.values()]
    assert [parse_bytes(text) for text in ("1.5MiB", "1.5000kb", "0.5 Ki")] == [3 << 19, 1500, 512]
    for wrong in ("", "MB", "-1", "1.0005kB", "0.3KiB", "1e6", "1kiBB", "5%"):
        with pytest.raises(Exception, match="must be a size such as"):
            parse_bytes(wrong)
