"""Directories of tiny tokenizers, one for each setting that transformers follows. Standard library only."""

import copy
import string

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
DEFINITION, MODEL_CONFIG = "tokenizer.json", "config.json"
TEXTS = [
    "",
    " ",
    "the hall",
    " the  hall",
    "The HALL is in the hall",
    "a<s>b </s> c",
    "the</s>the",
    "one <|new|>  two<|new|>three",
    "one<|end|> two",
    "in\n\nthe\tall",
    "é ö 日本 12345",
    "xnewy new",
    "<|end|><|end|>",
]


def _alphabet():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def _bpe(tokens, pairs, **options):
    vocabulary = {token: place for place, token in enumerate(tokens)}
    for pair in pairs:
        vocabulary.setdefault("".join(pair), len(vocabulary))
    options = {"dropout": None, "fuse_unk": False, "byte_fallback": False, "unk_token": None, **options}
    return {
        "type": "BPE",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "ignore_merges": False,
        **options,
        "vocab": vocabulary,
        "merges": list(map(list, pairs)),
    }


def _pairs(space):
    return [(space, "t"), ("h", "e"), (space + "t", "he"), ("i", "n"), ("a", "l"), ("al", "l"), (space, "in")]


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


def _definition(model, names, **parts):
    vocabulary = model["vocab"]
    size = len(vocabulary)
    ids = {name: vocabulary.get(name, size + place) for place, name in enumerate(names)}
    tokens = [{"id": index, "special": True, **token(name)} for name, index in ids.items()]
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", **empty, **parts, "added_tokens": tokens, "model": model}


def _template(name, index):
    single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {name: {"id": name, "ids": [index], "tokens": [name]}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def byte_level():
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    definition = _definition(_bpe(_alphabet(), _pairs("Ġ")), ["<|end|>"], pre_tokenizer=pre)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    return {DEFINITION: definition, CONFIG: config}


def llama():
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *string.ascii_letters]
    model = _bpe(tokens, _pairs("▁"), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    post = _template("<s>", 1)
    definition = _definition(model, ["<unk>", "<s>", "</s>"], normalizer=normalizer, post_processor=post)
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "legacy": False,
    }
    return {DEFINITION: definition, CONFIG: config}


def bert():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [
        *names,
        *string.ascii_letters,
        *(f"##{letter}" for letter in string.ascii_letters),
        "the",
        "hall",
    ]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100, "vocab": {word: place for place, word in enumerate(words)}}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    normalizer |= {"strip_accents": None, "lowercase": True}
    definition = _definition(model, names, normalizer=normalizer, pre_tokenizer={"type": "BertPreTokenizer"})
    return {DEFINITION: definition, CONFIG: {"tokenizer_class": "BertTokenizer"}}


def decoder_of(tokens, **flags):
    """Return the added_tokens_decoder of added tokens, with flags changed."""
    return {
        str(one["id"]): {key: value for key, value in one.items() if key != "id"} | flags for one in tokens
    }


def _new(files, **flags):
    size = len(files[DEFINITION]["model"]["vocab"]) + len(files[DEFINITION]["added_tokens"])
    return {"id": size, "special": True, **token("<|new|>"), **flags}


def _with(base, name, **values):
    files = base()
    for key, value in values.items():
        if value is ...:
            files[name].pop(key, None)
        else:
            files.setdefault(name, {})[key] = copy.deepcopy(value)
    return files


def cases():
    """Return the files of each directory, by its name."""
    found = {
        "plain": byte_level(),
        "add_prefix_space": _with(byte_level, CONFIG, add_prefix_space=True),
        "add_bos_token of the generic class": _with(
            byte_level, CONFIG, add_bos_token=True, bos_token="<|end|>"
        ),
        "add_bos_token off": _with(llama, CONFIG, add_bos_token=False),
        "add_eos_token": _with(llama, CONFIG, add_eos_token=True),
        "split_special_tokens": _with(byte_level, CONFIG, split_special_tokens=True),
        "additional_special_tokens": _with(byte_level, CONFIG, additional_special_tokens=["<|new|>"]),
        "additional_special_tokens with flags": _with(
            byte_level,
            CONFIG,
            additional_special_tokens=[
                {"__type": "AddedToken", **token("<|new|>", lstrip=True, rstrip=True)}
            ],
        ),
        "extra_special_tokens": _with(byte_level, CONFIG, extra_special_tokens={"image_token": "<|new|>"}),
        "a token of its own": _with(byte_level, CONFIG, image_token="<|new|>"),
        "pad_token": _with(byte_level, CONFIG, pad_token="<|new|>"),
        "eos_token in the map": _with(byte_level, MAP, eos_token="<|new|>"),
        "eos_token in the map with flags": _with(byte_level, MAP, eos_token=token("<|end|>", lstrip=True)),
        "sep_token alone": _with(byte_level, CONFIG, eos_token=..., sep_token="<|end|>"),
        "added_tokens.json": _with(byte_level, ADDED, **{"<|new|>": 264}),
        "GPT2Tokenizer": _with(byte_level, CONFIG, tokenizer_class="GPT2Tokenizer"),
        "GPT2Tokenizer with a prefix": _with(
            byte_level, CONFIG, tokenizer_class="GPT2Tokenizer", add_prefix_space=True
        ),
        "Qwen2Tokenizer": _with(byte_level, CONFIG, tokenizer_class="Qwen2Tokenizer"),
        "GPTNeoXTokenizer": _with(byte_level, CONFIG, tokenizer_class="GPTNeoXTokenizer", add_eos_token=True),
        "LlamaTokenizer over bytes": _with(
            byte_level, CONFIG, tokenizer_class="LlamaTokenizer", bos_token="<|end|>"
        ),
        "LlamaTokenizer": llama(),
        "LlamaTokenizer, legacy": _with(llama, CONFIG, legacy=True),
        "LlamaTokenizer of a Mistral": _with(llama, MODEL_CONFIG, model_type="mistral"),
        "LlamaTokenizer of a Qwen2": _with(llama, MODEL_CONFIG, model_type="qwen2"),
        "GemmaTokenizer": _with(llama, CONFIG, tokenizer_class="GemmaTokenizer"),
        "TokenizersBackend": _with(byte_level, CONFIG, tokenizer_class="TokenizersBackend"),
        "BertTokenizer": bert(),
        "do_lower_case off": _with(bert, CONFIG, do_lower_case=False),
        "model_max_length": _with(byte_level, CONFIG, model_max_length=2, clean_up_tokenization_spaces=True),
        "add_prefix_space of LlamaTokenizer": _with(llama, CONFIG, add_prefix_space=False),
        "from_slow": _with(byte_level, CONFIG, tokenizer_class="GPT2Tokenizer", from_slow=True),
        "auto_map": _with(byte_level, CONFIG, auto_map={"AutoTokenizer": [None, "code.Own"]}),
        "CodeLlamaTokenizer": _with(llama, CONFIG, tokenizer_class="CodeLlamaTokenizer"),
    }
    for name, flags in {
        "a new special token": {},
        "a new token with lstrip and rstrip": {"lstrip": True, "rstrip": True},
        "a new normalized token": {"special": False, "normalized": True},
    }.items():
        files = byte_level()
        files[CONFIG]["added_tokens_decoder"] = decoder_of(
            [*files[DEFINITION]["added_tokens"], _new(files, **flags)]
        )
        found[f"added_tokens_decoder: {name}"] = files
    for name in ("lstrip", "rstrip", "normalized", "single_word"):
        files = llama()
        files[CONFIG]["added_tokens_decoder"] = decoder_of(files[DEFINITION]["added_tokens"], **{name: True})
        found[f"added_tokens_decoder: {name}"] = files
    files = _with(byte_level, MAP, eos_token="<|new|>")
    files[CONFIG]["added_tokens_decoder"] = decoder_of(files[DEFINITION]["added_tokens"])
    found["eos_token in a map that is not read"] = files
    files = byte_level()
    files[DEFINITION]["pre_tokenizer"]["add_prefix_space"] = True
    found["a prefix in the file alone"] = files
    return found
