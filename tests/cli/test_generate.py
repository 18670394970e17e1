"""Commands that are generated from options classes: how words become the fields of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import typer

from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.generate import Given, command
from tokshard.core.codec import Positive
from tokshard.core.options import Option, Options, StrPath, StrPaths, parse_bytes, parse_pair

made = {}


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    """Options in options."""

    depth: Annotated[Positive | None, Option("Go N levels deep.")] = None


@dataclass(frozen=True, kw_only=True)
class Outer(Options):
    """Options of nothing."""

    inputs: Annotated[StrPaths, Option("Read these.", is_argument=True, metavar="INPUT...")]
    output: Annotated[StrPath, Option("Write this.", aliases=("-o", "--out"), metavar="DIR")]
    memory: Annotated[int, Option("Use SIZE.", parse=parse_bytes, metavar="SIZE", default="1MiB")] = 1 << 20
    mode: Annotated[Literal["copy", "move"], Option("Choose.")] = "copy"
    check: Annotated[bool, Option("Check first.")] = True
    eod: Annotated[bool | None, Option("End documents.", default="as recorded")] = None
    rampup: Annotated[tuple[int, int, int] | None, Option("Grow.", metavar="A B C")] = None
    lengths: Annotated[tuple[Positive, ...], Option("Cut.", name="--length")] = ()
    stages: Annotated[
        tuple[int, ...] | None, Option("Cut.", is_list=True, parse=lambda text: tuple(map(int, text.split())))
    ] = None
    moved: Annotated[
        tuple[tuple[str, str], ...], Option("Move.", parse=parse_pair("OLD=NEW", "a=b"), metavar="OLD=NEW")
    ] = ()
    share: Annotated[float | None, Option("Read a part.")] = None
    inner: Inner = Inner()
    internal: int = 7


def given(options: Given[Outer], planned: DryRun, run: CommandRun) -> None:
    """Make options later."""
    made.update(options=options, planned=planned, run=run)


def at_once(options: Outer, run: CommandRun) -> None:
    """Make options.

    Examples:
        tokshard at-once a -o b
    """
    made.update(options=options, run=run)


def call(function, *words):
    made.clear()
    command("at-once", function, {}).main(list(words), standalone_mode=False)
    return made


def test_words_become_fields():
    options = call(
        at_once,
        *("a", "b", "--out", "c", "--memory", "2MiB", "--mode", "move", "--no-check", "--no-eod"),
        *("--rampup", "1", "2", "3k", "--length", "4", "--length", "1k", "--moved", "x=y", "--moved", "z=w"),
        *("--share", "0.5", "--depth", "3"),
    )["options"]
    assert options == Outer(
        inputs=("a", "b"),
        output="c",
        memory=2 << 20,
        mode="move",
        check=False,
        eod=False,
        rampup=(1, 2, 3000),
        lengths=(4, 1000),
        moved=(("x", "y"), ("z", "w")),
        share=0.5,
        inner=Inner(depth=3),
    )


def test_what_is_not_given_has_the_default_of_the_class():
    assert call(at_once, "a", "-o", "b")["options"] == Outer(inputs="a", output="b")
    found = call(given, "a", "-o", "b", "--depth", "2", "--dry-run", "--json")
    assert found["options"].values == {"inputs": ("a",), "output": "b", "depth": 2}
    assert found["options"].make(check=False) == Outer(
        inputs="a", output="b", check=False, inner=Inner(depth=2)
    )
    assert found["planned"].dry_run
    assert found["run"].as_json


def test_what_is_passed_is_given_if_it_is_the_default_or_empty():
    words = ("--memory", "1MiB", "--check", "--stages", "")
    values = call(given, "a", "-o", "b", *words)["options"].values
    assert values == {"inputs": ("a",), "output": "b", "memory": 1 << 20, "check": True, "stages": ()}
    assert call(at_once, "a", "-o", "b", *words)["options"].stages == ()


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--mode", "link"], "--mode must be one of copy, move, got 'link'", "run `tokshard at-once --help`"),
        (["--depth", "0"], "--depth must be at least 1, got 0", "run `tokshard at-once --help`"),
        (["--length", "-1"], "--length must be at least 1, got -1", "run `tokshard at-once --help`"),
    ],
)
def test_wrong_values_are_refused_with_a_hint(words, message, hint, capfd):
    found = command("at-once", at_once, {})
    assert found.main(["a", "-o", "b", *words], standalone_mode=False) == 2
    error, advice = capfd.readouterr().err.splitlines()
    assert error == f"error: {message}"
    assert advice.startswith(f"hint: {hint}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "many"], "must be a size such as 64MB, 16MiB or 1000000, got 'many'"),
        (["--length", "x"], "must be a whole number such as 1000, 2M or 10B, got 'x'"),
        (["--moved", "x"], "must be OLD=NEW such as a=b, got 'x'"),
        (["--rampup", "1", "2", "x"], "must be a whole number such as 1000, 2M or 10B, got 'x'"),
    ],
)
def test_words_that_cannot_be_read_are_errors_of_the_parser(words, message):
    with pytest.raises(typer.BadParameter) as caught:
        call(at_once, "a", "-o", "b", *words)
    assert caught.value.message == message
