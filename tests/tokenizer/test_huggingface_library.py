"""The adapter of the library `tokenizers`, against the library itself; the installed version runs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support.tokenizer_definitions import (
    BYTE_LEVEL,
    IS_VERSION_1,
    added,
    characters,
    encode_plainly,
    plain_library,
    probe,
    random_texts,
    sequence,
    split,
    template,
    written,
)
from tokshard.errors import TokenizerError
from tokshard.tokenizer import huggingface_library
from tokshard.tokenizer.disputed import _SINCE_VERSION_1, DISPUTED_CHARACTER, disputed
from tokshard.tokenizer.encoders import fast_encoder, reference_encoder

ROOT = Path(tokshard.__file__).parent
SIZE = len(probe()["model"]["vocab"])
BOS = {
    "added_tokens": [added(SIZE, "<s>")],
    "post_processor": template("<s>", "A", ids={"<s>": [SIZE]}),
}
PADDING = {
    "direction": "Left",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}
CUT = {"max_length": 3, "strategy": "LongestFirst", "stride": 0}
DEFINITIONS = {
    "byte-level": probe(decoder=BYTE_LEVEL),
    "BOS": probe(**BOS),
    "truncation": probe(truncation={"direction": "Right", **CUT}),
    "truncation on the left, padding": probe(
        **BOS, truncation={"direction": "Left", **CUT}, padding={"strategy": "BatchLongest", **PADDING}
    ),
    "fixed padding": probe(padding={"strategy": {"Fixed": 50}, **PADDING}),
    "characters": characters(),
}


def content_of(definition):
    return json.dumps(definition).encode()


def lists(encoded):
    ids, lengths = encoded
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(lengths) else []


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_ids_against_the_library(name, special_tokens):
    definition = DEFINITIONS[name]
    batch = ["", "a", *random_texts(21, 200), ""]
    loaded = huggingface_library.load(content_of(definition))
    expected = encode_plainly(definition, batch, special_tokens=special_tokens)
    assert lists(loaded.encode(batch, special_tokens=special_tokens)) == expected
    assert max(map(len, expected)) > 3  # truncation would show
    assert len({len(ids) for ids in expected}) > 1  # padding would show
    assert lists(loaded.encode([], special_tokens=special_tokens)) == []


def test_the_file_asks_for_what_is_switched_off(tmp_path):
    """Truncation and padding of the test above are real: without the adapter they apply."""
    import tokenizers

    path = written(tmp_path, DEFINITIONS["truncation on the left, padding"]).path
    library = tokenizers.Tokenizer.from_file(path)
    short, long = library.encode_batch(["a", "x y z"])
    assert len(short.ids) == len(long.ids) <= 3


@pytest.mark.parametrize("name", DEFINITIONS)
def test_texts_and_names_of_ids_against_the_library(name):
    definition = DEFINITIONS[name]
    library, loaded = plain_library(definition), huggingface_library.load(content_of(definition))
    for ids in encode_plainly(definition, random_texts(22, 50), special_tokens=True):
        assert loaded.decode(ids) == library.decode(ids, skip_special_tokens=False)
    vocabulary = definition["model"]["vocab"] | {
        token["content"]: token["id"] for token in definition["added_tokens"]
    }
    assert {loaded.token(index): index for index in vocabulary.values()} == vocabulary
    assert loaded.token(max(vocabulary.values()) + 1) is None


def test_without_memory_files_the_ids_are_the_same(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with huggingface_library._file_with(b"content") as path:
        assert Path(path).read_bytes() == b"content"
    assert not Path(path).exists()


def test_a_file_in_memory_holds_the_content_and_is_closed():
    content = os.urandom(3_000_000)
    before = os.listdir("/proc/self/fd")
    with huggingface_library._file_with(content) as path:
        assert Path(path).read_bytes() == content
    assert os.listdir("/proc/self/fd") == before


def test_encoding_starts_no_threads(tmp_path):
    path = written(tmp_path, probe()).path
    program = (
        "import os, sys, numpy; from tokshard.tokenizer import huggingface_library as library;"
        "loaded = library.load(open(sys.argv[1], 'rb').read());"
        "before = len(os.listdir('/proc/self/task'));"
        "loaded.encode(['hello world ' * 99] * 999, special_tokens=False);"
        "assert len(os.listdir('/proc/self/task')) == before"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    subprocess.run([sys.executable, "-c", program, path], env=environment, check=True)


@pytest.mark.skipif(not IS_VERSION_1, reason="earlier versions have a library of regular expressions")
def test_a_pattern_without_an_implementation_is_refused_when_it_is_loaded(tmp_path):
    tokenizer = written(tmp_path, probe(sequence(split(r"\p{N}"), BYTE_LEVEL)))
    with pytest.raises(TokenizerError, match=r"tokenizers cannot load .*pattern") as caught:
        reference_encoder(tokenizer, special_tokens=False)
    assert "below 1" in caught.value.hint


def test_the_version_decides_which_texts_are_disputed():
    assert huggingface_library.is_version_1() == IS_VERSION_1
    by_pattern = disputed(probe(sequence(split(r"\s+"), BYTE_LEVEL)))
    assert [by_pattern(text) for text in ("", "a", "é", f"é{DISPUTED_CHARACTER}")] == [False] * 3 + [True]
    assert by_pattern("a \u07fd") == IS_VERSION_1
    assert (disputed(probe()) is None) != IS_VERSION_1


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}], ids=["as is", "NFC"])
def test_characters_whose_properties_the_versions_know_otherwise(normalizer, tmp_path):
    """On 0.x both encoders agree on them; on 1.0 the fast encoder leaves them to the reference."""
    expression = disputed_characters()
    marks = "\u0334\u094d\u05b0\u0323\u0301\u0345\u3099"
    texts = [f"a{c}{mark}{c} {c}1" for c in expression for mark in marks[:: 1 + (c > "\uffff")]]
    tokenizer = written(tmp_path, probe(normalizer=normalizer))
    fast = fast_encoder(tokenizer, special_tokens=False).encode(texts)
    reference = reference_encoder(tokenizer, special_tokens=False).encode(texts)
    assert np.array_equal(fast.ids, reference.ids)
    assert np.array_equal(fast.offsets, reference.offsets)


def disputed_characters():
    """The first and last character of each range of the table."""
    return [character for character in _SINCE_VERSION_1 if character != "-"]


def test_one_module_imports_the_library():
    """encode_with_transformers.py runs in an environment without tokshard."""
    importing = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "tokenizers" for name in names):
                importing.add(str(path.relative_to(ROOT)))
    assert importing == {"tokenizer/huggingface_library.py", "encode_with_transformers.py"}
