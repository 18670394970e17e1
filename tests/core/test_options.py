"""Options classes: what a declaration decides, and the checks that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest

from tokshard.core.codec import Positive
from tokshard.core.options import (
    Option,
    Options,
    StrPath,
    StrPaths,
    declared_options,
    parse_bytes,
    parse_pair,
    recorded,
)
from tokshard.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Example(Options):
    """Options of nothing."""

    inputs: Annotated[StrPaths, Option("Read these.", is_argument=True, metavar="INPUT...")]
    output: Annotated[StrPath | None, Option("Write this.")] = None
    mode: Annotated[Literal["copy", "move"], Option("Choose.")] = "copy"
    limit: Annotated[Positive | None, Option("Stop early.", requires=("mode=move", "output"))] = None
    check: Annotated[bool, Option("Check first.")] = True
    fast: Annotated[bool, Option("Be fast.", excludes=("check=True", "limit"))] = False
    lengths: Annotated[tuple[Positive, ...], Option("Cut.", name="--length")] = ()
    memory: Annotated[Positive | None, Option("Use SIZE.", parse=parse_bytes)] = None
    moved: Annotated[tuple[tuple[str, str], ...], Option("Move.", parse=parse_pair("A=B", "x=y"))] = ()
    names: Annotated[tuple[str, ...], Option("Use.", is_argument=True, metavar="[[WEIGHT] NAME...]")] = ()


def test_values_are_normalized_and_classes_are_keyword_only():
    made = Example(inputs=[Path("a"), "b"], output=Path("out"), lengths=[1, 2])
    assert (made.inputs, made.output, made.lengths) == (("a", "b"), "out", (1, 2))
    assert Example(inputs="a").inputs == ("a",)
    assert replace(made, inputs=Path("c")).inputs == ("c",)
    parsed = Example(inputs="a", memory="2MiB", moved=["a=b", ("c", "d")])
    assert (parsed.memory, parsed.moved) == (2 << 20, (("a", "b"), ("c", "d")))
    with pytest.raises(TypeError):
        Example("a")


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        ({"mode": "link"}, "--mode must be one of copy, move, got 'link'", None),
        ({"limit": 0}, "--limit must be at least 1, got 0", None),
        ({"limit": "3"}, "--limit must be an integer, got '3'", None),
        ({"limit": [3]}, "--limit must be an integer, got [3]", None),
        ({"lengths": [4, 0]}, "--length must be at least 1, got 0", None),
        ({"moved": [("a", 3)]}, "--moved must be a string, got 3", None),
        ({"names": [3]}, "NAME must be a string, got 3", None),
        ({"inputs": 7}, "INPUT must be a string, got 7", None),
        ({"memory": "much"}, "--memory must be a size such as 64MB, 16MiB or 1000000, got 'much'", None),
        ({"moved": "a"}, "--moved must be A=B such as x=y, got 'a'", None),
        (
            {"limit": 3},
            "--limit requires --mode move or --output",
            "pass --mode move or --output TEXT, or leave out --limit",
        ),
        ({"fast": True}, "--fast cannot be used with --check", "leave out one of them"),
        (
            {"fast": True, "check": False, "limit": 3, "output": "x"},
            "--fast cannot be used with --limit",
            "leave out one of them",
        ),
    ],
)
def test_wrong_options_are_refused(more, message, hint):
    with pytest.raises(UsageError) as caught:
        Example(**{"inputs": "a", **more})
    assert caught.value.message.startswith(message)
    assert caught.value.hint == hint


def test_an_option_is_given_where_it_differs_from_its_default():
    made = Example(inputs="a", mode="move", limit=3)
    given = [name for name in declared_options(Example) if made.is_given(name)]
    assert given == ["inputs", "mode", "limit"]
    assert made.is_given("mode=move")
    assert not made.is_given("mode=copy")


@dataclass(frozen=True, kw_only=True)
class LongerExample(Example):
    """Example options, and one more."""

    verbose: Annotated[bool, Option("Say more.")] = False
    example: Example = Example(inputs="a")
    copies: int = 1


@dataclass(frozen=True, kw_only=True)
class RecordedExample(Example):
    """Example options as they are recorded, and a result."""

    copies: int
    seconds: int


def test_own_options_come_before_inherited_ones():
    assert [*declared_options(LongerExample)] == ["verbose", *declared_options(Example)]


def test_options_in_options_have_their_class():
    with pytest.raises(UsageError, match="example must be Example, got null"):
        LongerExample(inputs="a", example=None)


def test_recorded_options_are_those_of_the_same_name():
    options = LongerExample(inputs="a", mode="move", limit=3, verbose=True)
    record = recorded(RecordedExample, options, copies=2, seconds=7)
    assert record == RecordedExample(inputs="a", mode="move", limit=3, copies=2, seconds=7)
