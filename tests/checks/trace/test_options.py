"""Options of tracing, and items."""

from pathlib import Path

import pytest

from tokshard import TraceOptions
from tokshard.checks.trace.options import parse_item, read_items
from tokshard.errors import InputError, UsageError


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "ITEM or one of --step, --sample and --document is required"),
        ({"step": 0, "sample": 0}, "--step cannot be used with --sample"),
        ({"step": 0, "items": ("a:1",)}, "--step cannot be used with ITEM"),
        ({"sample": 0, "rank": 0}, "--rank requires --step"),
        ({"sample": 0, "consumed_samples": 0}, "--consumed-samples requires ITEM"),
        ({"items": ("a:1",), "tokenizer": "t"}, "--tokenizer cannot be used with ITEM"),
        ({"sample": 0, "split": "valdi.0"}, "--split must be train, valid, test, or one"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TraceOptions(path="p", **options)


def test_items_and_lists_of_items_are_parsed_in_order():
    Path("list").write_text("a:2\nb#0\n")
    options = TraceOptions(path="p", items=["x@9", "@list", "./@list:3"])
    assert [(item.path, item.kind, item.number) for item in options.parsed_items()] == [
        ("x", "offset", 9),
        ("a", "line", 2),
        ("b", "document", 0),
        ("./@list", "line", 3),
    ]


def test_one_split_is_traced_for_contents_and_all_for_reads():
    assert TraceOptions(path="p", sample=0).stream == "train"
    assert TraceOptions(path="p", items=("a:1",)).stream is None
    assert TraceOptions(path="p", items=("a:1",), split="valid.1").stream == "valid.1"


def test_items_are_read_from_a_list_with_the_line_of_what_is_wrong():
    Path("list").write_text("# removal requests\n\na b.jsonl:3\n#\n#x#4\nC:\\x@0\n")
    assert [(item.path, item.kind, item.number) for item in read_items("list")] == [
        ("a b.jsonl", "line", 3),
        ("#x", "document", 4),
        ("C:\\x", "offset", 0),
    ]
    Path("list").write_text("a:1\na:0\n")
    with pytest.raises(UsageError, match=r"list:2: 'a:0' is invalid: lines are numbered from 1"):
        read_items("list")
    Path("list").write_text("# nothing\n")
    with pytest.raises(InputError, match="is empty"):
        read_items("list")
    with pytest.raises(InputError, match="cannot read"):
        read_items("absent")
    for text in ("a.jsonl", "a:b", ":3", "a:-1", "a:9999999999999999999"):
        with pytest.raises(UsageError, match="is not a line, byte or document"):
            parse_item(text)
