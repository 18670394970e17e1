"""What a screen is made of: aligned by what characters look like, and never more than they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tokshard.cli import rendering


@pytest.fixture
def lines(capsys, monkeypatch):
    """Return what is printed on a terminal of some width, as lines."""

    def drawn(columns, function, *arguments):
        monkeypatch.setenv("COLUMNS", str(columns))
        function(*arguments)
        return capsys.readouterr().out.split("\n")[:-1]

    return drawn


HEADER = ("source", "share", "samples")
ROWS = [("中文数据", "50%", "1"), ("e\u0301a", "5%", "1,000"), ("[red]x[/red]", "\x1b[31m", "22")]


def test_columns_are_aligned_where_characters_are_two_cells_wide(lines):
    found = lines(80, rendering.table, HEADER, ROWS)
    assert found == [
        "source           share  samples",
        "中文数据           50%        1",
        "e\u0301a                  5%    1,000",
        "[red]x[/red]  \\x1b[31m       22",
    ]
    ends = {cell_len(line) for line in found}
    assert ends == {31}


def test_a_table_that_does_not_fit_becomes_a_list(lines):
    assert lines(40, rendering.table, (*HEADER, "more"), [(*row, "x" * 30) for row in ROWS[:1]]) == [
        "中文数据",
        "  share    50%",
        "  samples  1",
        f"  more     {'x' * 30}",
    ]


def test_facts_continue_under_their_label(lines):
    found = lines(40, rendering.facts, [("a", "x" * 60), ("", "\u202ey"), ("longer than twelve", 3)])
    assert found == [f"a{' ' * 18}{'x' * 60}", f"{' ' * 19}\\u202ey", "longer than twelve 3"]


@pytest.mark.parametrize("columns", [40, 50, 200])
def test_bars_fill_the_room_and_no_more(lines, columns):
    found = lines(columns, rendering.bars, [("one", 1, "1"), ("twelve", 12, "a dozen"), ("none", 0, "0")])
    assert all(cell_len(line) <= columns for line in found)
    full = min(40, columns - 16)
    assert found[1] == f"twelve │{'█' * full} a dozen"
    assert found[2] == f"  none │{' ' * full} 0"
    assert lines(columns, rendering.bars, []) == []


@given(st.floats(0, 1), st.integers(1, 80))
def test_a_bar_is_as_long_as_its_share_to_an_eighth(share, cells):
    drawn = rendering.bar(share, cells)
    eighths = 8 * drawn.count("█") + sum(" ▏▎▍▌▋▊▉".index(char) for char in drawn if char != "█")
    assert eighths == max(round(share * cells * 8), 1 if share else 0)
