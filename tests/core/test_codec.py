"""The codec between dataclasses and JSON, and the schemas that are made from the same declarations."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.schemas import script
from tokshard.core.codec import (
    Amount,
    Bounds,
    Count,
    Document,
    Record,
    Sha256,
    decode,
    encode,
)
from tokshard.errors import IntegrityError, OlderVersionError, UsageError


@dataclass(frozen=True, slots=True)
class Circle(Record):
    """A circle."""

    TAG: ClassVar = ("shape", "circle")

    radius: Amount


@dataclass(frozen=True, slots=True)
class Square(Record):
    """A square."""

    TAG: ClassVar = ("shape", "square")

    side_mm: Annotated[int, Bounds(1, 9)]

    def _validate(self):
        if self.side_mm == 7:
            raise UsageError("7 is refused")


@dataclass(frozen=True, slots=True)
class Drawing(Document):
    """A drawing."""

    SCHEMA = "example.drawing/2"

    title: str
    shapes: tuple[Circle | Square, ...]
    sha256: Sha256 | None
    counts: dict[str, Count]
    ranges: tuple[tuple[int, int], ...]
    mode: Literal["fast", "slow"]
    final: bool
    share: float
    foreign: Any
    parent: str | None = None


DRAWING = Drawing(
    title="a",
    shapes=(Circle(0.5), Square(3)),
    sha256=None,
    counts={"x": 1},
    ranges=((0, 3), (5, 6)),
    mode="fast",
    final=True,
    share=0.25,
    foreign={"any": [1, None]},
)
VALUE = {
    "schema": "example.drawing/2",
    "title": "a",
    "shapes": [{"shape": "circle", "radius": 0.5}, {"shape": "square", "side_mm": 3}],
    "sha256": None,
    "counts": {"x": 1},
    "ranges": [[0, 3], [5, 6]],
    "mode": "fast",
    "final": True,
    "share": 0.25,
    "foreign": {"any": [1, None]},
}


def test_both_directions():
    assert DRAWING.to_json() == VALUE
    assert list(DRAWING.to_json()) == list(VALUE)
    assert Drawing.from_json(VALUE, "d.json") == DRAWING
    assert Drawing.from_bytes(DRAWING.to_bytes(), "d.json") == DRAWING
    with_parent = replace(DRAWING, parent="b", sha256="0" * 64)
    assert with_parent.to_json()["parent"] == "b"
    assert Drawing.from_json(with_parent.to_json(), "d.json") == with_parent
    assert encode(Square(2)) == {"shape": "square", "side_mm": 2}
    assert decode(Square, {"shape": "square", "side_mm": 2}, "s.json") == Square(2)


shapes = st.one_of(
    st.builds(Circle, st.floats(0, 1e300)),
    st.builds(Square, st.integers(1, 9).filter(lambda side: side != 7)),
)
drawings = st.builds(
    Drawing,
    title=st.text(),
    shapes=st.lists(shapes, max_size=3).map(tuple),
    sha256=st.none() | st.from_regex("[0-9a-f]{64}", fullmatch=True),
    parent=st.none() | st.text(),
    counts=st.dictionaries(st.text(), st.integers(0, 2**63 - 1), max_size=3),
    ranges=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)), max_size=3).map(tuple),
    mode=st.sampled_from(["fast", "slow"]),
    final=st.booleans(),
    share=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    foreign=st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner, max_size=2)),
)


@given(drawings)
def test_what_is_written_is_read_back_and_is_what_the_schema_says(drawing):
    value = drawing.to_json()
    assert Drawing.from_json(value, "d.json") == drawing
    assert Drawing.from_bytes(drawing.to_bytes(), "d.json") == drawing
    Draft202012Validator(script.json_schema(Drawing)).validate(json.loads(drawing.to_bytes()))


def nested(levels):
    """Return arrays in arrays."""
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


CHANGES = {
    "d.json: title is missing": lambda value: value.pop("title"),
    "d.json: colour is unknown": lambda value: value.update(colour=1),
    "d.json: title must be a string, got 3": lambda value: value.update(title=3),
    "d.json: final must be true or false, got 1": lambda value: value.update(final=1),
    "d.json: shapes must be an array, got {}": lambda value: value.update(shapes={}),
    "d.json: shapes[1].side_mm must be at most 9, got 10": lambda v: v["shapes"][1].update(side_mm=10),
    "d.json: shapes[1].side_mm must be at least 1, got 0": lambda v: v["shapes"][1].update(side_mm=0),
    "d.json: shapes[1].side_mm must be an integer, got true": lambda v: v["shapes"][1].update(side_mm=True),
    "d.json: shapes[1].side_mm must be an integer, got 3.0": lambda v: v["shapes"][1].update(side_mm=3.0),
    "d.json: shapes[1] is invalid: 7 is refused": lambda v: v["shapes"][1].update(side_mm=7),
    "d.json: shapes[0].shape must be one of circle, square, got 'oval'": lambda v: v["shapes"][0].update(
        shape="oval"
    ),
    "d.json: shapes[0].shape is missing": lambda v: v["shapes"][0].pop("shape"),
    "d.json: shapes[0].side_mm is unknown": lambda v: v["shapes"][0].update(side_mm=1),
    "d.json: shapes[0] must be an object, got 3": lambda v: v["shapes"].__setitem__(0, 3),
    "d.json: sha256 must match [0-9a-f]{64}, got 'x'": lambda value: value.update(sha256="x"),
    "d.json: counts.x must be at least 0, got -1": lambda value: value.update(counts={"x": -1}),
    "d.json: ranges[0] must have 2 items, got 3": lambda value: value["ranges"][0].append(3),
    "d.json: ranges[1][0] must be an integer, got '5'": lambda v: v["ranges"][1].__setitem__(0, "5"),
    "d.json: ranges[1][0] must be at most 9223372036854775807, got 9223372036854775808": (
        lambda v: v["ranges"][1].__setitem__(0, 2**63)
    ),
    "d.json: mode must be one of fast, slow, got 'Fast'": lambda value: value.update(mode="Fast"),
    "d.json: foreign must be nested at most 32 levels deep": lambda value: value.update(foreign=nested(33)),
    "d.json: share must be a finite number, got '1'": lambda value: value.update(share="1"),
    "d.json: schema must be 'example.drawing/2', got null": lambda value: value.pop("schema"),
    "d.json: schema must be 'example.drawing/2', got 'example.draw/1'": lambda value: value.update(
        schema="example.draw/1"
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_every_defect_is_named_with_its_place(message):
    value = copy.deepcopy(VALUE)
    CHANGES[message](value)
    with pytest.raises(IntegrityError) as caught:
        Drawing.from_json(value, "d.json")
    assert str(caught.value) == message
    assert caught.value.path == "d.json"
    assert message.startswith(f"d.json: {caught.value.field}")


@pytest.mark.parametrize("field", ["title", "foreign"])
def test_value_nested_deeper_than_python_can_print_is_a_mismatch(field):
    with pytest.raises(IntegrityError, match=rf"^d\.json: {field} must be .{{,60}}$"):
        Drawing.from_json({**VALUE, field: nested(5000)}, "d.json")


def test_the_schema_refuses_what_the_codec_refuses():
    schema = Draft202012Validator(script.json_schema(Drawing))
    assert schema.is_valid(VALUE)
    for message, change in CHANGES.items():
        value = copy.deepcopy(VALUE)
        change(value)
        # Not expressed in the schema: what classes refuse, wide integers, depth, and that 3.0 is no integer.
        if any(text in message for text in ("invalid", "9223372036854775808", "3.0", "levels deep")):
            continue
        assert not schema.is_valid(value), message


def test_a_newer_schema_asks_for_an_upgrade():
    with pytest.raises(IntegrityError) as caught:
        Drawing.from_json({**VALUE, "schema": "example.drawing/3"}, "d.json")
    assert "upgrade tokshard" in caught.value.hint
    with pytest.raises(IntegrityError) as caught:
        Drawing.from_json({**VALUE, "schema": "example.draw/3"}, "d.json")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "read", [Drawing.from_json, lambda value, path: Drawing.from_bytes(json.dumps(value).encode(), path)]
)
def test_an_older_schema_is_its_own_error_whatever_else_the_file_holds(read):
    with pytest.raises(
        OlderVersionError, match=r"by an earlier version of tokshard \(example.drawing/1\)"
    ) as caught:
        read({"schema": "example.drawing/1", "gone": None}, "d.json")
    assert caught.value.hint == "build it again with this version of tokshard"
    assert (caught.value.exit_code, caught.value.field) == (6, "schema")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": 3}, "title must be a string, got 3"),
        ({"counts": {"x": np.int64(3)}}, "counts.x must be an integer, got "),
        ({"counts": {"x": -1}}, "counts.x must be at least 0, got -1"),
        ({"share": float("nan")}, "share must be a finite number, got nan"),
        ({"share": float("inf")}, "share must be a finite number, got inf"),
        ({"mode": "other"}, "mode must be one of fast, slow, got 'other'"),
        ({"final": 1}, "final must be true or false, got 1"),
        ({"shapes": (DRAWING,)}, "shapes[0] must be an object, got "),
        ({"sha256": "x"}, "sha256 must match [0-9a-f]{64}, got 'x'"),
        ({"ranges": ((1, 2.0),)}, "ranges[0][1] must be an integer, got 2.0"),
    ],
)
def test_the_same_is_checked_when_an_object_is_made(change, message):
    with pytest.raises(UsageError) as caught:
        replace(DRAWING, **change)
    assert str(caught.value).startswith(message)


def test_a_newer_version_of_a_name_has_a_hint():
    @dataclass(frozen=True)
    class Shuffled(Record):
        ALGORITHM: ClassVar = "tokshard.feistel/1"

    assert encode(Shuffled()) == {"algorithm": "tokshard.feistel/1"}

    for version, hint in (
        ("tokshard.feistel/2", "upgrade tokshard"),
        ("tokshard.feistel/0", None),
        ("x", None),
    ):
        with pytest.raises(IntegrityError, match=r"algorithm must be 'tokshard\.feistel/1'") as caught:
            decode(Shuffled, {"algorithm": version}, "plan.json")
        assert (caught.value.hint is None) is (hint is None)
