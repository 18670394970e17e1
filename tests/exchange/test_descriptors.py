"""Each format is described in its own module: what else names the formats agrees with that."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import tokshard
from tokshard.core.options import declared_options
from tokshard.dataset.parameters import SourceDtype, TokenFormat
from tokshard.exchange.format import all_formats
from tokshard.exchange.options import FormatName

SOURCE = Path(tokshard.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
FORMATS = all_formats()


def test_the_formats_that_convert_reads_are_those_with_a_reader():
    assert {*get_args(TokenFormat)} == {name for name, form in FORMATS.items() if form.READER is not None}
    assert all(name == form.READER.name for name, form in FORMATS.items() if form.READER is not None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_describes_its_files(name):
    form = FORMATS[name]
    assert form.SHARD_TOKENS > 0
    assert all(re.fullmatch(r"uint(8|16|32|64)|int(32|64)", dtype) for dtype in form.DTYPES)
    reader = form.READER
    if reader is not None:
        assert form.SUFFIXES[0] == reader.suffix
        assert {*form.DTYPES} <= {*get_args(SourceDtype)}


@pytest.mark.parametrize("name", FORMATS)
def test_the_pages_describe_the_format(name):
    form = FORMATS[name]
    page = (DOCS / "how-to/export.md").read_text()
    assert f"--to {name}" in page or f"`{name}`" in page
    reference = (DOCS / "reference/formats/exports.md").read_text()
    assert form.SUFFIXES[0] in reference


def test_no_other_code_depends_on_the_name_of_a_format():
    """Names are in help, messages and the types of records, but nothing is compared with them."""
    found = []
    for path in SOURCE.rglob("*.py"):
        is_own = path.parent.name == "exchange" and path.stem in FORMATS
        # Texts and tokenizers have formats and models of the same names; errors.py names packages to install.
        if is_own or "text" in path.parts or path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.Dict | ast.match_case):
                words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [f"{path.name}:{node.lineno}: {word}" for word in words & {*FORMATS}]
    assert found == []
    assert [*declared_options(tokshard.ExportOptions)["to"].choices] == [*get_args(FormatName)]
