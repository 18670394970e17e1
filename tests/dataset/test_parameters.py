"""Builds are compared by their fields, and the differences are rendered from these."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tokshard.dataset.manifest import Manifest
from tokshard.dataset.parameters import Build, ConvertParameters, MergeParameters
from tokshard.storage.digest import FileState

GOLDEN = Path(__file__).parents[1] / "golden/formats"
MANIFEST = Manifest.from_bytes((GOLDEN / "dataset-2.json").read_bytes(), "dataset-2.json")
TOKENIZE = Build(
    inputs=tuple(source.state for source in MANIFEST.inputs),
    tokenizer=MANIFEST.tokenizer,
    options=MANIFEST.options,
)
MERGE = Build(
    inputs=tuple(
        FileState(path=f"out/{name}.{suffix}", size_bytes=80, mtime_ns=1)
        for name in ("web", "books")
        for suffix in ("bin", "idx")
    ),
    tokenizer=None,
    options=MergeParameters(("out/web", "out/books"), multimodal=False, eod_id=None, append_eod=None),
)
CONVERT = Build(
    inputs=(FileState(path="shards/train_000001.bin", size_bytes=2048, mtime_ns=1),),
    tokenizer=None,
    options=ConvertParameters("nanogpt", "uint16", None, "move", bos_id=50256, eod_id=50256),
)


def differences(earlier, now):
    return [str(difference) for difference in earlier.differences(now)]


def test_equal_builds_do_not_differ():
    for build in (TOKENIZE, MERGE, CONVERT):
        assert build.differences(build) == ()
        assert build.fingerprint == replace(build).fingerprint
    assert len({TOKENIZE.fingerprint, MERGE.fingerprint, CONVERT.fingerprint}) == 3


def test_the_fingerprint_of_a_manifest_is_that_of_its_build():
    assert MANIFEST.fingerprint == TOKENIZE.fingerprint


OPTIONS = {
    "fields": (("title",), "--field was text and is now title"),
    "append_eod": (False, "--append-eod was on and is now off"),
    "eod_id": (7, "--eod was 0 and is now 7"),
    "special_tokens": (True, "--special-tokens was off and is now on"),
    "special_tokens_in_text": (
        "split",
        "--special-tokens-in-text was 'encode' and is now 'split'",
    ),
    "vocab_size": (300, "--vocab-size was not set and is now 300"),
    "dtype": ("int32", "--dtype was 'uint16' and is now 'int32'"),
    "max_document_bytes": (9, "--max-document-bytes was 64000000 and is now 9"),
    "unit_size": (300, "--unit-size was 16777216 and is now 300"),
    "provenance": (False, "--provenance was on and is now off"),
    "sample": (0.5, "--sample was 0.9 and is now 0.5"),
    "sample_seed": (7, "--sample-seed was 1234 and is now 7"),
    "limit": (9, "--limit was not set and is now 9"),
    "max_tokens": (9, "--max-tokens was not set and is now 9"),
    "holdout": (0.25, "--holdout was 0.9 and is now 0.25"),
    "holdout_seed": (7, "--holdout-seed was 1234 and is now 7"),
    "holdout_key": ("url", "--holdout-key was not set and is now 'url'"),
}


def test_every_option_is_compared():
    assert set(OPTIONS) == {field.name for field in fields(TOKENIZE.options)}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_named_as_on_the_command_line(name):
    value, text = OPTIONS[name]
    before = replace(TOKENIZE, options=replace(TOKENIZE.options, sample=0.9, holdout=0.9))
    now = replace(before, options=replace(before.options, **{name: value}))
    assert differences(before, now) == [text]
    assert now.fingerprint != before.fingerprint


def test_options_of_convert_are_named_as_on_the_command_line():
    now = replace(CONVERT, options=replace(CONVERT.options, format="datatrove", bos_id=7, eod_id=9))
    was = CONVERT.options
    assert differences(CONVERT, now) == [
        f"--bos-id was {was.bos_id} and is now 7",
        f"--eod-id was {was.eod_id} and is now 9",
        f"--from was {was.format!r} and is now 'datatrove'",
    ]


@pytest.mark.parametrize("name", ["size_bytes", "mtime_ns", "version"])
def test_a_changed_input_is_named_with_its_field(name):
    value = "x" if name == "version" else 5
    first, second = TOKENIZE.inputs
    now = replace(TOKENIZE, inputs=(first, replace(second, **{name: value})))
    (found,) = TOKENIZE.differences(now)
    assert (found.kind, found.name) == ("input", f"{second.path}: {name}")
    assert (found.was, found.now) == (getattr(second, name), value)
    was = "not set" if found.was is None else repr(found.was)
    assert str(found) == f"the input {second.path}: {name} was {was} and is now {value!r}"


def test_other_inputs_are_named_and_nothing_else_of_them():
    now = replace(MERGE, inputs=MERGE.inputs[2:], options=replace(MERGE.options, inputs=("out/books",)))
    (found,) = differences(MERGE, now)
    assert found.startswith("the inputs were out/web.bin, out/web.idx, out/books.bin and 1 more and are now ")
    assert found.endswith("now out/books.bin, out/books.idx")


def test_another_tokenizer_is_named_by_its_fields():
    other = replace(TOKENIZE.tokenizer, sha256="cd" * 32, eod_id=None)
    assert differences(TOKENIZE, replace(TOKENIZE, tokenizer=other)) == [
        "the tokenizer's eod_id was 0 and is now not set",
        f"the tokenizer's sha256 was {'ab' * 32!r} and is now {'cd' * 32!r}",
    ]
    unknown = differences(TOKENIZE, replace(TOKENIZE, tokenizer=None))
    assert f"the tokenizer's sha256 was {'ab' * 32!r} and is now not set" in unknown


def test_another_command_is_the_only_difference():
    assert differences(TOKENIZE, MERGE) == ["the command was 'tokenize' and is now 'merge'"]


def test_a_build_of_a_pipe_cannot_be_repeated():
    assert TOKENIZE.is_repeatable
    assert MERGE.is_repeatable
    pipe = replace(TOKENIZE.inputs[0], size_bytes=None, mtime_ns=None)
    assert not replace(TOKENIZE, inputs=(pipe,)).is_repeatable
