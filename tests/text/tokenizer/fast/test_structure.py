import json
from importlib.metadata import version

import pytest
from hypothesis import HealthCheck, given, settings

from support.tokenizer_definitions import (
    BYTE_LEVEL,
    GPT2_BYTE_LEVEL,
    added,
    batches,
    characters,
    encode_by_fastokens,
    encode_plainly,
    lists_of,
    merges_as_strings,
    metaspace,
    probe,
    published,
    random_texts,
    sequence,
    split,
    template,
    without_model_type,
    written,
)
from tokshard.text.tokenizer.encoders import reference_encoder
from tokshard.text.tokenizer.fast import FastEncoderRefusedError, fast_encoder, structure
from tokshard.text.tokenizer.fast.structure import DISPUTED_CHARACTER, KNOWN_PATTERNS, refusal, simplified
from tokshard.text.tokenizer.huggingface import byte_alphabet
from tokshard.text.tokenizer.tiktoken_files import CL100K_PATTERN, GPT2_PATTERN, O200K_PATTERN

PROBE_SIZE = len(probe()["model"]["vocab"])
CHARACTERS_SIZE = len(characters()["model"]["vocab"])
LACKED = next(chr(byte) for byte in range(33, 127) if chr(byte) not in characters()["model"]["vocab"])
LACKED_BYTE = f"<0x{ord(LACKED):02X}>"
X = added(PROBE_SIZE, "<|x|>")
Y = added(PROBE_SIZE + 1, "|><|", normalized=True)
DEEPSEEK = sorted(KNOWN_PATTERNS - {r"\p{N}"}, key=len)[:2] + [p for p in KNOWN_PATTERNS if "A-Za-z" in p]
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def normalizers(*parts):
    return sequence(*parts, key="normalizers")


KNOWN = {
    "gpt2": probe(),
    "byte-level without pattern": probe(BYTE_LEVEL),
    "byte-level with a space in front": probe({**GPT2_BYTE_LEVEL, "add_prefix_space": True}),
    "model without a type": without_model_type(probe()),
    "merges as strings": merges_as_strings(probe()),
    "dropout 0, empty affixes": probe(
        model_dropout=0.0, model_continuing_subword_prefix="", model_end_of_word_suffix=""
    ),
    "ignore_merges": probe(model_ignore_merges=True),
    "digits one by one": probe(sequence({"type": "Digits", "individual_digits": True}, GPT2_BYTE_LEVEL)),
    "digits together": probe(sequence({"type": "Digits", "individual_digits": False}, GPT2_BYTE_LEVEL)),
    "removed inverted": probe(sequence(split(CL100K_PATTERN, "Removed", invert=True), BYTE_LEVEL)),
    "merged with next": probe(sequence(split(CL100K_PATTERN, "MergedWithNext"), BYTE_LEVEL)),
    "contiguous": probe(sequence(split(GPT2_PATTERN, "Contiguous"), BYTE_LEVEL)),
    "deepseek": probe(sequence(*map(split, DEEPSEEK), BYTE_LEVEL)),
    "digits and pattern": probe(
        sequence({"type": "Digits", "individual_digits": True}, split(O200K_PATTERN), BYTE_LEVEL)
    ),
    "nfc": probe(sequence(split(CL100K_PATTERN), BYTE_LEVEL), normalizer={"type": "NFC"}, added_tokens=[X]),
    "lowercase": probe(normalizer={"type": "Lowercase"}, added_tokens=[X]),
    "nfc, lowercase": probe(normalizer=normalizers({"type": "NFC"}, {"type": "Lowercase"})),
    "added tokens of both kinds": probe(added_tokens=[X, Y]),
    "added tokens of both kinds, nfc": probe(added_tokens=[X, Y], normalizer={"type": "NFC"}),
    "an added token of the vocabulary": probe(
        added_tokens=[added(PROBE_SIZE - 1, list(probe()["model"]["vocab"])[-1])]
    ),
    "many added tokens": probe(added_tokens=[X, *(added(PROBE_SIZE + 1 + n, f"<e{n}>") for n in range(150))]),
    "truncation and padding": probe(
        truncation={"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
    ),
    "an unsupported decoder": probe(
        decoder={"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True}
    ),
    "a template": probe(
        added_tokens=[X], post_processor=template("<|x|>", "A", ids={"<|x|>": [PROBE_SIZE, 3]})
    ),
    "a byte-level post-processor and a template": probe(
        post_processor=sequence(GPT2_BYTE_LEVEL, template("A", "a", ids={"a": [97]}), key="processors")
    ),
    "nested post-processors": probe(
        post_processor=sequence(
            GPT2_BYTE_LEVEL,
            sequence(GPT2_BYTE_LEVEL, template("b", "A", ids={"b": [98]}), key="processors"),
            key="processors",
        )
    ),
    "llama2": characters(normalizer=normalizers(PREPEND, REPLACE)),
    "llama2 with normalized tokens": characters(
        normalizer=normalizers(PREPEND, REPLACE),
        added_tokens=[{**token, "normalized": True} for token in characters()["added_tokens"]],
    ),
    "gemma": characters(normalizer=REPLACE, pre_tokenizer=split(" ", "MergedWithPrevious", "String")),
    "unknown token instead of bytes": characters(model_byte_fallback=False),
    "unknown tokens not fused": characters(model_byte_fallback=False, model_fuse_unk=False),
    "a split at a string": characters(pre_tokenizer=split("▁", "MergedWithNext", "String")),
    "metaspace": metaspace(),
}

BERT = {"type": "BertProcessing", "sep": ["a", 97], "cls": ["b", 98]}
LOST = [character for character in byte_alphabet() if character != "â"]

# Each with a text for which fastokens 0.3.5 and tokenizers 0.23.3 really differ, or None where fastokens
# refuses the file, or where no difference is known but none is ruled out either.
REFUSED = {
    "dropout": (probe(model_dropout=0.9), "aaaa!!!!1111"),
    "lstrip": (
        probe(
            added_tokens=[
                added(PROBE_SIZE, "<|x|>", lstrip=True),
                added(PROBE_SIZE + 1, "  ", normalized=True),
            ]
        ),
        "   <|x|> ",
    ),
    "rstrip": (
        probe(
            added_tokens=[
                added(PROBE_SIZE, "<|x|>", rstrip=True),
                added(PROBE_SIZE + 1, "  ", normalized=True),
            ]
        ),
        "<|x|>  ",
    ),
    "lstrip and rstrip": (probe(added_tokens=[added(PROBE_SIZE, "\n", lstrip=True, rstrip=True)]), "\n\n"),
    "single_word": (probe(added_tokens=[added(PROBE_SIZE, "hello", single_word=True)]), None),
    "an id with another content": (probe(added_tokens=[added(97, "<|x|>")]), "<|x|>"),
    "a content with another id": (probe(added_tokens=[added(PROBE_SIZE, "a")]), "a"),
    "an id beyond the next": (probe(added_tokens=[added(PROBE_SIZE + 9, "<|x|>")]), "<|x|>"),
    "ids out of order": (probe(added_tokens=[added(PROBE_SIZE + 1, "<y>"), added(PROBE_SIZE, "<x>")]), "<x>"),
    "one id twice": (probe(added_tokens=[added(PROBE_SIZE, "<x>"), added(PROBE_SIZE, "<y>")]), "<y>"),
    "one content twice": (probe(added_tokens=[X, X]), None),
    "an empty added token": (probe(added_tokens=[added(PROBE_SIZE, "")]), None),
    "tokens that normalize to one": (
        probe(
            normalizer={"type": "Lowercase"},
            added_tokens=[
                added(PROBE_SIZE, "<X>", normalized=True),
                added(PROBE_SIZE + 1, "<x>", normalized=True),
            ],
        ),
        None,
    ),
    "possessive pattern": (
        probe(sequence(split(CL100K_PATTERN.replace("{1,3}", "{1,3}+")), BYTE_LEVEL)),
        "3.14159",
    ),
    "word pattern": (probe(sequence(split(r"\w+|[^\w\s]+"), BYTE_LEVEL)), " \u20dd'RE"),
    "white space pattern": (probe(sequence(split(r"\s+"), BYTE_LEVEL)), "\u180e hello"),
    "string pattern of nothing": (probe(sequence(split("", kind="String"), BYTE_LEVEL)), None),
    "unknown behavior": (probe(sequence(split(GPT2_PATTERN, "Sideways"), BYTE_LEVEL)), None),
    "punctuation": (
        probe(sequence({"type": "Punctuation", "behavior": "Contiguous"}, GPT2_BYTE_LEVEL)),
        None,
    ),
    "whitespace": (probe({"type": "Whitespace"}), None),
    "bytes missing": (
        probe(model_vocab={token: n for n, token in enumerate(LOST)}, model_merges=[]),
        None,
    ),
    "no byte level, no fallback": (probe(None), "Å\u2019s"),
    "byte fallback lacks bytes": (
        characters(
            model_fuse_unk=False,
            model_vocab={
                token: n
                for n, token in enumerate(
                    t for t in characters()["model"]["vocab"] if t not in ("<0xE2>", "<0xF0>")
                )
            },
        ),
        "\U0002556b\u8a42\U0001154c",
    ),
    "a merge of the unknown token": (
        characters(
            model_byte_fallback=False,
            model_fuse_unk=False,
            model_merges=[["a", "<unk>"]],
            model_vocab=characters()["model"]["vocab"] | {"a<unk>": CHARACTERS_SIZE},
        ),
        "a\U0002556b",
    ),
    "a merge of a byte": (
        characters(
            model_merges=[[LACKED_BYTE, "a"]],
            model_vocab=characters()["model"]["vocab"] | {LACKED_BYTE + "a": CHARACTERS_SIZE},
        ),
        LACKED + "a",
    ),
    "subword prefix": (characters(model_continuing_subword_prefix="##", model_merges=[]), None),
    "word suffix": (characters(model_end_of_word_suffix="</w>"), None),
    "a gap in the ids": (characters(model_vocab=characters()["model"]["vocab"] | {"zzz": 99999}), None),
    "regular expression replaced": (
        probe(normalizer={"type": "Replace", "pattern": {"Regex": r"\w"}, "content": "w"}),
        "\u200d",
    ),
    "nothing replaced": (
        characters(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "-"}),
        None,
    ),
    "nothing prepended": (characters(normalizer={"type": "Prepend", "prepend": ""}), None),
    "the disputed character prepended": (
        characters(normalizer={"type": "Prepend", "prepend": DISPUTED_CHARACTER}),
        None,
    ),
    "nfd": (probe(normalizer={"type": "NFD"}), None),
    "nfkc": (probe(normalizer=normalizers({"type": "NFC"}, {"type": "NFKC"})), None),
    "strip": (probe(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}), None),
    "bert normalizer": (
        probe(
            normalizer={
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            }
        ),
        None,
    ),
    "the text twice": (probe(post_processor=template("A", "A", ids={})), "a"),
    "no text": (probe(post_processor=template("a", ids={"a": [97]})), "a"),
    "a token that the template does not define": (
        probe(post_processor=template("z", "A", ids={"a": [97]})),
        None,
    ),
    "a template's id outside the vocabulary": (
        probe(post_processor=template("z", "A", ids={"z": [99999]})),
        None,
    ),
    "unigram": (
        characters() | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}},
        None,
    ),
    "a new field of the model": (probe(model_cache="big"), None),
    "a new field": (probe(chat_template=""), None),
    "a new version": (probe(version="2.0"), None),
    "a new field of a part": (probe({**GPT2_BYTE_LEVEL, "strict": True}), None),
    "merges that are numbers": (probe(model_merges=[[1, 2]]), None),
    "merges with a comment": (probe(model_merges=["#version 0.2"]), None),
}


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_part_gives_equal_tokens(name, special_tokens, tmp_path):
    definition = KNOWN[name]
    assert refusal(definition, special_tokens=special_tokens) is None
    tokenizer = written(tmp_path, definition)
    fast = fast_encoder(tokenizer, special_tokens=special_tokens)
    reference = reference_encoder(tokenizer, special_tokens=special_tokens)
    batch = [
        "",
        *random_texts(len(name), 250),
        "a" * 3000,
        " " * 3000,
        "\u0301" * 1000,
        "e\u0301 中" * 1000,
    ]

    assert lists_of(fast.encode(batch)) == lists_of(reference.encode(batch))


@pytest.mark.parametrize("pattern", sorted(KNOWN_PATTERNS))
def test_a_known_pattern_is_equal_on_every_kind_of_character(pattern, tmp_path):
    # Every code point where scripts are small and classes change, some of the large uniform blocks.
    dense = (range(0x3400), range(0xA640, 0xAC00), range(0xF900, 0x10600))
    sparse = (range(0x3400, 0xD800, 499), range(0x10600, 0x20000, 7), range(0x20000, 0xE0200, 499))
    points = [chr(point) for points in (*dense, *sparse) for point in points]
    contexts = "\0a{0}a\0 {0} \0!{0}\n\0'{0}1\0A{0}'s\0"
    batch = [
        "".join(contexts.format(point) for point in points[at : at + 64]) for at in range(0, len(points), 64)
    ]
    batch += random_texts(0, 400)
    definition = probe(sequence(split(pattern), BYTE_LEVEL))
    tokenizer = written(tmp_path, definition)

    fast = fast_encoder(tokenizer, special_tokens=False).encode(batch)

    reference = reference_encoder(tokenizer, special_tokens=False).encode(batch)
    assert lists_of(fast) == lists_of(reference)


def test_texts_with_a_shared_beginning_are_equal(tmp_path):
    """fastokens keeps the last text's pieces to reuse where the next begins alike."""
    tokenizer = written(tmp_path, probe(sequence(split(GPT2_PATTERN), BYTE_LEVEL)))
    begin = "hello  world\n\n123 's 中文 " * 400
    batch = [begin[: 4000 + 37 * n] + text for n, text in enumerate(random_texts(5, 60))]

    fast = fast_encoder(tokenizer, special_tokens=False).encode(batch)

    assert lists_of(fast) == lists_of(reference_encoder(tokenizer, special_tokens=False).encode(batch))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name, tmp_path):
    definition, _ = REFUSED[name]
    reason = refusal(definition, special_tokens=False)
    assert reason is not None
    with pytest.raises(FastEncoderRefusedError, match="the fast encoder does not support") as caught:
        fast_encoder(written(tmp_path, definition), special_tokens=False)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", [name for name, (_, witness) in REFUSED.items() if witness is not None])
def test_the_gate_is_needed(name):
    if version("fastokens") != "0.3.5":
        pytest.skip("the witnesses were found with fastokens 0.3.5")
    definition, witness = REFUSED[name]
    batch = [witness] * 20  # dropout is random
    assert encode_by_fastokens({**definition, "decoder": None}, batch) != encode_plainly(definition, batch)


def test_the_disputed_character_needs_the_reference(tmp_path):
    definition = probe(sequence(split(GPT2_PATTERN), BYTE_LEVEL))
    text = "x!\u180e hello"
    assert encode_by_fastokens(definition, [text]) != encode_plainly(definition, [text])

    fast = fast_encoder(written(tmp_path, definition), special_tokens=False)

    batch = ["hello", text, "", text, "world"]
    assert lists_of(fast.encode(batch)) == encode_plainly(definition, batch)


def test_a_long_s_after_an_apostrophe_needs_the_reference(tmp_path):
    """It is another case of s, which only the reference knows in patterns that ignore case."""
    definition = probe(sequence(split(O200K_PATTERN), BYTE_LEVEL))
    text = "the'\u017fre"
    assert encode_by_fastokens(definition, [text]) != encode_plainly(definition, [text])

    fast = fast_encoder(written(tmp_path, definition), special_tokens=False)

    batch = ["'s", text, "'S", "\u017f"]
    assert lists_of(fast.encode(batch)) == encode_plainly(definition, batch)


@pytest.mark.parametrize("make", [characters, metaspace])
def test_text_that_spells_the_token_of_a_byte_needs_the_reference(make, tmp_path):
    definition = make()
    texts = ["\ufffd<0xE2>", "\u4e2d<0x08>H", "a<0x3A>\u9fa5"]
    simple = simplified(definition, special_tokens=False)
    assert encode_by_fastokens(simple, texts) != encode_plainly(definition, texts)

    fast = fast_encoder(written(tmp_path, definition), special_tokens=False)

    batch = [" a", *texts, "<s> b", "<0", "c"]
    assert lists_of(fast.encode(batch)) == encode_plainly(definition, batch)


def test_text_that_spells_a_token_of_unknown_characters_needs_the_reference(tmp_path):
    definition = metaspace()
    vocabulary = definition["model"]["vocab"]
    assert "\u2603" not in vocabulary
    for token in ("<\u2603>", "\u2581x\u2603", "\u2603\u2603"):
        vocabulary[token] = max(vocabulary.values()) + 1
    texts = ["a<\u2603>", "b x\u2603", "c\u2603\u2603d"]
    simple = simplified(definition, special_tokens=False)
    assert encode_by_fastokens(simple, texts) != encode_plainly(definition, texts)

    fast = fast_encoder(written(tmp_path, definition), special_tokens=False)

    batch = [*texts, "a\u2603", "<b>", "c"]
    assert lists_of(fast.encode(batch)) == encode_plainly(definition, batch)


@pytest.mark.parametrize(
    "processor", [BERT, {**BERT, "type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True}]
)
def test_a_post_processor_matters_only_where_it_applies(processor, tmp_path):
    definition = probe(post_processor=processor)
    assert refusal(definition, special_tokens=True) == f"the post-processor {processor['type']}"
    fast = fast_encoder(written(tmp_path, definition), special_tokens=False)
    batch = random_texts(7, 100)
    assert lists_of(fast.encode(batch)) == encode_plainly(definition, batch)


def test_two_templates_differ():
    processor = template("a", "A", ids={"a": [97]})
    definition = probe(post_processor=sequence(processor, processor, key="processors"))
    fast = encode_by_fastokens(definition, ["x"], special_tokens=True)
    assert fast != encode_plainly(definition, ["x"], special_tokens=True)


def test_two_templates_are_refused():
    processor = template("a", "A", ids={"a": [97]})
    definition = probe(post_processor=sequence(processor, processor, key="processors"))
    assert refusal(definition, special_tokens=True) is not None


JSON_SHAPES = [
    None,
    0,
    "x",
    [],
    {},
    [None],
    {"type": "Sequence"},
    {"type": 5},
    {"type": "Split", "pattern": 1},
]


@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer", "post_processor", "model", "version"])
@pytest.mark.parametrize("shape", JSON_SHAPES[1:], ids=str)
def test_parts_of_other_shapes_are_refused_and_never_crash(key, shape):
    assert refusal({**probe(), key: shape}, special_tokens=True) is not None


@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer", "post_processor"])
@pytest.mark.parametrize("shape", JSON_SHAPES, ids=str)
def test_members_of_other_shapes_are_refused_and_never_crash(key, shape):
    members = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
    definition = {**probe(), key: sequence(shape, key=members[key])}
    assert refusal(definition, special_tokens=True) is not None


@pytest.mark.parametrize("key", ["vocab", "merges", "dropout", "byte_fallback", "end_of_word_suffix"])
@pytest.mark.parametrize("shape", ["x", [3], {"a": "b"}], ids=str)
def test_models_of_other_shapes_are_refused_and_never_crash(key, shape):
    assert refusal(probe(**{f"model_{key}": shape}), special_tokens=True) is not None


@pytest.mark.parametrize(
    "tokens",
    [[5], [{}], ["a"], [added(PROBE_SIZE, 5)], [added("x", "<x>")], [added(PROBE_SIZE, "<x>", normalized=1)]],
)
def test_added_tokens_of_other_shapes_are_refused_and_never_crash(tokens):
    assert refusal(probe(added_tokens=tokens), special_tokens=True) is not None


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama2"])
def test_published_tokenizers_pass(name):
    definition = json.loads(published(name).read_bytes())
    assert refusal(definition, special_tokens=False) is None
    assert refusal(definition, special_tokens=True) is None


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=batches)
@pytest.mark.parametrize(
    "name", ["nfc", "added tokens of both kinds", "deepseek", "llama2 with normalized tokens"]
)
def test_hypothesis_finds_no_difference(name, batch, tmp_path_factory, encoders_of):
    fast, reference = encoders_of(name)
    assert lists_of(fast.encode(batch)) == lists_of(reference.encode(batch))


@pytest.fixture(scope="module")
def encoders_of(tmp_path_factory):
    made = {}

    def encoders(name):
        if name not in made:
            tokenizer = written(tmp_path_factory.mktemp("known"), KNOWN[name])
            made[name] = (
                fast_encoder(tokenizer, special_tokens=False),
                reference_encoder(tokenizer, special_tokens=False),
            )
        return made[name]

    return encoders


@pytest.mark.parametrize(
    ("merges", "expected"),
    [
        ([["a", "b"], ["ab", "c"]], ["a b", "ab c"]),
        (["a b", "ab c"], ["a b", "ab c"]),
        ([["a", " b"], ["c", "d"]], [["a", " b"], ["c", "d"]]),
        ([["#version", "x"]], ["#version x"]),
        ([], []),
    ],
)
def test_merges_are_written_as_strings_where_that_means_the_same(merges, expected):
    definition = {"model": {"type": "BPE", "vocab": {}, "merges": merges}}
    assert structure.simplified(definition, special_tokens=False)["model"]["merges"] == expected
    assert definition["model"]["merges"] is merges
