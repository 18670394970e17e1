"""Pages in a real browser: no error, no request, no script; readable in light and dark, narrow and wide."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from support.pages import PLAIN, SHOWN, build
from tokshard.inspection.job import write_inspection_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
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


def pixels(path: Path):
    """Return the pixels of a PNG file, straight from the definition of the format: (height, width, 3)."""
    content = path.read_bytes()
    data, place = b"", 8
    while place < len(content):
        size, kind = struct.unpack(">I4s", content[place : place + 8])
        body = content[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
            assert (depth, colours) in {(8, 2), (8, 6)}
            step = 3 if colours == 2 else 4
        elif kind == b"IDAT":
            data += body
        place += 12 + size
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * step)
    rows = np.zeros((height + 1, width, step), np.uint8)
    for number, line in enumerate(lines):
        rows[number + 1] = unfiltered(int(line[0]), line[1:].reshape(width, step), rows[number])
    return rows[1:, :, :3]


def unfiltered(kind, line, above):
    """Undo the filter of a line; sums are modulo 256."""
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind in {0, 2}:
        return line + above * np.uint8(kind // 2)
    found, left, corner = line.astype(int), np.zeros(line.shape[1], int), np.zeros(line.shape[1], int)
    for place, up in enumerate(above.astype(int)):
        guess = (left + up) // 2 if kind == 3 else paeth(left, up, corner)
        left = found[place] = (found[place] + guess) % 256
        corner = up
    return found


def paeth(left, up, corner):
    near = np.abs(np.array([up - corner, left - corner, left + up - 2 * corner]))
    return np.where(
        (near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner)
    )


@pytest.mark.parametrize(
    ("scheme", "name", "width", "height"), [(0, "dark", 500, 1300), (1, "light", 1000, 1300)]
)
def test_pages_are_light_or_dark_and_fit_the_window(pages, tmp_path, scheme, name, width, height):
    picture = tmp_path / "page.png"
    options = (f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}")
    browse(tmp_path, pages / "dataset.html", *options, f"--screenshot={picture}")
    found = pixels(picture)
    assert found.shape == (height, width, 3)
    paper = {"dark": (0x14, 0x18, 0x1F), "light": (0xFF, 0xFF, 0xFF)}[name]
    # The margins are empty: nothing is wider than the window.
    assert (found[:, [0, 1, -2, -1]] == paper).all()
    # The bars are there, in the colour of the scheme.
    bar = {"dark": (0x69, 0xA5, 0xF0), "light": (0x2D, 0x69, 0xB4)}[name]
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
