"""The page: whatever the data hold, it is well-formed, complete in itself, and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pages import HOSTILE, PLAIN, SHOWN, TEXT, Page, build
from support.sample_sources import everything
from tokshard.checks.commands.inspect import inspect, write_inspection_page
from tokshard.checks.inspect import page as page_module
from tokshard.checks.inspect.charts import COLORS, Markup, bars, tag
from tokshard.checks.inspect.datasets import DatasetSummary
from tokshard.checks.inspect.facts import describe_dataset
from tokshard.checks.inspect.frequencies import TokenCount, TokenFrequencies
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.inspect.page import page
from tokshard.checks.verify.report import VerifiedProduct, VerifyReport
from tokshard.core.findings import Finding
from tokshard.core.formatting import visible
from tokshard.core.lengths import LengthSummary
from tokshard.core.presentation import (
    Axis,
    Bar,
    BarChart,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    Section,
    Span,
    Table,
)
from tokshard.errors import OutputExistsError, UsageError
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import read_plan
from tokshard.samples.blend.document import BlendDocument

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
TEXTS = {"h1", "h2", "p", "dl", "dt", "dd", "ul", "li", "figure", "figcaption"}
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
    found = Page(tag("p", value, title=value))
    assert "".join(found.texts) == visible(value)
    assert found.elements == [("p", {"title": visible(value)})]


def test_control_characters_and_marks_are_made_visible_and_letters_are_not():
    controls = [
        chr(code) for code in [*range(32), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F)]
    ]
    assert all(tag("p", char).startswith("<p>\\") for char in [*controls, "\u2066", "\ufeff", "\ud800"])
    assert tag("p", "süß العربية 中文 👍 e\u0301") == "<p>süß العربية 中文 👍 e\u0301</p>"


def test_names_of_elements_never_come_from_data():
    for name in ("p onclick=x", "<p>", "", "P"):
        with pytest.raises(ValueError, match="is not an element name"):
            tag(name)
    with pytest.raises(ValueError, match="is not an attribute name"):
        tag("p", **{"a b": "x"})


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30)


@given(st.lists(st.tuples(numbers, numbers), max_size=8))
def test_no_figure_draws_outside_its_picture(values):
    rows = [Bar("x", first, "y", mark=second) for first, second in values]
    spans = [Span(0.0, 1.0, "x", shade=first) for first, _ in values]
    charts = [
        BarChart("a", rows),
        CurveChart("b", values, across=Axis("", []), up=Axis("", []), steps=True),
        LaneChart("c", [Lane("r", spans)], Axis("", [])),
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
        "".join(
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


def verification_page(*findings):
    product = VerifiedProduct("dataset", "x", not findings, {}, findings)
    report = VerifyReport("x", "deep", None, not findings, 0, 0.0, (product,))
    return page("x", "y", [report.findings_section()])


def test_findings_are_listed_with_their_place():
    finding = Finding("bin-digest", "error", f"bad {HOSTILE}", HOSTILE, path=HOSTILE, offset=7)
    shown = "".join(Page(verification_page(finding)).texts)
    for part in ("1 finding at level deep", "bin-digest", f"bad {SHOWN}", f"{SHOWN}, byte 7"):
        assert part in shown
    assert "No problems found" in verification_page()
    many = "".join(Page(verification_page(*[finding] * 2000)).texts)
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
        with pytest.raises(OutputExistsError, match="exists and was not written by tokshard"):
            write_inspection_page(tmp_path / "x", blend)
        assert (tmp_path / "x").read_bytes() == content
    write_inspection_page(tmp_path / "y.html", blend)
    write_inspection_page(tmp_path / "y.html", again)
    assert "index cache" in (tmp_path / "y.html").read_text()
    for name in (str(tmp_path), f"{tmp_path}/", "a\0b"):
        with pytest.raises(UsageError):
            write_inspection_page(name, blend)


def test_a_page_of_a_part_is_refused(products, tmp_path):
    with pytest.raises(UsageError, match="whole product and cannot be used with --rank"):
        write_inspection_page(tmp_path / "x.html", InspectOptions(path=products["plan"], rank=0))
    assert not (tmp_path / "x.html").exists()


def test_only_markup_is_taken_for_markup():
    assert tag("b", Markup("<i>"), "<i>", None) == "<b><i>&lt;i&gt;</b>"


def colors_of(scheme):
    """Return the colors of the style sheet, by name."""
    sheet = page_module._STYLE.partition("@media screen and (prefers-color-scheme: dark)")
    part = sheet[0] if scheme == "light" else sheet[2].partition("}\n}")[0]
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6});", part))


def contrast(first, second):
    """Return the contrast ratio of WCAG 2."""

    def luminance(color):
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_charts_have_the_contrast_of_wcag_aa(scheme):
    colors = colors_of(scheme)
    for ground in ("paper", "panel"):
        for name in ("ink", "soft"):
            assert contrast(colors[name], colors[ground]) >= 4.5, name
        for name in ("spread", *(f"c{number}" for number in range(COLORS))):
            assert contrast(colors[name], colors[ground]) >= 3, name


# What people see who lack one kind of cones: Machado, Oliveira and Fernandes (2009), in linear RGB.
CONES = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no L": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "no M": ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no S": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_of_datasets_can_be_told_apart_by_everybody(scheme, cones):
    colors = colors_of(scheme)
    rgb = np.array([[int(colors[f"c{n}"][at : at + 2], 16) / 255 for at in (1, 3, 5)] for n in range(COLORS)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(CONES[cones]).T, 0, 1)
    lms = (
        seen
        @ np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]).T
    )
    oklab = (
        np.cbrt(lms)
        @ np.array(
            [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
        ).T
    )
    distance = np.linalg.norm(oklab[:, None] - oklab[None], axis=2) + np.eye(COLORS)
    assert distance.min() > 0.1


def labels_of(content, caption):
    """Return the labels of the axis of the chart with this caption."""
    chart = content.partition(html.escape(caption))[2]
    axis = chart.partition('<svg class="axis"')[2].partition("</svg>")[0]
    return re.findall(r"<text [^>]*>([^<]*)</text>", axis)


def test_shares_are_bars_on_one_scale_from_0_to_100_percent(products, tmp_path):
    found = page_of(products["blend"], tmp_path).content
    shares = found.partition("Share of samples drawn from each source")[2].partition("</table>")[0]
    assert labels_of(found, "Share of samples drawn from each source") == ["0%", "25%", "50%", "75%", "100%"]
    widths = [float(width) for width in re.findall(r'<rect width="([0-9.]+)"', shares)]
    told = [float(share) for share in re.findall(r'class="number">([0-9.]+)%<', shares)]
    assert widths == pytest.approx([10 * share for share in told], abs=0.06)
    certificate = BlendDocument.read(products["blend"]).certificates["train"]
    assert told == [round(100 * source.share, 2) for source in certificate.sources]


def test_logarithmic_axes_have_ticks_at_powers_of_ten(products, tmp_path):
    found = page_of(products["dataset"], tmp_path).content
    caption = "Occurrences of each token, from the most to the least frequent (logarithmic axes)"
    figure = found.partition(caption)[2].partition("</figure>")[0]
    assert labels_of(found, caption) == ["1", "10"]
    side = figure.partition('class="side"')[2].partition("</svg>")[0]
    assert re.findall(r"<text [^>]*>([^<]*)</text>", side) == ["1", "10", "100", "1,000"]
    assert "rank of the token by frequency" in figure


SHARES = "Share of each dataset in what the run and each data-parallel rank (dp) reads"


@pytest.mark.parametrize("kind", ["plan", "runs"])
def test_the_page_of_a_plan_shows_planned_samples_and_ranks(products, tmp_path, kind):
    found = page_of(products[kind], tmp_path)
    plan = read_plan(products[kind])
    stream = plan.streams["train"]
    datasets, _ = Locator(stream.source).locate(everything(stream).ravel())
    counts = np.bincount(datasets, minlength=2)
    rows = rows_of(found.content, SHARES)
    assert [int(row[2].replace(",", "")) for row in rows] == counts.tolist()
    assert [row[3] for row in rows] == [f"{100 * share:.2f}%" for share in counts / counts.sum()]
    summary = inspect(products[kind]).streams["train"]
    assert [dataset.planned for dataset in summary.datasets] == counts.tolist()
    caption = "Every rank: its place in each parallel dimension, and what it reads from disk"
    ranks = rows_of(found.content, caption)
    assert [row[:6] for row in ranks] == [
        [str(rank), "0", "0", str(rank), "0", str(stream.order.samples_per_rank)] for rank in range(4)
    ]


def test_the_shares_are_shaded_by_their_size(products, tmp_path):
    content = page_of(products["plan"], tmp_path).content
    table = content.partition(SHARES)[2].partition("</table>")[0]
    cells = re.findall(r'<td class="number h(\d+)">([\d.]+)%</td>', table)
    assert len(cells) == 2 * 5  # datasets, and the run with four ranks
    assert all(int(shade) == math.ceil(float(share) / 10) for shade, share in cells)
    assert ".h10 { background: " in content


def test_every_table_has_headers_and_every_picture_a_text(products, tmp_path):
    for kind in KINDS:
        found = page_of(products[kind], tmp_path)
        tables = found.content.split("<table")[1:]
        assert tables
        assert all('scope="row"' in table or 'scope="col"' in table for table in tables)
        pictures = re.findall(r"<svg ([^>]*)>(<title>[^<]+</title>)?", found.content)
        assert all(title or 'aria-hidden="true"' in attributes for attributes, title in pictures)
        assert len(found.of("h1")) == 1


def test_datasets_beyond_the_colors_share_one():
    spans = [Span(number / 12, (number + 1) / 12, "x", number) for number in range(12)]
    names = [f"name {number}" for number in range(12)]
    content = page("x", "y", [Section("s", [LaneChart("c", [Lane("r", spans)], Axis("", []), names)])])
    assert "<span>7: name 7</span>" in content
    assert "<span>8 and above: other datasets</span>" in content
    assert content.count('class="other"') == 4 + 1
