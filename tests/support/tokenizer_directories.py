"""Tokenizer directories as families of models publish them, with small vocabularies, and changes of settings.

A directory is a dictionary from file names to contents: JSON values, or text or bytes for other files.
"""

import copy
import json
import random
from functools import cache
from pathlib import Path

from support.tokenizer_definitions import (
    BYTE_LEVEL,
    GPT2_BYTE_LEVEL,
    METASPACE,
    added,
    characters,
    definition_of,
    probe,
    random_texts,
    sequence,
    split,
    template,
    token,
)
from support.tokenizer_files import LLAMA3_PATTERN, QWEN_PATTERN

DEFINITION, CONFIG, MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ADDED, MODEL_CONFIG = "added_tokens.json", "config.json"
VOCABULARIES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")

O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN3_5_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM_PATTERN = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DIGITS = {"type": "Digits", "individual_digits": True}
MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPENDED_MARKS = sequence({"type": "Prepend", "prepend": "▁"}, MARKS, key="normalizers")
FIRST_METASPACE = {**METASPACE, "prepend_scheme": "first"}
NFC = {"type": "NFC"}
END = "<|endoftext|>"
END_EVERYWHERE = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
SENTENCEPIECE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


# Definitions


def with_tokens(definition, names, *, appended=False, flags=()):
    """Add special tokens to the vocabulary, or after it."""
    flags = dict(flags)
    vocabulary = definition["model"]["vocab"]
    tokens = definition["added_tokens"]
    for known in tokens:
        known.update(flags.get(known["content"], {}))
    for name in names:
        index = max([len(vocabulary), *(known["id"] + 1 for known in tokens if appended)])
        if not appended and isinstance(vocabulary, list):
            vocabulary.append([name, 0.0])
        elif not appended:
            vocabulary[name] = index
        tokens.append(added(index, name, **flags.get(name, {})))
    return definition


def ids_of(definition):
    return {known["content"]: known["id"] for known in definition["added_tokens"]}


def adding(definition, *names):
    """Set the post-processor that adds special tokens to a text, which is named ``A``."""
    ids = ids_of(definition)
    definition["post_processor"] = template(*names, ids={name: [ids[name]] for name in names if name != "A"})
    return definition


def bytes_with(names, *pre_tokenizers, bos=None, appended=False, flags=(), **parts):
    """Return a byte-level BPE with special tokens."""
    pre = sequence(*pre_tokenizers, BYTE_LEVEL) if pre_tokenizers else GPT2_BYTE_LEVEL
    parts = {"post_processor": GPT2_BYTE_LEVEL, "decoder": GPT2_BYTE_LEVEL, **parts}
    definition = with_tokens(probe(pre, **parts), names, appended=appended, flags=flags)
    return definition if bos is None else adding(definition, bos, "A")


def pieces_with(names=(), *, bos="<s>", flags=(), **parts):
    """Return a BPE like SentencePiece's: bytes, <unk>, <s>, </s> and further special tokens."""
    definition = with_tokens(characters(**parts), names, flags=flags)
    return adding(definition, *([bos] if bos else []), "A")


def ordinary_pieces():
    vocabulary = characters()["model"]["vocab"]
    return [piece for piece in vocabulary if not piece.startswith("<")]


def unigram_with(names, **parts):
    pieces = [[name, 0.0] for name in ("<pad>", "</s>", "<unk>")]
    pieces += [[piece, -3 - place / 100] for place, piece in enumerate(ordinary_pieces())]
    definition = definition_of(
        {"type": "Unigram", "unk_id": 2, "byte_fallback": False, "vocab": pieces},
        added_tokens=[added(index, pieces[index][0]) for index in range(3)],
        pre_tokenizer={**METASPACE, "split": True},
        **parts,
    )
    return with_tokens(definition, names)


# Files


def decoder_of(definition):
    """Return the added_tokens_decoder that transformers 4 writes for a definition."""
    return {
        str(known["id"]): {key: value for key, value in known.items() if key != "id"}
        for known in definition["added_tokens"]
    }


def typed(content, **flags):
    """Return a token with its flags as tokenizer_config.json names it."""
    return {"__type": "AddedToken", **token(content, **flags)}


def saved(definition, model_type, tokenizer_class, named, **config):
    """Return the files that transformers 4 saves; a setting that is ``...`` is left out."""
    settings = {
        "added_tokens_decoder": decoder_of(definition),
        **named,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": tokenizer_class,
        **config,
    }
    return {
        DEFINITION: definition,
        CONFIG: {key: value for key, value in settings.items() if value is not ...},
        MAP: {name: token(content) for name, content in named.items() if content},
        MODEL_CONFIG: {"model_type": model_type},
    }


def gpt2():
    """As published in 2019: one setting, and the token normalized."""
    definition = bytes_with([END], flags={END: {"normalized": True}})
    merges = [" ".join(pair) for pair in definition["model"]["merges"]]
    return {
        DEFINITION: definition,
        CONFIG: {"model_max_length": 1024},
        MODEL_CONFIG: {"model_type": "gpt2"},
        "vocab.json": definition["model"]["vocab"],
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]),
    }


def phi2():
    runs = [" " * length for length in (4, 3, 2)] + ["\t\t"]
    flags = {run: {"special": False, "normalized": True} for run in runs}
    definition = with_tokens(bytes_with([END]), runs, appended=True, flags=flags)
    files = saved(definition, "phi", "CodeGenTokenizer", END_EVERYWHERE, add_prefix_space=False)
    return {**files, ADDED: {name: index for name, index in ids_of(definition).items() if name in runs}}


def opt():
    """A GPT2Tokenizer that adds BOS by its configuration."""
    named = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    definition = bytes_with(["<s>", "<pad>", "</s>", "<unk>"], bos="</s>")
    flagged = {name: typed(content, normalized=True) for name, content in named.items()}
    settings = {**flagged, "add_bos_token": True, "add_prefix_space": False, "added_tokens_decoder": ...}
    return saved(definition, "opt", "GPT2Tokenizer", named, **settings)


def starcoder():
    names = [END, "<fim_prefix>", "<fim_suffix>", "<reponame>"]
    definition = bytes_with(names, DIGITS, GPT2_BYTE_LEVEL)
    definition["pre_tokenizer"]["pretokenizers"].pop()
    settings = {"add_prefix_space": False, "additional_special_tokens": names, "vocab_size": len(names)}
    return saved(definition, "gpt_bigcode", "GPT2Tokenizer", END_EVERYWHERE, **settings)


def smollm():
    """GPT2Tokenizer in a Llama, over a file that splits digits."""
    files = starcoder()
    names = [END, "<|im_start|>", "<|im_end|>", "<repo_name>"]
    definition = bytes_with(names, post_processor=None)
    definition["pre_tokenizer"] = files[DEFINITION]["pre_tokenizer"]
    named = {"bos_token": names[1], "eos_token": names[2], "pad_token": names[2]}
    settings = {"add_prefix_space": False, "additional_special_tokens": names[1:3], "unk_token": END}
    return saved(definition, "llama", "GPT2Tokenizer", named, **settings)


def falcon():
    names = [">>TITLE<<", ">>ABSTRACT<<", END]
    pre = sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2_BYTE_LEVEL,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    )
    definition = {**bytes_with(names), "pre_tokenizer": pre}
    settings = {"add_prefix_space": False, "added_tokens_decoder": ...}
    files = saved(definition, "falcon", "PreTrainedTokenizerFast", {"eos_token": END}, **settings)
    files[MAP]["additional_special_tokens"] = names[:2]
    return files


def bloom():
    named = {**SENTENCEPIECE, "pad_token": "<pad>"}
    definition = bytes_with(list(named.values()), split(BLOOM_PATTERN), post_processor=BYTE_LEVEL)
    settings = {"add_prefix_space": False, "added_tokens_decoder": ..., "padding_side": "left"}
    return saved(definition, "bloom", "BloomTokenizerFast", named, **settings)


def gpt_neox():
    runs = {run: {"special": False, "normalized": True} for run in ("  ", "    ", "\n\n\n\n")}
    definition = bytes_with([END, "<|padding|>", *runs], appended=True, normalizer=NFC, flags=runs)
    settings = {"add_prefix_space": False, "added_tokens_decoder": ...}
    return saved(definition, "gpt_neox", "GPTNeoXTokenizer", END_EVERYWHERE, **settings)


def olmo2():
    pre = split(LLAMA3_PATTERN, "Removed", invert=True)
    definition = bytes_with([END, "<|fim_prefix|>", "<|endofprompt|>"], pre, appended=True)
    return saved(definition, "olmo2", "GPT2Tokenizer", END_EVERYWHERE, add_prefix_space=False)


def cohere():
    names = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>"]
    named = {"bos_token": names[5], "eos_token": names[6], "pad_token": "<PAD>", "unk_token": "<UNK>"}
    definition = bytes_with(names, bos=names[5], normalizer=NFC)
    definition["pre_tokenizer"] = sequence(DIGITS, GPT2_BYTE_LEVEL)
    settings = {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": False, "legacy": True}
    return saved(definition, "cohere", "CohereTokenizer", named, **settings)


def deepseek():
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>"]
    pre = [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), DIGITS]
    flags = {"<｜User｜>": {"special": False}}
    empty = sequence(key="normalizers")
    definition = bytes_with(names, *pre, bos=names[0], flags=flags, normalizer=empty)
    named = {"bos_token": names[0], "eos_token": names[1], "pad_token": names[1]}
    flagged = {name: typed(content, normalized=True) for name, content in named.items()}
    settings = {"add_bos_token": True, "add_eos_token": False, "legacy": True, "unk_token": None}
    settings["added_tokens_decoder"] = ...
    files = saved(definition, "deepseek_v3", "LlamaTokenizerFast", named, **flagged, **settings)
    del files[MAP]
    return files


def qwen2(model_type="qwen2", pattern=QWEN_PATTERN):
    names = [END, "<|im_start|>", "<|im_end|>"]
    parts = {"normalizer": NFC, "post_processor": BYTE_LEVEL}
    definition = bytes_with(names, split(pattern), appended=True, **parts)
    named = {"bos_token": None, "eos_token": END, "pad_token": END, "unk_token": None}
    settings = {
        "add_prefix_space": False,
        "additional_special_tokens": names[1:],
        "errors": "replace",
        "split_special_tokens": False,
    }
    files = saved(definition, model_type, "Qwen2Tokenizer", named, **settings)
    return {**files, "vocab.json": definition["model"]["vocab"]}


def qwen3_5():
    files = qwen2("qwen3_5", QWEN3_5_PATTERN)
    del files[MAP]
    files[CONFIG].update(add_bos_token=False, chat_template="{{ messages }}", extra_special_tokens={})
    return files


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"]
    definition = bytes_with(
        names, split(LLAMA3_PATTERN), bos=names[0], appended=True, model_ignore_merges=True
    )
    processors = (GPT2_BYTE_LEVEL, definition["post_processor"])
    definition["post_processor"] = sequence(*processors, key="processors")
    named = {"bos_token": names[0], "eos_token": names[1]}
    settings = {"clean_up_tokenization_spaces": True, "model_max_length": 131072}
    return saved(definition, "llama", "PreTrainedTokenizerFast", named, **settings)


def nemotron():
    names = [*SENTENCEPIECE.values(), "[INST]", "<SPECIAL_10>"]
    definition = bytes_with(names, split(LLAMA3_PATTERN.replace("{1,3}", "")), bos="<s>")
    return saved(definition, "nemotron_h", "PreTrainedTokenizerFast", SENTENCEPIECE)


def gpt_oss():
    names = ["<|startoftext|>", END, "<|return|>", "<|channel|>"]
    definition = bytes_with(names, split(O200K_PATTERN), appended=True)
    named = {"bos_token": names[0], "eos_token": names[2], "pad_token": END}
    return saved(
        adding(definition, "A"), "gpt_oss", "PreTrainedTokenizerFast", named, extra_special_tokens={}
    )


def llama2(**parts):
    definition = pieces_with(**{"normalizer": PREPENDED_MARKS, **parts})
    settings = {"add_bos_token": True, "add_eos_token": False, "legacy": False, "sp_model_kwargs": {}}
    return saved(definition, "llama", "LlamaTokenizer", SENTENCEPIECE, **settings)


def llama2_metaspace():
    files = llama2(normalizer=None, pre_tokenizer=FIRST_METASPACE)
    files[CONFIG]["tokenizer_class"] = "LlamaTokenizerFast"
    return files


def llama2_2023():
    """As published: no added_tokens_decoder, tokens with flags in the configuration."""
    flags = {name: {"normalized": True} for name in SENTENCEPIECE.values()}
    definition = pieces_with(normalizer=PREPENDED_MARKS, flags=flags)
    named = {name: typed(content, normalized=True) for name, content in SENTENCEPIECE.items()}
    settings = {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": ...}
    return saved(definition, "llama", "LlamaTokenizer", SENTENCEPIECE, **named, **settings)


def mistral():
    definition = pieces_with(["[INST]", "[/INST]", "[TOOL_CALLS]"], pre_tokenizer=FIRST_METASPACE)
    settings = {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": None, "legacy": False}
    files = saved(definition, "mistral", "LlamaTokenizer", SENTENCEPIECE, **settings)
    return {**files, "tokenizer.model": sentencepiece_model()}


def phi3():
    names = [END, "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    flags = {name: {"rstrip": True} for name in ("</s>", *names[1:])}
    definition = pieces_with(names, bos=None, flags=flags, normalizer=PREPENDED_MARKS)
    named = {**SENTENCEPIECE, "eos_token": END, "pad_token": END}
    settings = {"add_bos_token": False, "legacy": False}
    files = saved(definition, "phi3", "LlamaTokenizer", named, **settings)
    return {**files, ADDED: {name: index for name, index in ids_of(definition).items() if name in names}}


def gemma():
    names = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<mask>"]
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    pre = split(" ", "MergedWithPrevious", "String")
    definition = pieces_with(names, bos="<bos>", normalizer=MARKS, pre_tokenizer=pre)
    settings = {"add_bos_token": True, "add_eos_token": False, "additional_special_tokens": names[3:5]}
    files = saved(definition, "gemma2", "GemmaTokenizer", named, **settings)
    files[MAP]["additional_special_tokens"] = names[3:5]
    return files


def t5():
    extra = ["<extra_id_2>", "<extra_id_1>", "<extra_id_0>"]
    definition = adding(unigram_with(extra, normalizer={"type": "NFKC"}), "A", "</s>")
    named = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = {"additional_special_tokens": extra[::-1], "extra_ids": 3, "added_tokens_decoder": ...}
    files = saved(definition, "t5", "T5Tokenizer", named, **settings)
    files[MAP]["additional_special_tokens"] = extra[::-1]
    return files


def bert():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = []
    for piece in ordinary_pieces():
        word = piece.strip("▁").lower()
        words += [word, f"##{word}"] if len(word) == 1 else [word if piece.startswith("▁") else f"##{word}"]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*names, *filter(len, words)]))}
    flags = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    definition = definition_of(
        {**model, "max_input_chars_per_word": 100, "vocab": vocabulary},
        added_tokens=[added(vocabulary[name], name) for name in names],
        normalizer={"type": "BertNormalizer", **flags},
        pre_tokenizer={"type": "BertPreTokenizer"},
    )
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    named = dict(zip(roles, names, strict=True))
    files = saved(adding(definition, "[CLS]", "A", "[SEP]"), "bert", "BertTokenizer", named, **settings)
    return {**files, "vocab.txt": "\n".join([*vocabulary, ""])}


@cache
def sentencepiece_model():
    """Return a model that shares no vocabulary with the tokenizer.json next to it: a use of it shows."""
    import io

    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.replace("\n", " ").replace("\0", "") for text in random_texts(5, 300)]),
        model_writer=written,
        model_type="bpe",
        vocab_size=600,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    return written.getvalue()


FAMILIES = {
    family.__name__: family
    for family in (
        *(gpt2, phi2, opt, starcoder, smollm, falcon, bloom, gpt_neox, olmo2, cohere, deepseek),
        *(qwen2, qwen3_5, llama3, nemotron, gpt_oss, llama2, llama2_metaspace, llama2_2023),
        *(mistral, phi3, gemma, t5, bert),
    )
}


# Changes of the files next to tokenizer.json


def in_config(**values):
    """Return the change that sets keys of tokenizer_config.json; ``...`` removes a key."""
    return _keys(CONFIG, values)


def in_map(**values):
    """Return the change that sets keys of special_tokens_map.json."""
    return _keys(MAP, values)


def in_model_config(**values):
    """Return the change that sets keys of config.json."""
    return _keys(MODEL_CONFIG, values)


def _keys(name, values):
    def change(files):
        settings = files.setdefault(name, {})
        for key, value in values.items():
            settings.pop(key, None)
            if value is not ...:
                settings[key] = copy.deepcopy(value(files) if callable(value) else value)

    return change


def without(*names):
    return lambda files: [files.pop(name, None) for name in names]


def together(*changes):
    return lambda files: [change(files) for change in changes]


def eos_of(files):
    """Return the text of the EOS token of a directory, or of its last special token."""
    value = files.get(CONFIG, {}).get("eos_token") or files.get(MAP, {}).get("eos_token")
    value = value.get("content") if isinstance(value, dict) else value
    return value or files[DEFINITION]["added_tokens"][-1]["content"]


def piece_of(files):
    """Return an ordinary piece of the vocabulary."""
    vocabulary = files[DEFINITION]["model"]["vocab"]
    pieces = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    return next(piece for piece in pieces if len(piece) > 1 and piece.isascii() and piece.isalpha())


def size_of(files):
    vocabulary, tokens = files[DEFINITION]["model"]["vocab"], files[DEFINITION]["added_tokens"]
    return max([len(vocabulary), *(known["id"] + 1 for known in tokens)])


def eos(**flags):
    """Return the EOS token with flags as tokenizer_config.json names it."""
    return lambda files: typed(eos_of(files), **flags)


def in_decoder(*contents, first=0, **flags):
    """Return the change that adds tokens to added_tokens_decoder; the EOS token's flags without contents."""

    def change(files):
        decoder = files.setdefault(CONFIG, {}).setdefault(
            "added_tokens_decoder", decoder_of(files[DEFINITION])
        )
        size = size_of(files)
        for place, content in enumerate(contents):
            text = content(files) if callable(content) else content
            decoder[str(size + first + place)] = {"special": True, **token(text), **flags}
        for known in decoder.values() if not contents else ():
            if known["content"] == eos_of(files):
                known.update(flags)

    return change


def in_definition(**flags):
    """Return the change of the flags of all added tokens in tokenizer.json."""
    return lambda files: [known.update(flags) for known in files[DEFINITION]["added_tokens"]]


def in_added_tokens(content, *, first=0, **flags):
    """Return the change that adds a token to tokenizer.json, after the last id and ``first`` more."""

    def change(files):
        text = content(files) if callable(content) else content
        files[DEFINITION]["added_tokens"].append(added(size_of(files) + first, text, **flags))

    return change


def new_in_added_tokens(files):
    files[ADDED] = {**files.get(ADDED, {}), "<|new|>": size_of(files), "<|newer|>": size_of(files) + 1}


def padding(files):
    known = files[DEFINITION]["added_tokens"][0]
    files[DEFINITION]["padding"] = {
        "strategy": {"Fixed": 12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": known["id"],
        "pad_type_id": 0,
        "pad_token": known["content"],
    }


def truncation(files):
    part = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    files[DEFINITION]["truncation"] = part


def saved_by_5(files):
    """Write the settings as transformers 5 does."""
    config = files.setdefault(CONFIG, {})
    for key in ("added_tokens_decoder", "add_bos_token", "add_eos_token", "legacy"):
        config.pop(key, None)
    for name, value in files.pop(MAP, {}).items():
        config.setdefault(name, value["content"] if isinstance(value, dict) else value)
    extra = config.pop("additional_special_tokens", None)
    name = config.get("tokenizer_class", "TokenizersBackend").removesuffix("Fast")
    name = "TokenizersBackend" if name == "PreTrainedTokenizer" else name
    config.update(tokenizer_class=name, backend="tokenizers", is_local=True)
    config.update({"extra_special_tokens": extra} if extra else {})


NO_DECODER = in_config(added_tokens_decoder=...)
CLASSES = (
    *(
        "PreTrainedTokenizerFast",
        "TokenizersBackend",
        "GPT2Tokenizer",
        "CodeGenTokenizer",
        "BloomTokenizerFast",
    ),
    *("GPTNeoXTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "CohereTokenizer", "LlamaTokenizer"),
    *("LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer", "T5Tokenizer", "BertTokenizer"),
    "NoSuchTokenizer",
)
MODEL_TYPES = (
    *("gpt2", "opt", "gpt_neox", "bloom", "olmo2", "qwen2", "qwen3_5", "cohere", "deepseek_v3", "nemotron"),
    *("llama", "mistral", "phi3", "gemma2", "t5", "no_such_model"),
)
COMBINATIONS = 8  # of two changes, for each family
VARIANTS = {
    "as published": together(),
    "saved by transformers 5": saved_by_5,
    "tokenizer.json alone": without(CONFIG, MAP, ADDED, MODEL_CONFIG, *VOCABULARIES),
    "no config.json": without(MODEL_CONFIG),
    "no special_tokens_map.json": without(MAP),
    "no tokenizer_config.json": without(CONFIG),
    "no vocabulary files": without(*VOCABULARIES),
    "no added_tokens_decoder": NO_DECODER,
    "no tokenizer_class": in_config(tokenizer_class=...),
    **{f"tokenizer_class {name}": in_config(tokenizer_class=name) for name in CLASSES},
    **{f"model_type {name}": in_model_config(model_type=name) for name in MODEL_TYPES},
    "tokenizer_class in config.json": together(
        in_config(tokenizer_class=...), in_model_config(tokenizer_class="PreTrainedTokenizerFast")
    ),
    "transformers_version": in_model_config(transformers_version="4.38.2"),
    "add_prefix_space": in_config(add_prefix_space=True),
    "add_prefix_space false": in_config(add_prefix_space=False),
    "add_prefix_space, legacy false": in_config(add_prefix_space=True, legacy=False),
    "add_bos_token": in_config(add_bos_token=True),
    "add_bos_token false": in_config(add_bos_token=False),
    "add_bos_token, new bos_token": in_config(bos_token="<|new|>", add_bos_token=True),
    "add_eos_token": in_config(add_eos_token=True),
    "add_bos_token, add_eos_token": in_config(add_bos_token=True, add_eos_token=True),
    "add_bos_token false, add_eos_token": in_config(add_bos_token=False, add_eos_token=True),
    "split_special_tokens": in_config(split_special_tokens=True),
    "added_tokens_decoder new": in_decoder("<|new|>", "<|newer|>"),
    "added_tokens_decoder new after a gap": in_decoder("<|new|>", first=7),
    "added_tokens_decoder new not special": in_decoder("<|new|>", special=False),
    "added_tokens_decoder new normalized": in_decoder("New Word", special=False, normalized=True),
    "added_tokens_decoder new lstrip rstrip": in_decoder("<|new|>", lstrip=True, rstrip=True),
    "added_tokens_decoder new single_word": in_decoder("fox", single_word=True),
    "added_tokens_decoder existing piece": in_decoder(piece_of),
    "added_tokens_decoder eos twice": in_decoder(eos_of, lstrip=True),
    "added_tokens_decoder eos lstrip": in_decoder(lstrip=True),
    "added_tokens_decoder eos rstrip": in_decoder(rstrip=True),
    "added_tokens_decoder eos normalized": in_decoder(normalized=True),
    "added_tokens_decoder eos single_word": in_decoder(single_word=True),
    "added_tokens_decoder eos not special": in_decoder(special=False),
    "added_tokens_decoder eos renamed": in_decoder(content="<|renamed|>"),
    "added_tokens_decoder a list": in_config(added_tokens_decoder=[]),
    "added_tokens.json new": new_in_added_tokens,
    "added_tokens.json new, no added_tokens_decoder": together(NO_DECODER, new_in_added_tokens),
    "additional_special_tokens new": in_config(additional_special_tokens=["<|new|>", "<|newer|>"]),
    "additional_special_tokens with flags": in_config(
        additional_special_tokens=[typed("<|new|>", lstrip=True)]
    ),
    "additional_special_tokens existing piece": in_config(
        additional_special_tokens=lambda files: [piece_of(files)]
    ),
    "additional_special_tokens a number": in_config(additional_special_tokens=5),
    "additional_special_tokens in the map": in_map(additional_special_tokens=["<|new|>"]),
    "extra_special_tokens list": in_config(extra_special_tokens=["<|new|>"]),
    "extra_special_tokens dict": in_config(extra_special_tokens={"image_token": "<|new|>"}),
    "model_specific_special_tokens": in_config(model_specific_special_tokens={"x_token": "<|new|>"}),
    "image_token": in_config(image_token="<|new|>"),
    "pad_token new": in_config(pad_token="<|new|>"),
    "pad_token new with flags": in_config(pad_token=typed("<|new|>", rstrip=True)),
    "pad_token new in the map": in_map(pad_token="<|new|>"),
    "pad_token new in the map, no added_tokens_decoder": together(NO_DECODER, in_map(pad_token="<|new|>")),
    "mask_token new": in_config(mask_token="<|new|>"),
    "eos_token another in the map": in_map(eos_token=piece_of),
    "eos_token another in the map, no added_tokens_decoder": together(NO_DECODER, in_map(eos_token=piece_of)),
    "eos_token new in the map, no added_tokens_decoder": together(NO_DECODER, in_map(eos_token="<|new|>")),
    "eos_token new": in_config(eos_token="<|new|>"),
    "eos_token null": together(without(MAP), in_config(eos_token=None)),
    "eos_token a plain dict": in_config(eos_token=lambda files: {"content": eos_of(files)}),
    "eos_token a dict without content": in_config(eos_token={"__type": "AddedToken"}),
    "eos_token a number": in_config(eos_token=2),
    "eos_token a list": in_config(eos_token=lambda files: [eos_of(files)]),
    "eos_token lstrip": in_config(eos_token=eos(lstrip=True)),
    "eos_token rstrip": in_config(eos_token=eos(rstrip=True)),
    "eos_token normalized": in_config(eos_token=eos(normalized=True)),
    "eos_token rstrip, no added_tokens_decoder": together(in_config(eos_token=eos(rstrip=True)), NO_DECODER),
    "eos_token rstrip in the map, no added_tokens_decoder": together(
        NO_DECODER, in_map(eos_token=eos(rstrip=True))
    ),
    "sep_token instead of eos_token": together(
        in_config(sep_token=eos_of), in_config(eos_token=...), in_map(eos_token=...)
    ),
    "tokens normalized in tokenizer.json": in_definition(normalized=True),
    "tokens lstrip in tokenizer.json": in_definition(lstrip=True),
    "tokens rstrip in tokenizer.json": in_definition(rstrip=True),
    "token twice in tokenizer.json": in_added_tokens(eos_of, lstrip=True),
    "new token after a gap in tokenizer.json": in_added_tokens("<|new|>", first=7),
    "truncation": truncation,
    "padding": padding,
    "clean_up_tokenization_spaces": in_config(clean_up_tokenization_spaces=True),
    "model_max_length": in_config(model_max_length=2),
    "legacy": in_config(legacy=True),
    "legacy false": in_config(legacy=False),
    "from_slow": in_config(from_slow=True),
    "do_lower_case": in_config(do_lower_case=True),
    "do_lower_case false": in_config(do_lower_case=False),
    "strip_accents": in_config(strip_accents=True),
    "tokenize_chinese_chars false": in_config(tokenize_chinese_chars=False),
    "auto_map": in_config(auto_map={"AutoTokenizer": ["tokenization_x.XTokenizer", None]}),
    "fix_mistral_regex": in_config(fix_mistral_regex=True),
    "use_fast false": in_config(use_fast=False),
    "add_special_tokens false": in_config(add_special_tokens=False),
    "tokenizer_file": in_config(tokenizer_file="no/such/tokenizer.json"),
}


def cases():
    """Return a part: each family as published, and each variant of one family."""
    families = list(FAMILIES)
    variants = enumerate(list(VARIANTS)[1:])
    return [(family, "as published") for family in families] + [
        (families[place % len(families)], variant) for place, variant in variants
    ]


def all_cases():
    """Return all families with all variants and with random combinations of them."""
    generator = random.Random(0)
    names = list(VARIANTS)
    return [
        (family, variant)
        for family in FAMILIES
        for variant in [*names, *(" + ".join(generator.sample(names[1:], 2)) for _ in range(COMBINATIONS))]
    ]


def directory(family, variant):
    """Return the files of a family with one change, or with several, joined by `` + ``."""
    files = FAMILIES[family]()
    for name in variant.split(" + "):
        VARIANTS[name](files)
    return files


def write_directory(path, files):
    """Write the files of a directory, and return its path."""
    Path(path).mkdir(parents=True)
    for name, content in files.items():
        plain = content if isinstance(content, str | bytes) else json.dumps(content, ensure_ascii=False)
        Path(path, name).write_bytes(plain if isinstance(plain, bytes) else plain.encode())
    return str(path)


SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))",
    "It's 3,141,592 o'clock; don't you see? HTTPRequest to http://a.b/c?d=1&e=2",
    "  leading and trailing spaces  ",
    "Das Straßenschild in Zürich — ein „Zitat“.",
    "日本語のテキストと中文文本。",
    *("", " ", "\n", "\ttabs\tand  double  spaces", "1234567890" * 30, "\0\x01\x7f\x80", "a" * 300),
]
AROUND = (
    "{0}",
    "a {0} b",
    "a{0}b",
    "  {0}  x",
    "{0}\n\n{0} ",
    "x{0}{0}",
    "{0} {0}",
    "\t{0}\u3000{0}\u0301",
    "{0}'s 12{0}34",
)


def texts_with(names):
    """Return texts with each name alone, repeated, glued to text, and with white space around it."""
    return [template.format(name) for name in names for template in AROUND]


def hostile_texts(files, count):
    """Return texts with the special tokens that any file of a directory names, and random ones."""
    names = ["<|new|>", "<|newer|>", "<|renamed|>", "New Word", "new word", "fox", piece_of(files)]
    names += [known["content"] for known in files[DEFINITION]["added_tokens"]]
    names += [name.upper() for name in names[-3:]]
    texts = [*SENTENCES, *texts_with(names)]
    generator = random.Random(count)
    between = ["", " ", "  ", "\n", "a", " b", "…", "'s", "é", "e\u0301", "👩🏽", "\xa0", "١٢٣"]
    for text in random_texts("directories", count // 2):
        glued = (generator.choice(between) + generator.choice(names) for _ in range(4))
        texts += [text, "".join(glued) + text[:8]]
    return texts[:count]
