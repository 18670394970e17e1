"""The adapter of the library `tokenizers`, against the library itself."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support.tokenizer_definitions import (
    BYTE_LEVEL,
    added,
    characters,
    encode_plainly,
    lists_of,
    plain_library,
    probe,
    random_texts,
    sequence,
    split,
    template,
    written,
)
from tokshard.text.tokenizer.encoders import decode, reference_encoder
from tokshard.text.tokenizer.fast import fast_encoder
from tokshard.text.tokenizer.fast.structure import DISPUTED_CHARACTER, disputed

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


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_ids_against_the_library(name, special_tokens, tmp_path):
    definition = DEFINITIONS[name]
    batch = ["", "a", *random_texts(21, 200), ""]
    encoder = reference_encoder(written(tmp_path, definition), special_tokens=special_tokens)
    expected = encode_plainly(definition, batch, special_tokens=special_tokens)
    assert lists_of(encoder.encode(batch)) == expected
    assert max(map(len, expected)) > 3  # truncation would show
    assert len({len(ids) for ids in expected}) > 1  # padding would show
    assert lists_of(encoder.encode([])) == []


def test_the_file_asks_for_what_is_switched_off(tmp_path):
    """Truncation and padding of the test above are real: without the adapter they apply."""
    import tokenizers

    path = written(tmp_path, DEFINITIONS["truncation on the left, padding"]).path
    library = tokenizers.Tokenizer.from_file(path)
    short, long = library.encode_batch(["a", "x y z"])
    assert len(short.ids) == len(long.ids) <= 3


@pytest.mark.parametrize("name", DEFINITIONS)
def test_texts_and_names_of_ids_against_the_library(name, tmp_path):
    definition = DEFINITIONS[name]
    library, tokenizer = plain_library(definition), written(tmp_path, definition)
    for ids in encode_plainly(definition, random_texts(22, 50), special_tokens=True):
        assert decode(tokenizer, ids) == library.decode(ids, skip_special_tokens=False)
    vocabulary = definition["model"]["vocab"] | {
        token["content"]: token["id"] for token in definition["added_tokens"]
    }
    encoder = reference_encoder(tokenizer, special_tokens=False)
    assert {encoder.piece(index): index for index in vocabulary.values()} == vocabulary
    assert not encoder.has(max(vocabulary.values()) + 1)


def test_encoding_starts_no_threads(tmp_path):
    path = written(tmp_path, probe()).path
    program = (
        "import os, sys, numpy; from tokshard.text.tokenizer.definition import load_tokenizer;"
        "from tokshard.text.tokenizer.encoders import reference_encoder;"
        "encoder = reference_encoder(load_tokenizer(sys.argv[1], need_eod=False), special_tokens=False);"
        "before = len(os.listdir('/proc/self/task'));"
        "encoder.encode(['hello world ' * 99] * 999);"
        "assert len(os.listdir('/proc/self/task')) == before"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    subprocess.run([sys.executable, "-c", program, path], env=environment, check=True)


def test_disputed_texts_depend_on_the_patterns():
    by_pattern = disputed(probe(sequence(split(r"\s+"), BYTE_LEVEL)))
    assert [by_pattern(text) for text in ("", "a", "é", f"é{DISPUTED_CHARACTER}")] == [False] * 3 + [True]
    assert disputed(probe()) is None


# Characters that Unicode added with version 17, and combining marks that it added since version 9, as ranges.
NEW_CHARACTERS = (
    "\u07fd\u088f\u0897-\u089f\u08ca-\u08d3\u09fe\u0c3c\u0c5c\u0cdc\u0d3b\u0d3c\u0eba\u1715\u180e"
    "\u1abf-\u1add\u1ae0-\u1aeb\u1df6-\u1dfa\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\ua82c\U00010940-\U00010959"
    "\U00010d24-\U00010d27\U00010d69-\U00010d6d\U00010eab\U00010eac\U00010ec5-\U00010ec7"
    "\U00010efa\U00010efb\U00010efd-\U00010eff\U00010f46-\U00010f50\U00010f82-\U00010f85\U00011070"
    "\U0001133b\U000113ce-\U000113d0\U0001145e\U00011839\U0001183a\U0001193d\U0001193e\U00011943"
    "\U000119e0\U00011a34\U00011a47\U00011a99\U00011b60-\U00011b67\U00011d42\U00011d44\U00011d45"
    "\U00011d97\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00011f41\U00011f42\U0001612f"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff0-\U00016ff6\U000187f8-\U000187ff"
    "\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e08f\U0001e130-\U0001e136\U0001e2ae"
    "\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef\U0001e5ee\U0001e5ef\U0001e6c0-\U0001e6de"
    "\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479"
)


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}], ids=["as is", "NFC"])
def test_both_encoders_agree_on_new_characters(normalizer, tmp_path):
    ends = NEW_CHARACTERS.replace("-", "")
    marks = "\u0334\u094d\u05b0\u0323\u0301\u0345\u3099"
    texts = [f"a{c}{mark}{c} {c}1" for c in ends for mark in marks[:: 1 + (c > "\uffff")]]
    tokenizer = written(tmp_path, probe(normalizer=normalizer))
    fast = fast_encoder(tokenizer, special_tokens=False).encode(texts)
    reference = reference_encoder(tokenizer, special_tokens=False).encode(texts)
    assert np.array_equal(fast.ids, reference.ids)
    assert np.array_equal(fast.offsets, reference.offsets)


def test_one_module_imports_the_library():
    """export_with_transformers.py runs in an environment without tokshard."""
    importing = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "tokenizers" for name in names):
                importing.add(str(path.relative_to(ROOT)))
    assert importing == {"text/tokenizer/encoders.py", "export_with_transformers.py"}
