"""Small tokenizer definitions and hostile texts."""

import copy
import itertools
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.huggingface import byte_alphabet

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2_BYTE_LEVEL = {**BYTE_LEVEL, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}

# What splits, joins, normalizes or looks like an added token; each pattern's alternatives occur.
ATOMS = [
    *" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u180e\u2000\u2009\u2028\u2029\u202f\u205f\u3000",
    *"\u200b\u2060\ufeff",
    *"aZé0٣½Ⅻ²４𝟘〇!'\"<|>_/\\$…—🇫👩🏽▁Ġ",
    *("a", "ß", "İ", "ı", "ſ", "K", "ǅ", "ﬁ", "Σ", "ς", "я", "א", "م", "अ", "क्ष", "ไ", "각", "ᄀ", "ᅡ"),
    *("中", "国", "龥", "\u9fff", "豈", "𠀀", "あ", "が", "カ", "\u3099", "𝔸", "ᾳ", "ⅷ"),
    *("\u0301", "\u0323", "\u0345", "\u05b0", "\u064b", "\u093c", "\u094d", "\u20dd", "\ufe0f", "\U0001d165"),
    *("\0", "\x01", "\x7f", "\x9f", "\xad", "\u200d", "\u202e", "\ufffd", "\uffff", "\ue000", "\U0010ffff"),
    *("\u0378", "\u2fe0", "\U0001fffe", "\u07fd", "\u06e0", "\u1aeb"),
    *("'s", "'S", "'re", "'LL", "don't", "’s", "I'M"),
    *("hello", " world", "HTTPRequest", "camelCase", "1234567", "3.14", "e\u0301", "http://a.b/c?d=1"),
    *("\r\n", "\r\n\r\n", "  \n  ", "\n\n\n", "    ", "\t\t", "日本語テキスト", "한국어", "हिन्दी", "русский"),
    *("<s>", "</s>", " <s> ", "<|x|>", "<|x|", "|>", "<|endoftext|>", "<unk>", "<0x41>", "▁<s>", "▁▁"),
]
texts = st.lists(st.sampled_from(ATOMS) | st.text(max_size=4), max_size=14).map("".join)
batches = st.lists(texts, max_size=12)


def random_texts(seed, count):
    """Return ``count`` texts of the same kind, faster than hypothesis draws them."""
    generator = random.Random(seed)
    return ["".join(generator.choices(ATOMS, k=generator.randrange(24))) for _ in range(count)]


def token(content, **flags):
    """Return a token as configuration files write one with its flags."""
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        **flags,
    }


def added(index, content, **flags):
    return {"id": index, **token(content), "special": True, **flags}


def definition_of(model, **parts):
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", **empty, "added_tokens": [], **parts, "model": model}


@cache
def _probe_model():
    """A byte-level BPE that joins bytes of many kinds, so that every boundary shows in the ids."""
    alphabet = byte_alphabet()
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    pairs = [pair for key in b"aA1 !\n's/\r" for byte in range(256) for pair in ((key, byte), (byte, key))]
    random.Random(0).shuffle(pairs)
    merges = []
    for left, right in pairs:
        token = alphabet[left] + alphabet[right]
        if token not in vocabulary:
            vocabulary[token] = len(vocabulary)
            merges.append([alphabet[left], alphabet[right]])
    return {"type": "BPE", "vocab": vocabulary, "merges": merges}


def probe(pre_tokenizer=GPT2_BYTE_LEVEL, **parts):
    """Return a byte-level tokenizer; a part named ``model_KEY`` sets a key of the model."""
    return _with(definition_of(_copy_of(_probe_model()), pre_tokenizer=pre_tokenizer), parts)


@cache
def _trained_characters():
    # Trained by tokenizers 0.23 on random_texts(1, 3000) with spaces as U+2581: BPE of
    # 1,500 tokens, 200 characters, at most 8 in a token; without the merges of <unk> and <0x..>.
    path = Path(__file__).parents[1] / "golden" / "characters_tokenizer.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _copy_of(model):
    """Copy a model that may be changed, in a tenth of the time of deepcopy: hundreds are made."""
    return {**model, "vocab": dict(model["vocab"]), "merges": [list(pair) for pair in model["merges"]]}


def characters(**parts):
    """Return a tokenizer like SentencePiece's BPE: characters, byte fallback, no pre-tokenizer."""
    definition = _trained_characters()
    model = definition["model"]
    rest = copy.deepcopy({key: value for key, value in definition.items() if key != "model"})
    return _with(rest | {"model": _copy_of(model)}, parts)


def metaspace(**changes):
    part = {key: value for key, value in {**METASPACE, **changes}.items() if value is not None}
    return characters(pre_tokenizer=part)


def _with(definition, parts):
    for key, value in parts.items():
        if key.startswith("model_"):
            definition["model"][key.removeprefix("model_")] = value
        else:
            definition[key] = value
    return definition


def merges_as_strings(definition):
    """Write the merges as files of before 2024 do."""
    definition["model"]["merges"] = [" ".join(merge) for merge in definition["model"]["merges"]]
    return definition


def without_model_type(definition):
    """Leave the model's type out, as the oldest files do."""
    del definition["model"]["type"]
    return definition


def sequence(*parts, key="pretokenizers"):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior="Isolated", kind="Regex", *, invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def template(*names, ids):
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if name == "A"
        else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in names
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}} if "Sequence" in part else part for part in single]
    known = {name: {"id": name, "ids": ids[name], "tokens": [name]} for name in ids}
    return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": known}


def written(directory, definition):
    """Write a definition and return the tokenizer that tokshard loads from it."""
    path = Path(directory) / "tokenizer.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    return load_tokenizer(str(path), need_eod=False)


def plain_library(definition):
    """Load a definition with the library as its documentation shows it, without tokshard."""
    import tokenizers

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(definition, file)
        file.flush()
        library = tokenizers.Tokenizer.from_file(file.name)
    library.no_truncation()
    library.no_padding()
    return library


def encode_plainly(definition, batch, *, special_tokens=False):
    """The reference's slow twin: the library, one text at a time."""
    library = plain_library(definition)
    return [library.encode(text, add_special_tokens=special_tokens).ids for text in batch]


def lists_of(encoded):
    """Return a batch as one list of ids for each text, after checking its arrays."""
    assert encoded.ids.dtype == np.uint32
    assert encoded.offsets.dtype == np.int64
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)
    return [encoded.ids[begin:end].tolist() for begin, end in itertools.pairwise(encoded.offsets)]


def encode_by_fastokens(definition, batch, *, special_tokens=False):
    """Encode with fastokens as it is, without tokshard's checks and domain."""
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    import fastokens

    library = fastokens.Tokenizer.from_json_str(json.dumps(definition))
    ids, offsets = library.encode_batch_flat(batch, add_special_tokens=special_tokens)
    flat = np.frombuffer(ids, np.uint32)
    return [flat[begin:end].tolist() for begin, end in itertools.pairwise(np.frombuffer(offsets, np.uint64))]


def published(name):
    """Return the path of a published tokenizer, or skip the test where there is none."""
    folder = os.environ.get("TOKSHARD_TEST_DATA")
    if not folder:
        pytest.skip("TOKSHARD_TEST_DATA is not set")
    return Path(folder) / "tokenizers" / f"{name}.json"
