import copy
import itertools
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.tokenizer_definitions import (
    METASPACE,
    added,
    batches,
    characters,
    encode_by_fastokens,
    encode_plainly,
    lists_of,
    metaspace,
    probe,
    published,
    random_texts,
    template,
    written,
)
from tokshard.text.tokenizer.encoders import EncodedBatch, reference_encoder
from tokshard.text.tokenizer.fast import FastEncoderRefusedError, fast_encoder
from tokshard.text.tokenizer.fast.encoder import counts_of
from tokshard.text.tokenizer.fast.metaspace import is_metaspace, prepends, rewritten
from tokshard.text.tokenizer.fast.structure import disputed, refusal

BOS = template("<s>", "A", ids={"<s>": [1]})
OVERLAP = "camelCase <|endoftext|>HTTPRequest <|endoftext|> HTTPRequest"
FORMS = {
    "always": {},
    "first": {"prepend_scheme": "first"},
    "never": {"prepend_scheme": "never"},
    "always, splitting": {"split": True},
    "first, splitting": {"prepend_scheme": "first", "split": True},
    "never, splitting": {"prepend_scheme": "never", "split": True},
    "old": {"prepend_scheme": None, "split": None, "add_prefix_space": True, "str_rep": "▁"},
    "never, said twice": {"prepend_scheme": "never", "add_prefix_space": False},
    "never, with a space that is not put": {"prepend_scheme": "never", "add_prefix_space": True},
}
UNKNOWN = {
    "another character": {"replacement": "_"},
    "another scheme": {"prepend_scheme": "last"},
    "a contradiction": {"add_prefix_space": False},
    "another str_rep": {"str_rep": "_"},
    "a new field": {"strict": True},
    "a split that is no truth value": {"split": "yes"},
    "a scheme that is no word": {"prepend_scheme": ["always"]},
}


def normalized(definition):
    """Match the added tokens in the normalized text, or, for the last one, in the raw text."""
    tokens = definition["added_tokens"]
    return {
        **definition,
        "added_tokens": [{**token, "normalized": token is not tokens[-1]} for token in tokens],
    }


def overlapping(definition):
    """Add tokens of both kinds that overlap: tokenizers looks for one kind after the other."""
    size = len(definition["model"]["vocab"])
    contents = ("<|endoftext|>", "|>HTTPRequest", "camelCase")  # longer than any token of the model
    tokens = [added(size + n, content, normalized=n == 0) for n, content in enumerate(contents)]
    return {**definition, "added_tokens": definition["added_tokens"] + tokens}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture(scope="module", params=["plain", "normalized", "overlapping", "bos"])
def encoders(request, form, tmp_path_factory):
    definition = metaspace(**form)
    if request.param == "normalized":
        definition = normalized(definition)
    if request.param == "overlapping":
        definition = overlapping(definition)
    if request.param == "bos":
        definition["post_processor"] = BOS
    tokenizer = written(tmp_path_factory.mktemp("metaspace"), definition)
    special_tokens = request.param == "bos"
    return (
        fast_encoder(tokenizer, special_tokens=special_tokens),
        reference_encoder(tokenizer, special_tokens=special_tokens),
    )


@settings(deadline=None, max_examples=10)
@example(
    batch=["", " ", "▁", " a", "▁a", "a<s>b", "a<s> b", "<s>", "<s><s>a", "<|x|><|x|>", "  <s>", OVERLAP]
)
@given(batch=batches)
def test_hypothesis_finds_no_difference(encoders, batch):
    fast, reference = encoders
    assert lists_of(fast.encode(batch)) == lists_of(reference.encode(batch))


def test_random_texts_are_equal(encoders):
    fast, reference = encoders
    batch = [*random_texts(11, 400), OVERLAP]
    assert lists_of(fast.encode(batch)) == lists_of(reference.encode(batch))


def test_the_domain_is_needed(form):
    """The rewritten form alone differs, but only where the domain says so."""
    definition = overlapping(metaspace(**form))
    batch = [*random_texts(13, 1000), OVERLAP]
    fast = encode_by_fastokens(rewritten(definition) | {"decoder": None}, batch)
    slow = encode_plainly(definition, batch)

    contents = [token["content"] for token in definition["added_tokens"]]
    assert fast != slow
    for text, ours, theirs in zip(batch, fast, slow, strict=True):
        outside = any(content in text for content in contents)
        outside |= prepends(definition) and text.startswith((" ", "▁"))
        assert outside or ours == theirs, text


@pytest.mark.parametrize("form", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_forms_are_refused(form, tmp_path):
    definition = metaspace(**form)
    assert is_metaspace(definition)
    assert rewritten(definition) is None
    assert refusal(definition, special_tokens=False) == "this form of the pre-tokenizer Metaspace"
    with pytest.raises(FastEncoderRefusedError):
        fast_encoder(written(tmp_path, definition), special_tokens=False)


@pytest.mark.parametrize(
    "normalizer", [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "x"}]
)
def test_after_a_normalizer_it_is_refused(normalizer):
    assert refusal(metaspace() | {"normalizer": normalizer}, special_tokens=False) is not None


def test_an_empty_normalizer_is_none():
    empty = {"type": "Sequence", "normalizers": []}
    assert refusal(metaspace() | {"normalizer": empty}, special_tokens=False) is None


def test_among_other_pre_tokenizers_it_is_refused():
    definition = characters(pre_tokenizer={"type": "Sequence", "pretokenizers": [METASPACE]})
    assert refusal(definition, special_tokens=False) == "the pre-tokenizer Metaspace"


def test_a_file_without_split_splits():
    definition = metaspace(split=None)
    assert rewritten(definition)["pre_tokenizer"]["behavior"] == "MergedWithNext"
    assert rewritten(metaspace())["pre_tokenizer"] is None
    batch = random_texts(17, 300)
    assert encode_plainly(definition, batch) == encode_plainly(metaspace(split=True), batch)


def test_rewriting_changes_nothing_given():
    definition = metaspace()
    before = copy.deepcopy(definition)
    rewritten(definition)
    assert definition == before
    assert not is_metaspace(probe())


def test_texts_that_begin_with_a_mark_are_disputed_if_marks_are_prepended(form):
    definition = metaspace(**form)
    is_disputed = disputed(definition)
    for text in ("", "a", " a", "▁a", "a ", "a▁"):
        expected = prepends(definition) and text[:1] in (" ", "▁")
        assert (is_disputed is not None and is_disputed(text)) == expected, text


@given(texts=st.integers(0, 12), seed=st.integers(0, 1000))
def test_counts_of_tokens_against_a_loop(texts, seed):
    generator = np.random.RandomState(seed)
    lengths = generator.randint(0, 4, texts)
    ids = generator.randint(0, 6, lengths.sum()).astype(np.uint32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    table = np.array([0, 1, 0, 0, 1, 0], np.bool_)

    own = [ids[begin:end] for begin, end in itertools.pairwise(offsets)]
    expected = [sum(token in (1, 4) for token in tokens) for tokens in own]

    assert counts_of(EncodedBatch(ids, offsets), table).tolist() == expected


@pytest.mark.parametrize("form", [FORMS["first"], FORMS["always, splitting"], FORMS["never"]], ids=str)
def test_llama2_with_a_metaspace(form, tmp_path):
    definition = json.loads(published("llama2").read_bytes())
    part = {key: value for key, value in {**METASPACE, **form}.items() if value is not None}
    definition |= {"normalizer": None, "pre_tokenizer": part}
    tokenizer = written(tmp_path, definition)
    batch = [*random_texts(19, 400), "|||EMAIL_ADDRESS||| x </s>"]
    for special_tokens in (False, True):
        fast = fast_encoder(tokenizer, special_tokens=special_tokens).encode(batch)
        reference = reference_encoder(tokenizer, special_tokens=special_tokens).encode(batch)
        assert lists_of(fast) == lists_of(reference)
