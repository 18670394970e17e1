"""Options of tracing: one query through one product, and items."""

from pathlib import Path

import pytest

from tokshard import TraceOptions
from tokshard.checks.trace.options import parse_item, read_items
from tokshard.errors import InputError, UsageError


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "query", "through"),
    [
        ({"plan": "p", "step": 0}, "step", ("plan", "p")),
        ({"blend": "b", "sample": 0}, "sample", ("blend", "b")),
        ({"dataset": "d", "document": 0}, "document", ("dataset", "d")),
        ({"dataset": "d", "items": ("a:1",)}, "source", ("dataset", "d")),
        ({"index": "i", "item_list": "list", "path_as": (("a", "b"),)}, "source", ("index", "i")),
    ],
)
def test_a_query_goes_through_one_product(options, query, through):
    found = TraceOptions(**options)
    assert (found.query, found.through) == (query, through)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan": "p"}, "is required"),
        ({"plan": "p", "step": 0, "sample": 0}, "--step cannot be used with --sample"),
        ({"plan": "p", "step": 0, "items": ("a:1",)}, "--step cannot be used with --source"),
        ({"step": 0}, "got none"),
        ({"blend": "b", "step": 0}, "got --blend"),
        ({"plan": "p", "blend": "b", "sample": 0}, "got --plan and --blend"),
        ({"plan": "p", "sample": 0, "rank": 0}, "--rank requires --step"),
        ({"plan": "p", "sample": 0, "consumed_samples": 0}, "--consumed-samples requires"),
        ({"plan": "p", "items": ("a:1",), "tokenizer": "t"}, "--tokenizer has no effect"),
        ({"plan": "p", "sample": 0, "split": "valdi.0"}, "--split must be train, valid, test, or one"),
        ({"plan": "p", "sample": 0, "path_as": (("a", "b"),)}, "--path-as requires --index"),
        ({"blend": "b", "sample": 0, "moved": (("a", "b"),)}, "--moved requires --plan"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TraceOptions(**options)


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
