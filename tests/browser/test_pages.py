"""Pages in a real browser: no error, no request, no script; readable in light and dark, narrow and wide."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.chromium import BROWSER, OPTIONS, Chromium
from support.pages import PLAIN, SHOWN, build
from support.png import pixels
from tokshard.checks.commands.inspect import write_inspection_page

KINDS = ("dataset", "blend", "cache", "plan", "runs")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium here (apt-get install chromium)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages")
    paths = build(tmp_path_factory.mktemp("products"))
    for kind in KINDS:
        write_inspection_page(directory / f"{kind}.html", paths[kind])
    return directory


def browse(tmp_path, page, *options):
    """Open a page in a new browser of its own, and return what it prints; complaints are on stderr."""
    done = subprocess.run(
        [
            BROWSER,
            *OPTIONS,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--v=0",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What a page writes to the console, and what its policy refuses, is logged under this name.
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_sees_the_page_that_was_written(pages, tmp_path, kind):
    seen = browse(tmp_path, pages / f"{kind}.html", "--dump-dom")
    written = (pages / f"{kind}.html").read_text()
    # What the data would have added is an element that was not written.
    for name in ("script", "img", "iframe", "link", "object", "embed", "base", "form", "a"):
        assert not re.search(f"<{name}[ >]", seen)
    for name in ("tr", "td", "th", "dd", "rect", "path", "section"):
        assert len(re.findall(f"<{name}[ />]", seen)) == len(re.findall(f"<{name}[ />]", written))
    text = SHOWN if kind in {"dataset", "blend", "cache"} else PLAIN
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert escaped in seen


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_its_window_and_tables_scroll_inside_it(browser, pages, kind, width):
    browser.open((pages / f"{kind}.html").as_uri(), width=width)
    assert browser.complaints == []
    assert browser.value("document.documentElement.scrollWidth") == width
    # Nothing reaches out of the window but what a box scrolls.
    outside = """[...document.querySelectorAll("main *, header *")].filter(element =>
        !element.closest(".scroll > *") && element.getBoundingClientRect().right > innerWidth + 0.5).length"""
    assert browser.value(outside) == 0
    boxes = browser.value("""[...document.querySelectorAll(".scroll")].map(box => ({
        scrolls: box.scrollWidth > box.clientWidth,
        style: getComputedStyle(box).overflowX,
        cue: Boolean(box.parentElement.querySelector(".cue")?.offsetHeight)}))""")
    for box in boxes:
        assert box["style"] == "auto"
        assert box["scrolls"] <= (width == 390)
    if kind == "plan" and width == 390:
        assert boxes[-1] == {"scrolls": True, "style": "auto", "cue": True}  # the table of ranks
    if width == 1280:
        assert not any(box["cue"] for box in boxes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_an_axis_do_not_overlap(browser, pages, kind, width):
    browser.open((pages / f"{kind}.html").as_uri(), width=width)
    overlaps = """[...document.querySelectorAll("svg.axis")].flatMap(axis => {
        const boxes = [...axis.querySelectorAll("text")].map(text => text.getBoundingClientRect())
            .filter(box => box.width);
        return boxes.slice(1).filter((box, number) => box.left < boxes[number].right);
    }).length"""
    assert browser.value(overlaps) == 0


@pytest.mark.parametrize(
    ("dark", "width", "paper", "bar"),
    [
        (True, 500, (0x14, 0x18, 0x1F), (0x69, 0xA5, 0xF0)),
        (False, 1000, (0xFF, 0xFF, 0xFF), (0x2D, 0x69, 0xB4)),
    ],
)
def test_pages_are_light_or_dark_with_empty_margins(browser, pages, dark, width, paper, bar):
    browser.open((pages / "dataset.html").as_uri(), width=width, dark=dark)
    found = pixels(browser.screenshot(height=1300))
    assert found.shape == (1300, width, 3)
    assert (found[:, [0, 1, -2, -1]] == paper).all()
    assert (found == bar).all(axis=2).sum() > 1000


@pytest.mark.parametrize(
    "injected", ["<script>document.title = 'x'</script>", "<img src='file:///etc/hostname'>"]
)
def test_a_page_that_was_tampered_with_runs_and_loads_nothing(pages, tmp_path, injected):
    """The browser refuses it and says so: what the tests above would see, too."""
    content = (pages / "blend.html").read_text()
    (tmp_path / "bad.html").write_text(content.replace("</body>", f"{injected}</body>"))
    with pytest.raises(AssertionError, match="Content Security Policy"):
        browse(tmp_path, tmp_path / "bad.html", "--dump-dom")
