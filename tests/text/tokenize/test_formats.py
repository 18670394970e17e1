"""Files of the work directory that were written once are read, and written back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokshard.core.codec import decode, encode
from tokshard.text.tokenize.assembly import AssembledUnit
from tokshard.text.tokenize.part import PartFooter, UnitKey

GOLDEN = Path(__file__).parents[2] / "golden/formats"


def test_the_footer_of_a_part():
    content = (GOLDEN / "part-2.json").read_bytes()
    footer = PartFooter.from_bytes(content, "part-2.json")
    assert footer.to_bytes() == content
    assert footer.header.key == UnitKey(1, 2)
    assert footer.streams["lengths.0"].extents == ((0, 12),)


def test_the_footer_of_a_part_of_a_subset():
    content = (GOLDEN / "part-2-subset.json").read_bytes()
    counts = PartFooter.from_bytes(content, "part-2-subset.json").header.counts
    assert PartFooter.from_bytes(content, "part-2-subset.json").to_bytes() == content
    assert counts.records == counts.documents + counts.rejected_total + counts.excluded_total
    assert counts.of_split(1).excluded == {"not-sampled": 6, "other-split": 2}


def test_the_footer_of_a_part_of_text_that_is_not_represented():
    content = (GOLDEN / "part-2-unrepresented.json").read_bytes()
    footer = PartFooter.from_bytes(content, "part-2-unrepresented.json")
    assert footer.to_bytes() == content
    found = footer.header.counts.fields[0].unrepresented
    assert (found + found).describe() == "24 of 2,000 checked (1.20%)"


@pytest.mark.parametrize("name", ["assembled-unit-2.json", "assembled-unit-2-subset.json"])
def test_an_assembled_unit_in_the_journal(name):
    content = (GOLDEN / name).read_text()
    unit = decode(AssembledUnit, json.loads(content), "journal")
    assert json.dumps(encode(unit), indent=2) + "\n" == content
    assert unit.header.counts.rejected_total == 1
    assert unit.is_cut == (True if "subset" in name else None)
