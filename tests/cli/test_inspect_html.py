"""``tokshard inspect`` on every product: one clear screen, JSON, and a page; nothing from data unescaped."""

from __future__ import annotations

import os
import pty
import re
import sys

import pytest

from support.command_line import SAMPLE, json_of, tokshard
from support.pages import HOSTILE, PLAIN, SHOWN, Page, build

KINDS = ("dataset", "blend", "cache", "plan", "runs", "rank")
SCHEMAS = {
    "dataset": "tokshard.inspect-dataset/2",
    "blend": "tokshard.blend/2",
    "cache": "tokshard.inspect-cache/2",
    "plan": "tokshard.inspect-plan/2",
    "runs": "tokshard.inspect-plan/2",
    "rank": "tokshard.inspect-rank/2",
}


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    return build(tmp_path_factory.mktemp("products"))


def check_screen(text):
    """Every line is harmless, and ends where its text ends."""
    assert all(character.isprintable() or character == "\n" for character in text)
    assert all(line == line.rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_has_a_screen_json_and_a_page(products, tmp_path, kind):
    page = tmp_path / "page.html"
    done = tokshard("inspect", products[kind], "--html", page)
    assert (done.returncode, done.stderr) == (0, f"written: {page}\n")
    check_screen(done.stdout)
    # rich would have taken [red] for a colour, and left it out.
    assert (
        kind in {"plan", "rank"} or (SHOWN if kind in {"dataset", "blend", "cache"} else PLAIN) in done.stdout
    )
    assert json_of(tokshard("inspect", products[kind], "--json"))["schema"] == SCHEMAS[kind]
    assert Page(page.read_text()).names >= {"h1", "dl", "footer"}


def test_quiet_inspect_prints_nothing_and_writes_the_page(products, tmp_path):
    done = tokshard("inspect", products["blend"], "--html", tmp_path / "page.html", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "page.html").exists()
    done = tokshard("inspect", tmp_path / "nothing", "--quiet")
    assert (done.returncode, done.stdout, "error: " in done.stderr) == (3, "", True)


@pytest.mark.parametrize("columns", [40, 60, 100, 240])
def test_screens_are_as_wide_as_the_terminal(products, tmp_path, columns):
    (tmp_path / "data").symlink_to(os.path.dirname(products["dataset"]))
    (tmp_path / "cache").symlink_to(products["cache"])
    for thing in (f"data/{HOSTILE}", "cache"):
        done = tokshard("inspect", thing, cwd=tmp_path, env={"COLUMNS": str(columns)})
        check_screen(done.stdout)
        drawn = [line for line in done.stdout.split("\n") if re.search("[█▏▎▍▌▋▊▉│]", line)]
        assert all(len(line) <= columns for line in drawn)
    # The table of the cache: a narrow terminal hides columns, and names these.
    start, *rows = done.stdout.partition("Entries\n")[2].split("\n")[:6]
    header = start.split()
    assert ("hash" in header) == (columns == 240)
    assert {"dataset", "split", "samples", "state"} <= {*header}
    assert all(len(line) <= columns for line in (start, *rows))
    assert ("hidden: " in done.stdout) == (columns < 240)


def test_a_pipe_has_no_width(products):
    rows = tokshard("inspect", products["cache"], env={"COLUMNS": ""})
    header = next(line for line in rows.stdout.split("\n") if line.startswith("dataset "))
    assert header.split()[-1] == "hash"


def on_a_terminal(*arguments, **settings):
    """Run a command whose stdout is a terminal; return what it has drawn."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", **settings})
        code = "import sys; from tokshard.cli.main import main; sys.argv[0] = 'tokshard'; main()"
        os.execv(sys.executable, [sys.executable, "-c", code, *arguments])
    drawn = b""
    try:
        while block := os.read(terminal, 65536):
            drawn += block
    except OSError:
        pass  # the other side is closed
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return drawn.decode()


def test_a_terminal_gets_colours_and_nothing_else(products):
    drawn = on_a_terminal("inspect", products["dataset"])
    sequences = set(re.findall("\x1b.{0,8}?[a-zA-Z]", drawn))
    assert sequences
    assert all(re.fullmatch(r"\x1b\[[0-9;]*m", sequence) for sequence in sequences)
    without = re.sub(r"\x1b\[[0-9;]*m", "", drawn).replace("\r\n", "\n")
    check_screen(without)
    assert SHOWN in without


def test_colours_can_be_refused(products):
    assert "\x1b" not in on_a_terminal("inspect", products["dataset"], NO_COLOR="1")


def test_an_index_is_shown_by_its_hash(products):
    listed = json_of(tokshard("inspect", products["cache"], "--json"))["entries"]
    for entry, text in ((listed[0], "Sequences per sample"), (listed[-1], "Weight error")):
        done = tokshard("inspect", f"{products['cache']}/{entry['hash']}")
        assert done.returncode == 0
        check_screen(done.stdout)
        assert entry["hash"] in done.stdout
        assert text in done.stdout
    assert [entry["is_blend"] for entry in listed] == sorted(entry["is_blend"] for entry in listed)


def test_what_verify_finds_is_listed(products, tmp_path):
    done = tokshard("inspect", products["dataset"], "--html", tmp_path / "x.html", "--verify", "digest")
    assert done.returncode == 0
    assert "No problems found" in (tmp_path / "x.html").read_text()


def test_a_file_that_is_no_page_is_kept(products, tmp_path):
    (tmp_path / "x").write_text("precious")
    done = tokshard("inspect", products["dataset"], "--html", tmp_path / "x")
    assert (done.returncode, done.stdout) == (4, "")
    assert "exists and was not written by tokshard" in done.stderr
    assert (tmp_path / "x").read_text() == "precious"
    done = tokshard("inspect", products["dataset"], "--html", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_what_is_wrong_leaves_no_page(tmp_path):
    done = tokshard("inspect", "nothing", "--html", tmp_path / "x.html")
    assert (done.returncode, os.listdir(tmp_path)) == (3, [])


@pytest.mark.parametrize(
    "options", [["--verify", "deep"], ["--document", "0", "--html", "x.html"], ["--sample", "1"]]
)
def test_options_that_do_not_fit_are_refused(products, tmp_path, options):
    done = tokshard("inspect", products["dataset"], *options, cwd=tmp_path)
    assert done.returncode == 2
    assert os.listdir(tmp_path) == []


def test_the_page_of_a_tokenizer(tmp_path):
    assert tokshard("inspect", SAMPLE / "tokenizer.json", "--html", tmp_path / "x.html").returncode == 0
    assert "4,096 tokens" in (tmp_path / "x.html").read_text()
