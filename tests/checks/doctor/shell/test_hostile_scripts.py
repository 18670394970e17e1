"""Scripts that are endless, huge or deep end in an error or an unknown value, in bounded time and memory."""

from __future__ import annotations

import contextlib

import pytest

from tokshard.checks.doctor.shell import state, syntax
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.errors import UsageError


def last_words(text: str) -> list[str]:
    """The words of the last command."""
    return [word.text for word in read_shell(text).commands[-1].words]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1500 + "run" + ")" * 1500,
        'run "' + "$(echo " * 200 + ")" * 200 + '"',
        "run $((" + "(" * 1500 + "1" + ")" * 1500 + "))",
    ],
)
def test_what_is_nested_deeply_is_read_or_refused(text):
    with contextlib.suppress(UsageError):
        read_shell(text)


@pytest.mark.parametrize("text", ["f() { f; }; f", "f() { eval f; }; f", "x='eval $x'; eval $x"])
def test_a_script_that_calls_itself_is_refused(text):
    with pytest.raises(UsageError, match="the launch script is nested too deeply"):
        read_shell(text)


def test_a_huge_script_is_refused(monkeypatch):
    monkeypatch.setattr(syntax, "_MAX_CHARACTERS", 10)
    with pytest.raises(UsageError, match="at most 10 characters, got 11"):
        read_shell("run 2345678")


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do X=1$X; done",
        "while :; do :; done",
        "for ((;;)); do X=2; done",
        "until false; do X=3; done",
    ],
)
def test_an_endless_loop_makes_its_variables_unknown(loop):
    assert last_words(f"X=0; Y=1; {loop}; run $X $Y")[-1] == "1"


def test_many_rounds_in_many_rounds_are_too_many(monkeypatch):
    monkeypatch.setattr(state, "_MAX_STEPS", 2000)
    loops = "for i in {1..900}; do " * 4
    with pytest.raises(UsageError, match="too many to follow"):
        read_shell(loops + "run; " + "done; " * 4)


def test_a_value_that_doubles_becomes_unknown():
    text = "X=aaaaaaaa; for i in {1..60}; do :; done; for ((i=0; i<60; i++)); do X=$X$X; done; run $X"
    run, value = last_words(text)
    assert (run, set(value.split("$X"))) == ("run", {""})


def test_numbers_that_bash_would_wrap_are_unknown():
    numbers = ["$((9223372036854775807 + 1))", "$((999999999999999999 * 10))", "$((1 << 63))"]
    assert last_words(f"run {' '.join(numbers)} $((-7 / 2))") == ["run", *numbers, "-3"]


def test_many_conditions_are_one_path():
    text = "".join(f'if [ "$A{n}" = 1 ]; then X=1$X; else X=2$X; fi\n' for n in range(200))
    (command,) = read_shell(text + "run $X\n").commands
    assert len(command.words) == 2
    assert command.words[1].is_open


@pytest.mark.parametrize("code", ["00", "ff", "7b7d", "5b5d", "5b5b5b", "22"])
def test_a_script_may_contain_the_names_of_unknown_values(code):
    assert last_words(f"run 'a' ${{__unknown_{code}}} \"${{__unknown_{code}}}\"")[0] == "run"
    assert last_words(f"eval 'run ${{__unknown_{code}}}'")[0] == "run"
