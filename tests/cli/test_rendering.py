"""What a screen is made of: aligned by what characters look like, and never more than they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tokshard.cli import rendering
from tokshard.core.presentation import Bar, BarChart, FactList, Section, Table


@pytest.fixture
def lines(capsys, monkeypatch):
    """Return what is printed on a terminal of some width, as lines."""

    def drawn(columns, *blocks):
        monkeypatch.setenv("COLUMNS", str(columns))
        rendering.show([Section("", blocks)])
        return capsys.readouterr().out.split("\n")[:-1]

    return drawn


HEADER = ("source", "share", "samples")
ROWS = [("中文数据", "50%", "1"), ("e\u0301a", "5%", "1,000"), ("[red]x[/red]", "\x1b[31m", "22")]


def test_columns_are_aligned_where_characters_are_two_cells_wide(lines):
    found = lines(80, Table(HEADER, ROWS))
    assert found == [
        "source           share  samples",
        "中文数据           50%        1",
        "e\u0301a                  5%    1,000",
        "[red]x[/red]  \\x1b[31m       22",
    ]
    ends = {cell_len(line) for line in found}
    assert ends == {31}


WIDE = Table(
    ("source", "share", "samples", "tokens", "error"),
    [("data/a-long-name/of-a-dataset", "50.00%", "1,000", "1,234,567", "0.50")],
    hide=("error", "tokens"),
)


def test_a_narrow_terminal_hides_columns_the_least_important_first(lines):
    assert lines(80, WIDE) == [
        "source                          share  samples     tokens  error",
        "data/a-long-name/of-a-dataset  50.00%    1,000  1,234,567   0.50",
    ]
    assert lines(60, WIDE) == [
        "source                          share  samples     tokens",
        "data/a-long-name/of-a-dataset  50.00%    1,000  1,234,567",
        "hidden: error (widen the terminal, or --json)",
    ]


def test_names_are_shortened_when_no_column_is_left_to_hide(lines):
    found = lines(40, WIDE)
    assert found == [
        "source                    share  samples",
        "data/a-…me/of-a-dataset  50.00%    1,000",
        "hidden: tokens, error (widen the terminal, or --json)",
    ]


def test_hidden_columns_of_tables_that_follow_each_other_are_named_once(lines):
    assert [line for line in lines(50, WIDE, WIDE) if line.startswith("hidden")] == [
        "hidden: tokens, error (widen the terminal, or --json)"
    ]


@given(st.integers(40, 120), st.text(st.characters(codec="utf-8"), max_size=100))
def test_a_table_is_never_wider_than_the_terminal(columns, name):
    table = Table(WIDE.header, [(name, *WIDE.rows[0][1:])], hide=WIDE.hide)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        texts = [rendering.visible(cell) for cell in (name, *table.header)]
        widths = rendering._fitted(table, [max(map(cell_len, texts)), 6, 7, 9, 5])
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= columns
    assert cell_len(rendering._shortened(texts[0], widths[0])) <= widths[0]


def test_a_pipe_has_no_width(lines, monkeypatch):
    assert len(lines("", WIDE)) == 2


def test_facts_continue_under_their_label(lines):
    found = lines(40, FactList([("a", "x" * 60), ("", "\u202ey"), ("longer than twelve", 3)]))
    assert found == [f"a{' ' * 18}{'x' * 60}", f"{' ' * 19}\\u202ey", "longer than twelve 3"]


@pytest.mark.parametrize("columns", [40, 50, 200])
def test_bars_fill_the_room_and_no_more(lines, columns):
    bars = [Bar("one", 1, "1"), Bar("twelve", 12, "a dozen"), Bar("none", 0, "0")]
    caption, *found = lines(columns, BarChart("Numbers", bars))
    assert caption == "Numbers"
    assert all(cell_len(line) <= columns for line in found)
    full = min(40, columns - 16)
    assert found[1] == f"twelve │{'█' * full} a dozen"
    assert found[2] == f"  none │{' ' * full} 0"
    assert lines(columns, BarChart("Numbers", [])) == ["Numbers"]


@given(st.floats(0, 1), st.integers(1, 80))
def test_a_bar_is_as_long_as_its_share_to_an_eighth(share, cells):
    drawn = rendering.bar_of(share, cells)
    eighths = 8 * drawn.count("█") + sum(" ▏▎▍▌▋▊▉".index(char) for char in drawn if char != "█")
    assert eighths == max(round(share * cells * 8), 1 if share else 0)
