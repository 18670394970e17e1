"""The digest of a canonical definition: the same for files that are saved again, another for other ids."""

import copy
import json

import pytest
import tokenizers

from support.tokenizer_definitions import (
    BYTE_LEVEL,
    GPT2_BYTE_LEVEL,
    added,
    characters,
    definition_of,
    encode_plainly,
    merges_as_strings,
    metaspace,
    probe,
    sequence,
    split,
    template,
    without_model_type,
)
from tokshard.text.tokenizer.canonical import huggingface_digest
from tokshard.text.tokenizer.huggingface import template_ids

UNIGRAM = {
    "type": "Unigram",
    "unk_id": 0,
    "vocab": [["<unk>", 0.0], ["▁", -1.5], ["a", -2.25], ["b", -3.1]],
}
WORDPIECE = {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2}, "unk_token": "[UNK]"}
DEFINITIONS = {
    "byte-level": probe(),
    "byte-level and a split": probe(sequence(split(r"\p{N}{1,3}"), GPT2_BYTE_LEVEL)),
    "added tokens": probe(added_tokens=[added(9000, "<x>"), added(9001, "<y>", lstrip=True, special=False)]),
    "a template": characters(post_processor=template("<s>", "A", ids={"<s>": [1]})),
    "normalizers": characters(normalizer=sequence({"type": "NFC"}, {"type": "Lowercase"}, key="normalizers")),
    "metaspace": metaspace(),
    "metaspace without prefix": metaspace(prepend_scheme="never"),
    "unigram": definition_of(UNIGRAM, pre_tokenizer={"type": "WhitespaceSplit"}),
    "wordpiece": definition_of(
        WORDPIECE | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "BertProcessing", "sep": ["a", 1], "cls": ["[UNK]", 0]},
    ),
    "word level": definition_of({"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"}),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_file_that_is_saved_again_has_the_same_digest(name):
    definition = DEFINITIONS[name]
    again = json.loads(tokenizers.Tokenizer.from_str(json.dumps(definition)).to_str())
    assert huggingface_digest(again) == huggingface_digest(definition)


def test_older_forms_of_the_same_definition():
    digest = huggingface_digest(probe())
    assert huggingface_digest(merges_as_strings(probe())) == digest
    assert huggingface_digest(without_model_type(probe())) == digest
    truncated = probe(truncation={"max_length": 3}, padding={"length": 8}, decoder={"type": "ByteLevel"})
    assert huggingface_digest(truncated) == digest
    assert huggingface_digest(probe(post_processor={"type": "ByteLevel"})) == digest
    old = metaspace(prepend_scheme=None, add_prefix_space=True, str_rep="▁")
    assert huggingface_digest(old) == huggingface_digest(metaspace())
    assert huggingface_digest(probe(sequence(GPT2_BYTE_LEVEL))) == digest
    shuffled = probe()
    shuffled["model"]["vocab"] = dict(sorted(shuffled["model"]["vocab"].items()))
    assert huggingface_digest(shuffled) == digest


def changed(change):
    definition = copy.deepcopy(DEFINITIONS["added tokens"])
    change(definition)
    return huggingface_digest(definition)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["model"]["vocab"].update(extra=len(it["model"]["vocab"])),
        lambda it: it["model"]["merges"].pop(),
        lambda it: it["model"]["merges"].reverse(),
        lambda it: it["model"].update(ignore_merges=True),
        lambda it: it["model"].update(byte_fallback=True),
        lambda it: it["added_tokens"].pop(),
        lambda it: it["added_tokens"].reverse(),  # the ids are given in this order
        lambda it: it["added_tokens"][0].update(rstrip=True),
        lambda it: it["added_tokens"][0].update(normalized=True),
        lambda it: it.update(normalizer={"type": "NFC"}),
        lambda it: it["pre_tokenizer"].update(add_prefix_space=True),
        lambda it: it["pre_tokenizer"].update(use_regex=False),
        lambda it: it.update(post_processor=template("<x>", "A", ids={"<x>": [7]})),
    ],
)
def test_what_changes_ids_changes_the_digest(change):
    assert changed(change) != changed(lambda it: None)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (None, ((), ())),
        (BYTE_LEVEL, ((), ())),
        (template("<s>", "A", "</s>", ids={"<s>": [1], "</s>": [2]}), ((1,), (2,))),
        (
            sequence(
                template("A", "</s>", ids={"</s>": [2]}),
                template("<s>", "A", ids={"<s>": [1]}),
                key="processors",
            ),
            None,
        ),
        (
            sequence(template("<s>", "A", ids={"<s>": [1]}), BYTE_LEVEL, key="processors"),
            ((1,), ()),
        ),
        ({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, ((1,), (2,))),
        ({"type": "Other"}, None),
    ],
)
def test_ids_that_a_post_processor_adds(processor, expected):
    assert template_ids(processor) == expected
    if expected:
        definition = characters(post_processor=processor)
        ids = encode_plainly(definition, ["ab"], special_tokens=True)[0]
        prefix, suffix = map(list, expected)
        assert ids[: len(prefix)] == prefix
        assert ids[len(ids) - len(suffix) :] == suffix
        assert len(ids) > len(prefix) + len(suffix)
