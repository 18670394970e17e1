"""Near names are those that one typing mistake makes of each other."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tokshard.core.near_names import is_near, near_name

LETTERS = "abc1"


def mistakes(name: str) -> Iterator[tuple[str, str]]:
    """Yield what each typing mistake makes of a name, and the letters that it concerns."""
    for at in range(len(name) + 1):
        for letter in LETTERS:
            yield name[:at] + letter + name[at:], letter
            yield name[:at] + letter + name[at + 1 :], letter + name[at : at + 1]
        yield name[:at] + name[at + 1 :], name[at : at + 1]
        pair = name[at : at + 2]
        yield name[:at] + pair[::-1] + name[at + 2 :], pair


def is_one_mistake(one: str, other: str) -> bool:
    return any(made == other and not letters.isdecimal() for made, letters in mistakes(one) if made != one)


@given(st.text(LETTERS, max_size=4), st.text(LETTERS, max_size=4), st.integers(0, 100))
def test_is_near_equals_the_list_of_all_mistakes(name, other, number):
    made = [text for text, _ in mistakes(name)]
    assert is_near(name, other) == is_one_mistake(name, other)
    assert is_near(name, made[number % len(made)]) == is_one_mistake(name, made[number % len(made)])


def test_near_name_is_the_first_one_or_none():
    assert near_name("wbe", ["code", "web", "we"]) == "web"
    assert near_name("web", ["web", "code"]) is None
