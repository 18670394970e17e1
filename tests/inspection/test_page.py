"""The page: whatever the data hold, it is well-formed, complete in itself, and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pages import HOSTILE, PLAIN, SHOWN, TEXT, Page, build
from tokshard.core.findings import Finding
from tokshard.core.formatting import Table, visible
from tokshard.core.presentation import (
    Bar,
    BarChart,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    Section,
    Span,
)
from tokshard.errors import OutputExistsError, UsageError
from tokshard.inspection.charts import bars
from tokshard.inspection.datasets import DatasetSummary, LengthSummary
from tokshard.inspection.facts import describe_dataset
from tokshard.inspection.frequencies import TokenCount, TokenFrequencies
from tokshard.inspection.job import inspect, write_inspection_page
from tokshard.inspection.markup import Markup, tag, text
from tokshard.inspection.options import InspectOptions
from tokshard.inspection.page import page

# All that pages are made of: none of these can run or load anything.
HTML = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "main",
    "footer",
    "section",
    "div",
    "span",
}
TEXTS = {"h1", "h2", "p", "dl", "dt", "dd", "ul", "li", "code", "figure", "figcaption"}
TABLES = {"table", "caption", "thead", "tbody", "tr", "th", "td"}
SHAPES = {"svg", "g", "rect", "line", "path", "text"}
ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "scope"}
ACCESS = {"role", "aria-hidden", "aria-label", "tabindex"}
PLACES = {"viewbox", "preserveaspectratio", "x", "x1", "x2", "y", "y1", "y2", "width", "height", "d"}
STYLES = {"fill", "text-anchor"}
KINDS = ("dataset", "blend", "cache", "plan", "runs", "rank")


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    return build(tmp_path_factory.mktemp("products"))


def page_of(path, tmp_path, **options):
    write_inspection_page(tmp_path / "x.html", path, **options)
    return Page((tmp_path / "x.html").read_text())


def check_harmless(found):
    assert found.names <= HTML | TEXTS | TABLES | SHAPES
    assert found.attributes <= ATTRIBUTES | ACCESS | PLACES | STYLES
    assert found.comments == []
    assert all(character.isprintable() or character == "\n" for character in found.content)
    # Nothing is named that could be fetched: no address, no url() in the style sheet.
    assert not re.search(r"https?:|url\(|@import|//[a-z]", found.content)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_harmless_and_whole(products, tmp_path, kind):
    found = page_of(products[kind], tmp_path)
    check_harmless(found)
    assert found.of("title")[0] == {}
    shown = "".join(found.texts)
    assert products[kind].replace(HOSTILE, SHOWN) in shown
    assert (PLAIN if kind in {"plan", "runs", "rank"} else SHOWN) in "".join(found.texts)


def test_the_policy_forbids_everything_but_the_one_style_sheet(products, tmp_path):
    found = page_of(products["blend"], tmp_path)
    policy = next(attributes["content"] for attributes in found.of("meta") if "http-equiv" in attributes)
    style = re.search(r"<style>(.*?)</style>", found.content, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert found.content.index("http-equiv") < found.content.index("<style>")


@given(st.text(st.characters(codec=None)))
def test_any_text_comes_out_as_it_is_shown(value):
    found = Page(str(tag("p", value, title=value)))
    assert "".join(found.texts) == visible(value)
    assert found.elements == [("p", {"title": visible(value)})]


def test_control_characters_and_marks_are_made_visible_and_letters_are_not():
    controls = [
        chr(code) for code in [*range(32), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F)]
    ]
    assert all(str(text(char)).startswith("\\") for char in [*controls, "\u2066", "\ufeff", "\ud800"])
    assert str(text("süß العربية 中文 👍 e\u0301")) == "süß العربية 中文 👍 e\u0301"


def test_names_of_elements_never_come_from_data():
    for name in ("p onclick=x", "<p>", "", "P"):
        with pytest.raises(ValueError, match="is no name"):
            tag(name)
    with pytest.raises(ValueError, match="is no name"):
        tag("p", **{"a b": "x"})


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30)


@given(st.lists(st.tuples(numbers, numbers), max_size=8))
def test_no_figure_draws_outside_its_picture(values):
    rows = [Bar("x", first, "y", mark=second) for first, second in values]
    spans = [Span(0.0, 1.0, "x", shade=first) for first, _ in values]
    charts = [
        BarChart("a", rows),
        CurveChart("b", values, left=("", ""), below=("", "", ""), steps=True),
        LaneChart("c", [Lane("r", spans)], below=("", "", "")),
    ]
    whole = page("x", "y", [Section("s", charts)])
    found = Page(whole)
    places = [
        value
        for _, attributes in found.elements
        for name, value in attributes.items()
        if name in {"x", "x1", "x2", "width"} and value != "device-width"
    ]
    for place in places:
        number = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%?)", place)
        assert number
        assert 0 <= float(number[1]) <= (100 if number[2] else 1000)
    for path in found.of("path"):
        for x, y in re.findall(r"([-0-9.e]+),([-0-9.e]+)", path["d"]):
            assert 0 <= float(x) <= 1000
            assert 0 <= float(y) <= 240


def test_the_longest_bar_fills_the_room_and_the_smallest_can_be_seen():
    found = Page(
        str(
            bars(
                BarChart(
                    "x", [Bar("a", 10**9, ""), Bar("b", 5 * 10**8, ""), Bar("c", 1, ""), Bar("d", 0, "")]
                )
            )
        )
    )
    assert [attributes["width"] for attributes in found.of("rect")] == ["1000", "500", "2", "0"]


def test_lists_and_tables_hold_what_they_are_given():
    blocks = [FactList([("a", 1), ("", TEXT)]), Table(("h", "i"), [(TEXT, "2")])]
    found = Page(page("x", "y", [Section("t", blocks)]))
    kinds = [name for name, _ in found.elements if name in {"dt", "dd", "th", "td"}]
    assert kinds == ["dt", "dd", "dd", "th", "th", "th", "td"]
    first = found.texts.index("t")
    assert found.texts[first : first + 8] == ["t", "a", "1", visible(TEXT), "h", "i", visible(TEXT), "2"]
    assert [attributes.get("scope") for attributes in found.of("th")] == ["col", "col", "row"]
    assert [attributes["class"] for attributes in (*found.of("th")[2:], *found.of("td"))] == [
        "name",
        "number",
    ]


class Report:
    level = "deep"

    def __init__(self, findings):
        self.findings = findings


def test_findings_are_listed_with_their_place():
    finding = Finding("bin-digest", "error", f"bad {HOSTILE}", HOSTILE, path=HOSTILE, offset=7)
    shown = "".join(Page(page("x", "y", [], Report([finding]))).texts)
    for part in ("1 finding at level deep", "bin-digest", f"bad {SHOWN}", f"{SHOWN}, byte 7"):
        assert part in shown
    assert "No problems found" in page("x", "y", [], Report([]))
    many = "".join(Page(page("x", "y", [], Report([finding] * 2000))).texts)
    assert "2,000 findings at level deep, of which the first 1,000 are shown" in many


def test_what_verify_finds_is_on_the_page(products, tmp_path):
    found = page_of(products["dataset"], tmp_path, verify="digest")
    assert "No problems found at level digest." in found.texts


def rows_of(content, caption):
    """Return the cells of the table with this caption, row by row."""
    table = content.partition(f"<figcaption>{caption}</figcaption>")[2].partition("</table>")[0]
    rows = table.partition("<tbody>")[2].split("</tr>")[:-1]
    cell = r"<t[hd][^>]*>(.*?)</t[hd]>"
    return [[html.unescape(cell) for cell in re.findall(cell, row, re.DOTALL)] for row in rows]


def test_the_page_of_a_dataset_says_how_often_tokens_occur(products, tmp_path):
    found = page_of(products["dataset"], tmp_path)
    summary = inspect(products["dataset"])
    assert f"All {summary.tokens:,} tokens were counted." in "".join(found.texts)
    rows = {row[0]: row for row in rows_of(found.content, "Most frequent tokens")}
    assert rows["101"][1] == "e"  # the built-in tokenizer, whose ids are bytes
    assert rows["32"][1] == "␣"
    everything = rows_of(found.content, "Least frequent tokens that occur") + list(rows.values())
    texts = {row[1] for row in everything}
    assert texts >= {"<", "\\x1b", "\N{REPLACEMENT CHARACTER}"}
    counts = np.bincount(np.fromfile(f"{products['dataset']}.bin", summary.dtype))
    for number, _, times, share in everything:
        assert int(times.replace(",", "")) == counts[int(number)]
        assert share == f"{100 * counts[int(number)] / summary.tokens:.2f}%"


def test_a_sample_of_tokens_is_said_to_be_one():
    few = (TokenCount(7, 90, None),)
    found = TokenFrequencies(1000, 100, 2, 300, 4, few, (TokenCount(9, 10, HOSTILE),), ((1, 90), (2, 10)))
    content = page("x", "y", describe_dataset(dataset_summary(), found))
    shown = "".join(Page(content).texts)
    assert "100 of 1,000 tokens (10.00%) were counted, in evenly spread blocks." in shown
    assert "2 distinct tokens of the 300 in the vocabulary occur. 4 ids were too large to count." in shown
    assert rows_of(content, "Most frequent tokens") == [["7", "", "90", "90.00%"]]
    text = SHOWN.replace(" ", "␣")
    assert rows_of(content, "Least frequent tokens that occur") == [["9", text, "10", "10.00%"]]


def test_without_a_tokenizer_the_page_says_how_to_see_the_text():
    few = (TokenCount(7, 999_999, None), TokenCount(9, 1, None))
    found = TokenFrequencies(10**6, 10**6, 2, None, 0, few, (), ((1, 999_999), (2, 1)))
    content = page("x", "y", describe_dataset(dataset_summary(), found))
    assert "pass --tokenizer" in content
    assert rows_of(content, "Most frequent tokens") == [
        ["7", "999,999", "100.00%"],
        ["9", "1", "< 0.01%"],
    ]


def dataset_summary():
    lengths = LengthSummary(0, 0, 0, 0, 0.0, ())
    return DatasetSummary("x", "uint16", False, 0, 0, 0, 0, 0, 0, lengths, None, None, 0, None)


def test_the_same_product_gives_the_same_page(products, tmp_path):
    for kind in KINDS:
        first = page_of(products[kind], tmp_path).content
        assert page_of(products[kind], tmp_path).content == first


def test_nothing_but_an_older_page_is_replaced(products, tmp_path):
    blend, again = products["blend"], products["cache"]
    for content in (b"", b"precious", b"<!doctype html>\n<html>"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(OutputExistsError, match="no page that tokshard has written"):
            write_inspection_page(tmp_path / "x", blend)
        assert (tmp_path / "x").read_bytes() == content
    write_inspection_page(tmp_path / "y.html", blend)
    write_inspection_page(tmp_path / "y.html", again)
    assert "index cache" in (tmp_path / "y.html").read_text()
    for name in (str(tmp_path), f"{tmp_path}/", "a\0b"):
        with pytest.raises(UsageError):
            write_inspection_page(name, blend)


def test_a_page_of_a_part_is_refused(products, tmp_path):
    with pytest.raises(UsageError, match="whole product, but --rank shows a part"):
        write_inspection_page(tmp_path / "x.html", InspectOptions(products["plan"], rank=0))
    assert not (tmp_path / "x.html").exists()


def test_only_markup_is_taken_for_markup():
    assert str(tag("b", Markup("<i>"), "<i>", None)) == "<b><i>&lt;i&gt;</b>"
