"""Directories of tokenizers: files as the families publish them, and changes of the files beside them.

A directory is a dictionary from file names to contents: JSON values, or text or bytes for other files.
Vocabularies are small and trained here.
"""

import copy
import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.tokenizer_definitions import (
    added,
    definition_of,
    random_texts,
    sequence,
    split,
    template,
)
from support.tokenizer_definitions import characters as _characters

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
DEFINITION, MODEL_CONFIG = "tokenizer.json", "config.json"

CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE_MARK = "▁"


def byte_level(*, add_prefix_space=False, use_regex=False):
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def metaspace(scheme="first", *, splits=False):
    return {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": scheme, "split": splits}


@cache
def _byte_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([*random_texts(2, 1500), *ENGLISH * 5], trainer)
    return json.loads(library.to_str())["model"]


@cache
def _unigram_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator([*random_texts(3, 1500), *ENGLISH * 5], trainer)
    model = json.loads(library.to_str())["model"]
    # The texts contain the special tokens, too; tokenizers 0.22 and 0.23 count repeated pieces differently.
    first = {}
    for piece, score in model["vocab"]:
        first.setdefault(piece, score)
    model["vocab"] = [[piece, score] for piece, score in first.items() if piece not in {"<s>", "<mask>"}]
    return model


@cache
def _wordpiece_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=800, special_tokens=names, show_progress=False)
    library.train_from_iterator([*random_texts(4, 1500), *ENGLISH * 5], trainer)
    return json.loads(library.to_str())["model"]


@cache
def _sentencepiece_model():
    """Return a model file as of Llama 2, and the vocabulary and merges that transformers converts it to."""
    import io

    import sentencepiece

    lines = [line for text in [*random_texts(5, 800), *ENGLISH * 5] for line in text.split("\n") if line]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\0", "") for line in lines]),
        model_writer=written,
        model_type="bpe",
        vocab_size=1000,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = {model.id_to_piece(index): index for index in range(model.vocab_size())}
    merges = []
    for piece, index in ids.items():
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        local = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
        local.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(model.get_score(index), pair) for pair in local]
    merges.sort(key=lambda one: one[0], reverse=True)
    return written.getvalue(), ids, [list(pair) for _, pair in merges]


ENGLISH = [
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))",
    "It's 3,141,592 o'clock; don't you see? HTTPRequest to http://a.b/c?d=1&e=2",
    "  leading and trailing spaces  ",
    "Das Straßenschild in Zürich — ein „Zitat“.",
    "日本語のテキストと中文文本。",
    "",
    " ",
    "\n",
    "\ttabs\tand  double  spaces",
]


def bytes_with(names, *, pre=None, ids_in_vocabulary=True, flags=(), **parts):
    """Return a byte-level BPE with special tokens ``names``, in the vocabulary or after it."""
    model = {"type": "BPE", **copy.deepcopy(_byte_model())}
    flags = dict(flags)
    tokens = []
    for name in names:
        index = len(model["vocab"]) if ids_in_vocabulary else len(model["vocab"]) + len(tokens)
        if ids_in_vocabulary:
            model["vocab"][name] = index
        tokens.append(added(index, name, **flags.get(name, {})))
    return {
        **definition_of(
            model, pre_tokenizer=pre or byte_level(use_regex=True), decoder=byte_level(use_regex=True)
        ),
        "added_tokens": tokens,
        **parts,
    }


def characters(names=(), *, flags=(), **parts):
    """Return a SentencePiece-like BPE (<unk>, <s>, </s> and bytes first), with further special tokens."""
    definition = _characters()
    flags = dict(flags)
    for token in definition["added_tokens"]:
        token.update(flags.get(token["content"], {}))
    for name in names:
        index = len(definition["model"]["vocab"])
        definition["model"]["vocab"][name] = index
        definition["added_tokens"].append(added(index, name, **flags.get(name, {})))
    return {**definition, **parts}


def ids_of(definition):
    return {token["content"]: token["id"] for token in definition["added_tokens"]}


def bos(definition, name, **extra):
    return template(name, "A", ids={name: [ids_of(definition)[name]]}, **extra)


def decoder_of(definition):
    """Return the added_tokens_decoder that transformers writes for a definition."""
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {str(t["id"]): {key: t[key] for key in keys} for t in definition["added_tokens"]}


def token(content, **flags):
    """Return a token as configuration files write one with its flags."""
    plain = {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {**plain, **flags}


def _replace(**changes):
    return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK, **changes}


PREPEND = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": SPACE_MARK}, _replace()],
}


def gpt2():
    definition = bytes_with(["<|endoftext|>"])
    definition["post_processor"] = byte_level(use_regex=True)
    model = definition["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {
        DEFINITION: definition,
        CONFIG: {"model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False},
        MAP: dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        "vocab.json": model["vocab"],
        "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
        MODEL_CONFIG: {"model_type": "gpt2"},
    }


_LLAMA_TOKENS = {"bos_token": token("<s>"), "eos_token": token("</s>"), "unk_token": token("<unk>")}


def llama2(**changes):
    definition = characters(normalizer=copy.deepcopy(PREPEND), **changes)
    definition["post_processor"] = bos(definition, "<s>")
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": decoder_of(definition),
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "legacy": False,
            "pad_token": None,
            "padding_side": "right",
            "sp_model_kwargs": {},
            "tokenizer_class": "LlamaTokenizer",
        },
        MAP: copy.deepcopy(_LLAMA_TOKENS),
        MODEL_CONFIG: {"model_type": "llama"},
    }


def llama2_metaspace():
    files = llama2(pre_tokenizer=metaspace("first"))
    files[DEFINITION]["normalizer"] = None
    files[CONFIG]["tokenizer_class"] = "LlamaTokenizerFast"
    return files


def llama2_old():
    """As published in 2023: no added_tokens_decoder, tokens with flags in the configuration."""
    files = llama2()
    config = files[CONFIG]
    for key in ("added_tokens_decoder", "legacy"):
        del config[key]
    config.update({k: {"__type": "AddedToken", **v, "normalized": True} for k, v in _LLAMA_TOKENS.items()})
    for known in files[DEFINITION]["added_tokens"]:
        known["normalized"] = True
    return files


def llama2_model():
    """With the SentencePiece model from which some settings convert the tokenizer again."""
    content, vocabulary, merges = _sentencepiece_model()
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": dict(vocabulary),
        "merges": copy.deepcopy(merges),
    }
    definition = definition_of(model, normalizer=copy.deepcopy(PREPEND))
    definition["added_tokens"] = [added(vocabulary[name], name) for name in ("<unk>", "<s>", "</s>")]
    definition["post_processor"] = bos(definition, "<s>")
    files = llama2()
    files[DEFINITION] = definition
    files[CONFIG]["added_tokens_decoder"] = decoder_of(definition)
    files["tokenizer.model"] = content
    return files


def mistral_model():
    files = llama2_model()
    files[DEFINITION]["normalizer"] = None
    files[DEFINITION]["pre_tokenizer"] = metaspace("first")
    files[MODEL_CONFIG] = {"model_type": "mistral"}
    return files


def codellama():
    names = ["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"]
    definition = characters(names, normalizer=copy.deepcopy(PREPEND))
    definition["post_processor"] = bos(definition, "<s>")
    files = llama2()
    files[DEFINITION] = definition
    files[CONFIG].update(
        tokenizer_class="CodeLlamaTokenizer",
        added_tokens_decoder=decoder_of(definition),
        additional_special_tokens=names,
        prefix_token="▁<PRE>",
        middle_token="▁<MID>",
        suffix_token="▁<SUF>",
        eot_token="▁<EOT>",
        fill_token="<FILL_ME>",
        suffix_first=False,
    )
    files[CONFIG].pop("legacy")
    files[MAP] = {**files[MAP], "additional_special_tokens": names}
    return files


def mistral():
    names = ["[INST]", "[/INST]", "[TOOL_CALLS]"]
    definition = characters(names, pre_tokenizer=metaspace("first"))
    definition["post_processor"] = bos(definition, "<s>")
    files = llama2()
    files[DEFINITION] = definition
    files[CONFIG].update(add_prefix_space=None, added_tokens_decoder=decoder_of(definition))
    files[MODEL_CONFIG] = {"model_type": "mistral"}
    return files


def phi3():
    names = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    flags = {name: {"rstrip": True} for name in ("</s>", *names[1:])}
    definition = characters(names, flags=flags, normalizer=copy.deepcopy(PREPEND))
    definition["post_processor"] = template("A", ids={})
    files = llama2()
    files[DEFINITION] = definition
    files[CONFIG].update(
        add_bos_token=False,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        added_tokens_decoder=decoder_of(definition),
    )
    files[MAP] = {
        "bos_token": token("<s>"),
        "eos_token": token("<|endoftext|>"),
        "pad_token": token("<|endoftext|>"),
        "unk_token": token("<unk>"),
    }
    files[MODEL_CONFIG] = {"model_type": "phi3"}
    files[ADDED] = {name: index for name, index in ids_of(definition).items() if name in names}
    return files


def yi():
    names = ["<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    definition = characters(names, normalizer=_replace())
    files = llama2()
    files[DEFINITION] = definition
    files[CONFIG].update(
        add_bos_token=False,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<unk>",
        added_tokens_decoder=decoder_of(definition),
        legacy=True,
    )
    files[MAP] = {"bos_token": token("<|startoftext|>"), "eos_token": token("<|endoftext|>")}
    return files


def gemma():
    names = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<mask>"]
    definition = characters(names, normalizer=_replace())
    definition["pre_tokenizer"] = split(" ", "MergedWithPrevious", "String")
    definition["post_processor"] = bos(definition, "<bos>")
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": decoder_of(definition),
            "additional_special_tokens": names[3:5],
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "spaces_between_special_tokens": False,
            "sp_model_kwargs": {},
            "tokenizer_class": "GemmaTokenizer",
        },
        MAP: {
            "additional_special_tokens": names[3:5],
            "bos_token": token("<bos>"),
            "eos_token": token("<eos>"),
            "pad_token": token("<pad>"),
            "unk_token": token("<unk>"),
        },
        MODEL_CONFIG: {"model_type": "gemma2"},
    }


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"]
    pre = sequence(split(CL100K_PATTERN), byte_level())
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False)
    definition["model"]["ignore_merges"] = True
    definition["post_processor"] = sequence(
        byte_level(use_regex=True), bos(definition, names[0]), key="processors"
    )
    return {
        DEFINITION: definition,
        CONFIG: {
            "added_tokens_decoder": decoder_of(definition),
            "bos_token": names[0],
            "eos_token": names[1],
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        MAP: {"bos_token": token(names[0]), "eos_token": token(names[1])},
        MODEL_CONFIG: {"model_type": "llama"},
    }


def nemotron():
    names = ["<unk>", "<s>", "</s>", "[INST]", "<SPECIAL_10>"]
    pre = sequence(split(CL100K_PATTERN.replace("{1,3}", "")), byte_level())
    definition = bytes_with(names, pre=pre)
    definition["post_processor"] = bos(definition, "<s>")
    files = llama3()
    files[DEFINITION] = definition
    files[CONFIG].update(
        added_tokens_decoder=decoder_of(definition), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    files[MAP] = copy.deepcopy(_LLAMA_TOKENS)
    files[MODEL_CONFIG] = {"model_type": "nemotron_h"}
    return files


def qwen2():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pre = sequence(split(QWEN2_PATTERN), byte_level())
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False, normalizer={"type": "NFC"})
    definition["post_processor"] = byte_level()
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(definition),
            "additional_special_tokens": names[1:],
            "bos_token": None,
            "eos_token": names[0],
            "pad_token": names[0],
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": 32768,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
        },
        MODEL_CONFIG: {"model_type": "qwen2"},
        "vocab.json": definition["model"]["vocab"],
    }


def deepseek():
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>"]
    pre = sequence(
        split(r"[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        {"type": "Digits", "individual_digits": True},
        byte_level(),
    )
    definition = bytes_with(
        names, pre=pre, flags={"<｜User｜>": {"special": False}}, normalizer=sequence(key="normalizers")
    )
    definition["post_processor"] = bos(definition, names[0])
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": {"__type": "AddedToken", **token(names[0], normalized=True)},
            "eos_token": {"__type": "AddedToken", **token(names[1], normalized=True)},
            "pad_token": {"__type": "AddedToken", **token(names[1], normalized=True)},
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "legacy": True,
            "model_max_length": 16384,
            "sp_model_kwargs": {},
            "tokenizer_class": "LlamaTokenizerFast",
        },
        MODEL_CONFIG: {"model_type": "deepseek_v3"},
    }


def olmo():
    names = ["<|endoftext|>", "<|padding|>", "  ", "    ", "\n\n\n\n"]
    flags = {name: {"special": False, "normalized": True} for name in names[2:]}
    definition = bytes_with(
        names,
        flags=flags,
        ids_in_vocabulary=False,
        normalizer={"type": "NFC"},
        pre=byte_level(use_regex=True),
    )
    definition["post_processor"] = byte_level(use_regex=True)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": False,
            "add_eos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(definition),
            "bos_token": None,
            "eos_token": "<|endoftext|>",
            "pad_token": "<|padding|>",
            "tokenizer_class": "GPTNeoXTokenizer",
        },
        MAP: {"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"},
        MODEL_CONFIG: {"model_type": "olmo"},
    }


def cl100k():
    names = ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"]
    pre = sequence(split(CL100K_PATTERN, "Removed", invert=True), byte_level())
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False)
    definition["post_processor"] = byte_level(use_regex=True)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(definition),
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "tokenizer_class": "GPT2Tokenizer",
        },
        MAP: dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        MODEL_CONFIG: {"model_type": "olmo2"},
    }


def falcon():
    names = [">>TITLE<<", ">>ABSTRACT<<", "<|endoftext|>"]
    pre = sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(use_regex=True),
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    )
    definition = bytes_with(names, pre=pre)
    definition["post_processor"] = byte_level(use_regex=True)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "eos_token": "<|endoftext|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        MAP: {"additional_special_tokens": names[:2], "eos_token": "<|endoftext|>"},
        MODEL_CONFIG: {"model_type": "falcon"},
    }


def bloom():
    names = ["<unk>", "<s>", "</s>", "<pad>"]
    pre = sequence(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), byte_level())
    definition = bytes_with(names, pre=pre)
    definition["post_processor"] = byte_level(use_regex=False)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "bos_token": "<s>",
            "pad_token": "<pad>",
            "padding_side": "left",
            "tokenizer_class": "BloomTokenizerFast",
        },
        MAP: {"unk_token": "<unk>", "eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>"},
        MODEL_CONFIG: {"model_type": "bloom"},
    }


def starcoder():
    names = ["<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<reponame>"]
    pre = sequence({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True))
    definition = bytes_with(names, pre=pre)
    definition["post_processor"] = byte_level(use_regex=True)
    files = cl100k()
    files[DEFINITION] = definition
    files[CONFIG].update(
        added_tokens_decoder=decoder_of(definition), additional_special_tokens=names, vocab_size=len(names)
    )
    files[MAP]["additional_special_tokens"] = names
    files[MODEL_CONFIG] = {"model_type": "gpt_bigcode"}
    return files


def opt():
    """A GPT2Tokenizer that adds BOS by its configuration."""
    files = gpt2()
    definition = bytes_with(["<s>", "<pad>", "</s>", "<unk>"])
    definition["post_processor"] = bos(definition, "</s>")
    named = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    normalized = {name: token(text, normalized=True) for name, text in named.items()}
    files[DEFINITION] = definition
    files[CONFIG] = {
        "add_bos_token": True,
        "add_prefix_space": False,
        "tokenizer_class": "GPT2Tokenizer",
        "errors": "replace",
        **{name: {"__type": "AddedToken", **value} for name, value in normalized.items()},
    }
    files[MAP] = {**normalized, "pad_token": "<pad>"}
    files[MODEL_CONFIG] = {"model_type": "opt"}
    for name in ("vocab.json", "merges.txt"):
        del files[name]
    return files


def roberta():
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    definition = bytes_with(names, flags={"<mask>": {"lstrip": True}})
    ids = ids_of(definition)
    definition["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", ids["</s>"]],
        "cls": ["<s>", ids["<s>"]],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(definition),
            **named,
            "mask_token": "<mask>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "trim_offsets": True,
            "tokenizer_class": "RobertaTokenizer",
        },
        MAP: {**named, "mask_token": token("<mask>", lstrip=True), "pad_token": "<pad>"},
        MODEL_CONFIG: {"model_type": "roberta"},
    }


def t5():
    model = {"type": "Unigram", **copy.deepcopy(_unigram_model())}
    names = ["<pad>", "</s>", "<unk>", "<extra_id_2>", "<extra_id_1>", "<extra_id_0>"]
    model["vocab"] += [[name, 0.0] for name in names[3:]]
    places = {piece: place for place, (piece, _) in enumerate(model["vocab"])}
    definition = definition_of(model, pre_tokenizer=metaspace("always", splits=True))
    definition["normalizer"] = {"type": "NFKC"}
    definition["added_tokens"] = sorted(
        (added(places[name], name) for name in names), key=lambda known: known["id"]
    )
    definition["post_processor"] = template("A", "</s>", ids={"</s>": [places["</s>"]]})
    extra = names[:2:-1]
    return {
        DEFINITION: definition,
        CONFIG: {
            "additional_special_tokens": extra,
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "extra_ids": 3,
            "model_max_length": 512,
            "tokenizer_class": "T5Tokenizer",
        },
        MAP: {
            "additional_special_tokens": extra,
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
        MODEL_CONFIG: {"model_type": "t5"},
    }


def bert():
    model = {"type": "WordPiece", **copy.deepcopy(_wordpiece_model())}
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    definition = definition_of(model, pre_tokenizer={"type": "BertPreTokenizer"})
    definition["normalizer"] = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    definition["added_tokens"] = [added(model["vocab"][name], name) for name in names]
    ids = {name: [model["vocab"][name]] for name in ("[CLS]", "[SEP]")}
    definition["post_processor"] = template("[CLS]", "A", "[SEP]", ids=ids)
    named = {
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
    }
    return {
        DEFINITION: definition,
        CONFIG: {
            **named,
            "added_tokens_decoder": decoder_of(definition),
            "do_lower_case": True,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
        },
        MAP: dict(named),
        MODEL_CONFIG: {"model_type": "bert"},
        "vocab.txt": "\n".join(sorted(model["vocab"], key=model["vocab"].get)) + "\n",
    }


def cohere():
    names = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>"]
    pre = sequence({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True))
    definition = bytes_with(names, pre=pre, normalizer={"type": "NFC"})
    definition["post_processor"] = bos(definition, "<BOS_TOKEN>")
    named = {"bos_token": "<BOS_TOKEN>", "eos_token": "<EOS_TOKEN>", "pad_token": "<PAD>"}
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(definition),
            **named,
            "unk_token": "<UNK>",
            "legacy": True,
            "merges_file": None,
            "vocab_file": None,
            "use_default_system_prompt": False,
            "tokenizer_class": "CohereTokenizer",
        },
        MAP: dict(named),
        MODEL_CONFIG: {"model_type": "cohere"},
    }


def neox():
    files = olmo()
    files[CONFIG] = {
        "add_prefix_space": False,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "tokenizer_class": "GPTNeoXTokenizer",
    }
    files[MAP] = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    files[MODEL_CONFIG] = {"model_type": "gpt_neox"}
    return files


def phi2():
    files = gpt2()
    definition = files[DEFINITION]
    runs = [" " * length for length in (4, 3, 2)] + ["\t\t"]
    size = len(definition["model"]["vocab"])
    definition["added_tokens"] += [
        added(size + place, run, special=False, normalized=True) for place, run in enumerate(runs)
    ]
    files[CONFIG] = {
        "add_prefix_space": False,
        "added_tokens_decoder": decoder_of(definition),
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        "return_token_type_ids": False,
        "tokenizer_class": "CodeGenTokenizer",
    }
    files[ADDED] = {run: size + place for place, run in enumerate(runs)}
    files[MODEL_CONFIG] = {"model_type": "phi"}
    return files


def smollm():
    """GPT2Tokenizer over a file that splits digits."""
    files = starcoder()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    definition = bytes_with(names, pre=copy.deepcopy(files[DEFINITION]["pre_tokenizer"]))
    files[DEFINITION] = definition
    files[CONFIG].update(
        added_tokens_decoder=decoder_of(definition),
        additional_special_tokens=names[1:3],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    files[MAP] = {"bos_token": token("<|im_start|>"), "eos_token": token("<|im_end|>")}
    files[MODEL_CONFIG] = {"model_type": "llama"}
    return files


def o200k():
    names = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>"]
    pre = sequence(split(O200K_PATTERN), byte_level())
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False)
    definition["post_processor"] = template("A", ids={})
    files = llama3()
    files[DEFINITION] = definition
    files[CONFIG].update(
        added_tokens_decoder=decoder_of(definition),
        bos_token=names[0],
        eos_token=names[2],
        pad_token=names[1],
        extra_special_tokens={},
    )
    files[MAP] = {"bos_token": names[0], "eos_token": token(names[2]), "pad_token": names[1]}
    files[MODEL_CONFIG] = {"model_type": "gpt_oss"}
    return files


def qwen3():
    files = qwen2()
    files[CONFIG].update(add_bos_token=False, chat_template="{{ messages }}", extra_special_tokens={})
    files[MODEL_CONFIG] = {"model_type": "qwen3"}
    return files


def xlm_roberta():
    files = t5()
    definition = files[DEFINITION]
    vocabulary = definition["model"]["vocab"]
    names = ["<s>", "<mask>"]
    for name in names:
        definition["added_tokens"].append(added(len(vocabulary), name, lstrip=name == "<mask>"))
        vocabulary.append([name, 0.0])
    ids = {name: [index] for name, index in ids_of(definition).items() if name in {"<s>", "</s>"}}
    definition["post_processor"] = template("<s>", "A", "</s>", ids=ids)
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
    named.update(unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")
    files[CONFIG] = {
        **named,
        "added_tokens_decoder": decoder_of(definition),
        "tokenizer_class": "XLMRobertaTokenizer",
    }
    files[MAP] = {**named, "mask_token": token("<mask>", lstrip=True)}
    files[MODEL_CONFIG] = {"model_type": "xlm-roberta"}
    return files


FAMILIES = {
    family.__name__: family
    for family in (
        gpt2,
        llama2,
        llama2_metaspace,
        llama2_old,
        llama2_model,
        mistral_model,
        codellama,
        mistral,
        phi3,
        yi,
        gemma,
        llama3,
        nemotron,
        qwen2,
        deepseek,
        olmo,
        cl100k,
        falcon,
        bloom,
        starcoder,
        opt,
        roberta,
        t5,
        bert,
        cohere,
        neox,
        phi2,
        smollm,
        o200k,
        qwen3,
        xlm_roberta,
    )
}


# Changes of the files beside the definition. Each takes the files of a directory and changes them.


def setting(**values):
    """Return the change that sets keys of tokenizer_config.json; ``...`` removes a key."""

    def change(files):
        config = files.setdefault(CONFIG, {})
        for key, value in values.items():
            config.pop(key, None)
            if value is not ...:
                config[key] = copy.deepcopy(value)

    return change


def mapping(**values):
    """Return the change that sets keys of special_tokens_map.json."""
    return lambda files: files.setdefault(MAP, {}).update(copy.deepcopy(values))


def model_type(name):
    return lambda files: files.update({MODEL_CONFIG: {"model_type": name}})


def without(*names):
    def change(files):
        for name in names:
            files.pop(name, None)

    return change


def _eos_of(files):
    """Return the text of the EOS token of a directory, or of its last special token."""
    value = files.get(CONFIG, {}).get("eos_token") or files.get(MAP, {}).get("eos_token")
    value = value.get("content") if isinstance(value, dict) else value
    return value or files[DEFINITION]["added_tokens"][-1]["content"]


def _decoder(files):
    config = files.setdefault(CONFIG, {})
    return config.setdefault("added_tokens_decoder", decoder_of(files[DEFINITION]))


def decoder_flags(**flags):
    """Return the change of the flags of the EOS token in added_tokens_decoder."""

    def change(files):
        eos = _eos_of(files)
        for known in _decoder(files).values():
            if known["content"] == eos:
                known.update(flags)

    return change


def decoder_new(*contents, first=0, **flags):
    """Return the change that adds tokens to added_tokens_decoder, after the last id and ``first`` more."""

    def change(files):
        decoder = _decoder(files)
        definition = files[DEFINITION]
        ids = [known["id"] for known in definition["added_tokens"]]
        size = max(len(definition["model"]["vocab"]), max(ids, default=-1) + 1)
        for place, content in enumerate(contents):
            decoder[str(size + first + place)] = token(content, **{"special": True, **flags})

    return change


def decoder_renamed(files):
    """Give the EOS token's id another content."""
    eos = _eos_of(files)
    for known in _decoder(files).values():
        if known["content"] == eos:
            known["content"] = "<|renamed|>"


def without_decoder(files):
    files.get(CONFIG, {}).pop("added_tokens_decoder", None)


def definition_decoder(**flags):
    """Return the change of all added tokens' flags in tokenizer.json itself."""

    def change(files):
        for known in files[DEFINITION]["added_tokens"]:
            known.update(flags)

    return change


def added_tokens_file(**values):
    def change(files):
        definition = files[DEFINITION]
        size = max(len(definition["model"]["vocab"]), *(t["id"] + 1 for t in definition["added_tokens"]))
        files[ADDED] = {name: size + place for place, name in enumerate(values)}

    return change


def eos_with(**flags):
    """Return the change that names the EOS token with flags in tokenizer_config.json."""

    def change(files):
        eos = _eos_of(files)
        files.setdefault(CONFIG, {})["eos_token"] = {"__type": "AddedToken", **token(eos, **flags)}

    return change


def only_sep(files):
    """Name the EOS token as SEP, and no EOS."""
    eos = _eos_of(files)
    for name in (CONFIG, MAP):
        files.get(name, {}).pop("eos_token", None)
    files.setdefault(CONFIG, {})["sep_token"] = eos


def truncating(files):
    files[DEFINITION]["truncation"] = {
        "direction": "Right",
        "max_length": 5,
        "strategy": "LongestFirst",
        "stride": 0,
    }


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


def together(*changes):
    def change(files):
        for one in changes:
            one(files)

    return change


VARIANTS = {
    "as published": together(),
    "tokenizer.json alone": without(
        CONFIG, MAP, ADDED, MODEL_CONFIG, "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model"
    ),
    "no config.json": without(MODEL_CONFIG),
    "no special_tokens_map": without(MAP),
    "no tokenizer_config": without(CONFIG),
    "no vocabulary files": without("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model"),
    "no added_tokens_decoder": without_decoder,
    "no tokenizer_class": setting(tokenizer_class=...),
    "class unknown": setting(tokenizer_class="NoSuchTokenizer"),
    "class generic": setting(tokenizer_class="PreTrainedTokenizerFast"),
    "class TokenizersBackend": setting(tokenizer_class="TokenizersBackend"),
    "class GPT2": setting(tokenizer_class="GPT2Tokenizer"),
    "class Llama": setting(tokenizer_class="LlamaTokenizer"),
    "class LlamaFast": setting(tokenizer_class="LlamaTokenizerFast"),
    "class Qwen2": setting(tokenizer_class="Qwen2Tokenizer"),
    "class GPTNeoX": setting(tokenizer_class="GPTNeoXTokenizer"),
    "class Gemma": setting(tokenizer_class="GemmaTokenizer"),
    "model_type llama": model_type("llama"),
    "model_type qwen2": model_type("qwen2"),
    "model_type mistral": model_type("mistral"),
    "model_type phi3": model_type("phi3"),
    "model_type gpt_neox": model_type("gpt_neox"),
    "add_prefix_space": setting(add_prefix_space=True),
    "add_prefix_space off": setting(add_prefix_space=False),
    "add_bos": setting(add_bos_token=True),
    "add_bos off": setting(add_bos_token=False),
    "add_eos": setting(add_eos_token=True),
    "add_bos, add_eos": setting(add_bos_token=True, add_eos_token=True),
    "add_bos off, add_eos": setting(add_bos_token=False, add_eos_token=True),
    "split_special_tokens": setting(split_special_tokens=True),
    "decoder: new special": decoder_new("<|new|>", "<|newer|>"),
    "decoder: new, gap": decoder_new("<|new|>", first=7),
    "decoder: new, not special": decoder_new("<|new|>", special=False),
    "decoder: new, normalized": decoder_new("New Word", special=False, normalized=True),
    "decoder: new, lstrip rstrip": decoder_new("<|new|>", lstrip=True, rstrip=True),
    "decoder: new, single_word": decoder_new("fox", single_word=True),
    "decoder: existing piece": decoder_new("The"),
    "decoder: eos lstrip": decoder_flags(lstrip=True),
    "decoder: eos rstrip": decoder_flags(rstrip=True),
    "decoder: eos normalized": decoder_flags(normalized=True),
    "decoder: eos single_word": decoder_flags(single_word=True),
    "decoder: eos not special": decoder_flags(special=False),
    "decoder: eos renamed": decoder_renamed,
    "added_tokens.json: new": added_tokens_file(**{"<|new|>": 0, "<|newer|>": 0}),
    "added_tokens.json: new, no decoder": together(
        without_decoder, added_tokens_file(**{"<|new|>": 0, "<|newer|>": 0})
    ),
    "additional: new": setting(additional_special_tokens=["<|new|>", "<|newer|>"]),
    "additional: new with flags": setting(
        additional_special_tokens=[{"__type": "AddedToken", **token("<|new|>", lstrip=True)}]
    ),
    "additional: existing piece": setting(additional_special_tokens=["The"]),
    "additional in map": mapping(additional_special_tokens=["<|new|>"]),
    "extra_special_tokens list": setting(extra_special_tokens=["<|new|>"]),
    "extra_special_tokens dict": setting(extra_special_tokens={"image_token": "<|new|>"}),
    "pad new": setting(pad_token="<|new|>"),
    "pad new with flags": setting(pad_token={"__type": "AddedToken", **token("<|new|>", rstrip=True)}),
    "pad new in map": mapping(pad_token="<|new|>"),
    "pad new in map, no decoder": together(without_decoder, mapping(pad_token="<|new|>")),
    "bos new, add_bos": setting(bos_token="<|new|>", add_bos_token=True),
    "mask new": setting(mask_token="<|new|>"),
    "eos in map another": mapping(eos_token="The"),
    "eos in map another, no decoder": together(without_decoder, mapping(eos_token="The")),
    "eos in map new, no decoder": together(without_decoder, mapping(eos_token="<|new|>")),
    "eos new": setting(eos_token="<|new|>"),
    "eos null": together(without(MAP), setting(eos_token=None)),
    "eos with lstrip": eos_with(lstrip=True),
    "eos with rstrip": eos_with(rstrip=True),
    "eos with normalized": eos_with(normalized=True),
    "eos with rstrip, no decoder": together(eos_with(rstrip=True), without_decoder),
    "eos with rstrip in map, no decoder": together(
        without_decoder,
        lambda files: files.setdefault(MAP, {}).update(eos_token=token(_eos_of(files), rstrip=True)),
    ),
    "sep alone": only_sep,
    "sep alone, no map": together(only_sep, without(MAP)),
    "truncation": truncating,
    "padding": padding,
    "clean_up_tokenization_spaces": setting(clean_up_tokenization_spaces=True),
    "legacy": setting(legacy=True),
    "legacy off": setting(legacy=False),
    "from_slow": setting(from_slow=True),
    "do_lower_case": setting(do_lower_case=True),
    "do_lower_case off": setting(do_lower_case=False),
    "strip_accents": setting(strip_accents=True),
    "tokenize_chinese_chars off": setting(tokenize_chinese_chars=False),
    "add_prefix_space, legacy off": setting(add_prefix_space=True, legacy=False),
    "model_type gpt2": model_type("gpt2"),
    "model_type gemma2": model_type("gemma2"),
    "model_type bloom": model_type("bloom"),
    "class in config.json": together(
        setting(tokenizer_class=...),
        lambda files: files.update(
            {MODEL_CONFIG: {"model_type": "llama", "tokenizer_class": "PreTrainedTokenizerFast"}}
        ),
    ),
    "model_specific_special_tokens": setting(model_specific_special_tokens={"x_token": "<|new|>"}),
    "transformers_version": lambda files: files.setdefault(MODEL_CONFIG, {}).update(
        transformers_version="4.38.2"
    ),
    "added tokens normalized in file": definition_decoder(normalized=True),
    "auto_map": setting(auto_map={"AutoTokenizer": ["tokenization_x.XTokenizer", None]}),
}


@dataclass
class Directory:
    """Files of a tokenizer's directory, by name; ``texts`` are its hostile texts."""

    family: str
    variant: str
    files: dict
    texts: list = field(default_factory=list)

    def write(self, path):
        """Write the files into a new directory and return its path."""
        path = Path(path)
        path.mkdir(parents=True)
        for name, content in self.files.items():
            plain = content
            if not isinstance(content, str | bytes):
                plain = json.dumps(content, ensure_ascii=False)
            (path / name).write_bytes(plain if isinstance(plain, bytes) else plain.encode())
        return path


def special_texts(files, seed):
    """Return texts with the tokens that any file of a directory names, with and without spaces around."""
    names = ["<|new|>", "<|newer|>", "<|renamed|>", "New Word", "The", "fox"]
    names += [known["content"] for known in files[DEFINITION]["added_tokens"]]
    generator = random.Random(seed)
    texts = []
    for name in names:
        texts += [name, f"a {name} b", f"a{name}b", f"  {name}  x", f"{name}\n\n{name} ", f"x{name}{name}"]
    between = ["", " ", "  ", "\n", "a", " b", "…", "'s"]
    texts += [
        "".join(generator.choice(between) + generator.choice(names) for _ in range(5)) for _ in range(20)
    ]
    return texts


def published(family, definition):
    """Return the files of a family with a published tokenizer.json, and no vocabulary files."""
    files = FAMILIES[family]()
    known = {token["content"] for token in definition["added_tokens"]}
    without("vocab.json", "merges.txt", "vocab.txt", ADDED)(files)
    files[DEFINITION] = definition
    if "added_tokens_decoder" in files[CONFIG]:
        files[CONFIG]["added_tokens_decoder"] = decoder_of(definition)
    names = files[CONFIG].get("additional_special_tokens")
    if names:
        files[CONFIG]["additional_special_tokens"] = [name for name in names if name in known]
    return files


def directory(family, variant, *, count=40, base=None, name=None):
    """Return a directory of a family with one change, or with several, joined by `` + ``.

    ``base``: the files to change, by default those of the family; ``name``: the name to show for them.
    """
    files = copy.deepcopy(base) if base else FAMILIES[family]()
    for one in variant.split(" + "):
        VARIANTS[one](files)
    texts = [*ENGLISH, *special_texts(files, variant), *random_texts(f"{family} {variant}", count)]
    return Directory(name or family, variant, files, texts)


def combinations(seed, count):
    """Return names of random combinations of two or three changes."""
    generator = random.Random(seed)
    names = list(VARIANTS)[1:]
    return [" + ".join(generator.sample(names, generator.choice((2, 2, 3)))) for _ in range(count)]
