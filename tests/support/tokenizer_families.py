"""Tokenizer directories as the families publish them, with small vocabularies.

A directory is a dictionary from file names to contents: JSON values, or text or bytes for other files.
"""

import copy

from support.directory_cases import ADDED, CONFIG, DEFINITION, MAP, MODEL_CONFIG, decoder_of, token
from support.tokenizer_definitions import (
    BYTE_LEVEL,
    GPT2_BYTE_LEVEL,
    METASPACE,
    added,
    definition_of,
    sequence,
    split,
    template,
)
from support.tokenizer_definitions import characters as _characters
from support.tokenizer_files import LLAMA3_PATTERN, QWEN_PATTERN
from support.trained_models import byte_model, sentencepiece_model, unigram_model, wordpiece_model

O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPENDED_MARKS = sequence({"type": "Prepend", "prepend": "▁"}, MARKS, key="normalizers")
FIRST_METASPACE = {**METASPACE, "prepend_scheme": "first"}
NFC = {"type": "NFC"}


# Parts of definitions and of the files beside them


def bytes_with(names, *, pre=GPT2_BYTE_LEVEL, ids_in_vocabulary=True, flags=(), **parts):
    """Return a byte-level BPE with special tokens ``names``, in the vocabulary or after it."""
    model = {"type": "BPE", **copy.deepcopy(byte_model())}
    flags = dict(flags)
    tokens = []
    for name in names:
        index = len(model["vocab"]) if ids_in_vocabulary else len(model["vocab"]) + len(tokens)
        if ids_in_vocabulary:
            model["vocab"][name] = index
        tokens.append(added(index, name, **flags.get(name, {})))
    return {
        **definition_of(model, pre_tokenizer=pre, post_processor=GPT2_BYTE_LEVEL, decoder=GPT2_BYTE_LEVEL),
        "added_tokens": tokens,
        **parts,
    }


def characters(names=(), *, flags=(), **parts):
    """Return a SentencePiece-like BPE (<unk>, <s>, </s> and bytes first), with further special tokens."""
    definition = _characters()
    flags = dict(flags)
    for known in definition["added_tokens"]:
        known.update(flags.get(known["content"], {}))
    for name in names:
        index = len(definition["model"]["vocab"])
        definition["model"]["vocab"][name] = index
        definition["added_tokens"].append(added(index, name, **flags.get(name, {})))
    return {**definition, **parts}


def ids_of(definition):
    return {known["content"]: known["id"] for known in definition["added_tokens"]}


def with_bos(definition, name):
    """Set the post-processor that adds a token before texts."""
    definition["post_processor"] = template(name, "A", ids={name: [ids_of(definition)[name]]})
    return definition


def decoder(definition):
    """Return the added_tokens_decoder that transformers writes for a definition."""
    return decoder_of(definition["added_tokens"])


def typed(content, **flags):
    """Return a token with its flags as tokenizer_config.json names it."""
    return {"__type": "AddedToken", **token(content, **flags)}


def flagged(**named):
    """Return special tokens with their flags as special_tokens_map.json names them."""
    return {name: token(content) for name, content in named.items()}


def another(files, definition, kind=None, **config):
    """Return the files of another model of a family: its definition, model type and settings."""
    files[DEFINITION] = definition
    files[CONFIG].update(added_tokens_decoder=decoder(definition), **config)
    if kind is not None:
        files[MODEL_CONFIG] = {"model_type": kind}
    return files


# SentencePiece-like BPE


_LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def llama2(**changes):
    definition = with_bos(characters(**{"normalizer": PREPENDED_MARKS, **changes}), "<s>")
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": decoder(definition),
            **_LLAMA_TOKENS,
            "clean_up_tokenization_spaces": False,
            "legacy": False,
            "pad_token": None,
            "padding_side": "right",
            "sp_model_kwargs": {},
            "tokenizer_class": "LlamaTokenizer",
        },
        MAP: flagged(**_LLAMA_TOKENS),
        MODEL_CONFIG: {"model_type": "llama"},
    }


def llama2_metaspace():
    files = llama2(normalizer=None, pre_tokenizer=FIRST_METASPACE)
    files[CONFIG]["tokenizer_class"] = "LlamaTokenizerFast"
    return files


def llama2_old():
    """As published in 2023: no added_tokens_decoder, tokens with flags in the configuration."""
    files = llama2()
    config = files[CONFIG]
    for key in ("added_tokens_decoder", "legacy"):
        del config[key]
    config.update({name: typed(content, normalized=True) for name, content in _LLAMA_TOKENS.items()})
    for known in files[DEFINITION]["added_tokens"]:
        known["normalized"] = True
    return files


def llama2_model():
    """With the SentencePiece model from which some settings convert the tokenizer again."""
    content, vocabulary, merges = copy.deepcopy(sentencepiece_model())
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary,
        "merges": merges,
    }
    definition = definition_of(model, normalizer=PREPENDED_MARKS)
    definition["added_tokens"] = [added(vocabulary[name], name) for name in ("<unk>", "<s>", "</s>")]
    files = another(llama2(), with_bos(definition, "<s>"))
    files["tokenizer.model"] = content
    return files


def mistral_model():
    files = llama2_model()
    files[DEFINITION].update(normalizer=None, pre_tokenizer=FIRST_METASPACE)
    files[MODEL_CONFIG] = {"model_type": "mistral"}
    return files


def codellama():
    names = ["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"]
    definition = with_bos(characters(names, normalizer=PREPENDED_MARKS), "<s>")
    files = another(
        llama2(),
        definition,
        tokenizer_class="CodeLlamaTokenizer",
        additional_special_tokens=names,
        prefix_token="▁<PRE>",
        middle_token="▁<MID>",
        suffix_token="▁<SUF>",
        eot_token="▁<EOT>",
        fill_token="<FILL_ME>",
        suffix_first=False,
    )
    files[CONFIG].pop("legacy")
    files[MAP]["additional_special_tokens"] = names
    return files


def mistral():
    names = ["[INST]", "[/INST]", "[TOOL_CALLS]"]
    definition = with_bos(characters(names, pre_tokenizer=FIRST_METASPACE), "<s>")
    return another(llama2(), definition, "mistral", add_prefix_space=None)


def phi3():
    names = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    flags = {name: {"rstrip": True} for name in ("</s>", *names[1:])}
    definition = characters(
        names, flags=flags, normalizer=PREPENDED_MARKS, post_processor=template("A", ids={})
    )
    end = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    files = another(llama2(), definition, "phi3", add_bos_token=False, **end)
    files[MAP] = flagged(bos_token="<s>", **end, unk_token="<unk>")
    files[ADDED] = {name: index for name, index in ids_of(definition).items() if name in names}
    return files


def yi():
    names = ["<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    named = {"bos_token": names[0], "eos_token": names[1]}
    files = another(
        llama2(),
        characters(names, normalizer=MARKS),
        add_bos_token=False,
        **named,
        pad_token="<unk>",
        legacy=True,
    )
    files[MAP] = flagged(**named)
    return files


def gemma():
    names = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<mask>"]
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    pre = split(" ", "MergedWithPrevious", "String")
    definition = with_bos(characters(names, normalizer=MARKS, pre_tokenizer=pre), "<bos>")
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": decoder(definition),
            "additional_special_tokens": names[3:5],
            **named,
            "clean_up_tokenization_spaces": False,
            "spaces_between_special_tokens": False,
            "sp_model_kwargs": {},
            "tokenizer_class": "GemmaTokenizer",
        },
        MAP: {"additional_special_tokens": names[3:5], **flagged(**named)},
        MODEL_CONFIG: {"model_type": "gemma2"},
    }


# Byte-level BPE


_ONE_TOKEN = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def gpt2():
    definition = bytes_with(["<|endoftext|>"])
    model = definition["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {
        DEFINITION: definition,
        CONFIG: {"model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False},
        MAP: dict(_ONE_TOKEN),
        "vocab.json": model["vocab"],
        "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
        MODEL_CONFIG: {"model_type": "gpt2"},
    }


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"]
    named = {"bos_token": names[0], "eos_token": names[1]}
    definition = bytes_with(names, pre=sequence(split(LLAMA3_PATTERN), BYTE_LEVEL), ids_in_vocabulary=False)
    definition["model"]["ignore_merges"] = True
    with_bos(definition, names[0])
    definition["post_processor"] = sequence(GPT2_BYTE_LEVEL, definition["post_processor"], key="processors")
    return {
        DEFINITION: definition,
        CONFIG: {
            "added_tokens_decoder": decoder(definition),
            **named,
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        MAP: flagged(**named),
        MODEL_CONFIG: {"model_type": "llama"},
    }


def nemotron():
    names = ["<unk>", "<s>", "</s>", "[INST]", "<SPECIAL_10>"]
    pre = sequence(split(LLAMA3_PATTERN.replace("{1,3}", "")), BYTE_LEVEL)
    definition = with_bos(bytes_with(names, pre=pre), "<s>")
    files = another(llama3(), definition, "nemotron_h", **_LLAMA_TOKENS)
    files[MAP] = flagged(**_LLAMA_TOKENS)
    return files


def qwen2():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    definition = bytes_with(
        names,
        pre=sequence(split(QWEN_PATTERN), BYTE_LEVEL),
        ids_in_vocabulary=False,
        normalizer=NFC,
        post_processor=BYTE_LEVEL,
    )
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder(definition),
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


def qwen3():
    files = qwen2()
    files[CONFIG].update(add_bos_token=False, chat_template="{{ messages }}", extra_special_tokens={})
    files[MODEL_CONFIG] = {"model_type": "qwen3"}
    return files


def deepseek():
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>"]
    pre = sequence(
        split(r"[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        {"type": "Digits", "individual_digits": True},
        BYTE_LEVEL,
    )
    flags = {"<｜User｜>": {"special": False}}
    definition = bytes_with(names, pre=pre, flags=flags, normalizer=sequence(key="normalizers"))
    return {
        DEFINITION: with_bos(definition, names[0]),
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": typed(names[0], normalized=True),
            "eos_token": typed(names[1], normalized=True),
            "pad_token": typed(names[1], normalized=True),
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
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"}
    flags = {name: {"special": False, "normalized": True} for name in names[2:]}
    definition = bytes_with(names, flags=flags, ids_in_vocabulary=False, normalizer=NFC)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": False,
            "add_eos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": decoder(definition),
            "bos_token": None,
            **named,
            "tokenizer_class": "GPTNeoXTokenizer",
        },
        MAP: named,
        MODEL_CONFIG: {"model_type": "olmo"},
    }


def neox():
    files = olmo()
    files[CONFIG] = {"add_prefix_space": False, **_ONE_TOKEN, "tokenizer_class": "GPTNeoXTokenizer"}
    files[MAP] = dict(_ONE_TOKEN)
    files[MODEL_CONFIG] = {"model_type": "gpt_neox"}
    return files


def cl100k():
    names = ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"]
    pre = sequence(split(LLAMA3_PATTERN, "Removed", invert=True), BYTE_LEVEL)
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False)
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder(definition),
            **_ONE_TOKEN,
            "tokenizer_class": "GPT2Tokenizer",
        },
        MAP: dict(_ONE_TOKEN),
        MODEL_CONFIG: {"model_type": "olmo2"},
    }


def starcoder():
    names = ["<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<reponame>"]
    pre = sequence({"type": "Digits", "individual_digits": True}, GPT2_BYTE_LEVEL)
    files = another(
        cl100k(),
        bytes_with(names, pre=pre),
        "gpt_bigcode",
        additional_special_tokens=names,
        vocab_size=len(names),
    )
    files[MAP]["additional_special_tokens"] = names
    return files


def smollm():
    """GPT2Tokenizer over a file that splits digits."""
    files = starcoder()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    another(
        files,
        bytes_with(names, pre=files[DEFINITION]["pre_tokenizer"], post_processor=None),
        "llama",
        additional_special_tokens=names[1:3],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    files[MAP] = flagged(bos_token="<|im_start|>", eos_token="<|im_end|>")
    return files


def o200k():
    names = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>"]
    named = {"bos_token": names[0], "eos_token": names[2], "pad_token": names[1]}
    pre = sequence(split(O200K_PATTERN), BYTE_LEVEL)
    definition = bytes_with(names, pre=pre, ids_in_vocabulary=False, post_processor=template("A", ids={}))
    files = another(llama3(), definition, "gpt_oss", **named, extra_special_tokens={})
    files[MAP] = {**named, "eos_token": token(names[2])}
    return files


def falcon():
    names = [">>TITLE<<", ">>ABSTRACT<<", "<|endoftext|>"]
    pre = sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2_BYTE_LEVEL,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    )
    return {
        DEFINITION: bytes_with(names, pre=pre),
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
    named = {**_LLAMA_TOKENS, "pad_token": "<pad>"}
    pre = sequence(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTE_LEVEL)
    return {
        DEFINITION: bytes_with(names, pre=pre, post_processor=BYTE_LEVEL),
        CONFIG: {
            "add_prefix_space": False,
            **named,
            "padding_side": "left",
            "tokenizer_class": "BloomTokenizerFast",
        },
        MAP: named,
        MODEL_CONFIG: {"model_type": "bloom"},
    }


def opt():
    """A GPT2Tokenizer that adds BOS by its configuration."""
    named = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    return {
        DEFINITION: with_bos(bytes_with(["<s>", "<pad>", "</s>", "<unk>"]), "</s>"),
        CONFIG: {
            "add_bos_token": True,
            "add_prefix_space": False,
            "tokenizer_class": "GPT2Tokenizer",
            "errors": "replace",
            **{name: typed(content, normalized=True) for name, content in named.items()},
        },
        MAP: {
            **{name: token(content, normalized=True) for name, content in named.items()},
            "pad_token": "<pad>",
        },
        MODEL_CONFIG: {"model_type": "opt"},
    }


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
        "added_tokens_decoder": decoder(definition),
        **_ONE_TOKEN,
        "return_token_type_ids": False,
        "tokenizer_class": "CodeGenTokenizer",
    }
    files[ADDED] = {run: size + place for place, run in enumerate(runs)}
    files[MODEL_CONFIG] = {"model_type": "phi"}
    return files


def cohere():
    names = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>"]
    named = {"bos_token": "<BOS_TOKEN>", "eos_token": "<EOS_TOKEN>", "pad_token": "<PAD>"}
    pre = sequence({"type": "Digits", "individual_digits": True}, GPT2_BYTE_LEVEL)
    definition = with_bos(bytes_with(names, pre=pre, normalizer=NFC), "<BOS_TOKEN>")
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": decoder(definition),
            **named,
            "unk_token": "<UNK>",
            "legacy": True,
            "merges_file": None,
            "vocab_file": None,
            "use_default_system_prompt": False,
            "tokenizer_class": "CohereTokenizer",
        },
        MAP: named,
        MODEL_CONFIG: {"model_type": "cohere"},
    }


_ROBERTA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}


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
    return {
        DEFINITION: definition,
        CONFIG: {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder(definition),
            **_ROBERTA_TOKENS,
            "mask_token": "<mask>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "trim_offsets": True,
            "tokenizer_class": "RobertaTokenizer",
        },
        MAP: {**_ROBERTA_TOKENS, "mask_token": token("<mask>", lstrip=True), "pad_token": "<pad>"},
        MODEL_CONFIG: {"model_type": "roberta"},
    }


# Unigram and WordPiece


def t5():
    model = {"type": "Unigram", **copy.deepcopy(unigram_model())}
    names = ["<pad>", "</s>", "<unk>", "<extra_id_2>", "<extra_id_1>", "<extra_id_0>"]
    named = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    model["vocab"] += [[name, 0.0] for name in names[3:]]
    places = {piece: place for place, (piece, _) in enumerate(model["vocab"])}
    tokens = [added(places[name], name) for name in names]
    definition = definition_of(
        model,
        added_tokens=sorted(tokens, key=lambda known: known["id"]),
        normalizer={"type": "NFKC"},
        pre_tokenizer={**METASPACE, "split": True},
        post_processor=template("A", "</s>", ids={"</s>": [places["</s>"]]}),
    )
    extra = names[:2:-1]
    return {
        DEFINITION: definition,
        CONFIG: {
            "additional_special_tokens": extra,
            **named,
            "extra_ids": 3,
            "model_max_length": 512,
            "tokenizer_class": "T5Tokenizer",
        },
        MAP: {"additional_special_tokens": extra, **named},
        MODEL_CONFIG: {"model_type": "t5"},
    }


def xlm_roberta():
    definition = t5()[DEFINITION]
    vocabulary = definition["model"]["vocab"]
    for name in ("<s>", "<mask>"):
        definition["added_tokens"].append(added(len(vocabulary), name, lstrip=name == "<mask>"))
        vocabulary.append([name, 0.0])
    ids = {name: [index] for name, index in ids_of(definition).items() if name in {"<s>", "</s>"}}
    definition["post_processor"] = template("<s>", "A", "</s>", ids=ids)
    named = {**_ROBERTA_TOKENS, "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    return {
        DEFINITION: definition,
        CONFIG: {
            **named,
            "added_tokens_decoder": decoder(definition),
            "tokenizer_class": "XLMRobertaTokenizer",
        },
        MAP: {**named, "mask_token": token("<mask>", lstrip=True)},
        MODEL_CONFIG: {"model_type": "xlm-roberta"},
    }


def bert():
    model = {"type": "WordPiece", **copy.deepcopy(wordpiece_model())}
    named = {
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
    }
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ids = {name: [model["vocab"][name]] for name in ("[CLS]", "[SEP]")}
    definition = definition_of(
        model,
        added_tokens=[added(model["vocab"][name], name) for name in names],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=template("[CLS]", "A", "[SEP]", ids=ids),
    )
    return {
        DEFINITION: definition,
        CONFIG: {
            **named,
            "added_tokens_decoder": decoder(definition),
            "do_lower_case": True,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
        },
        MAP: dict(named),
        MODEL_CONFIG: {"model_type": "bert"},
        "vocab.txt": "\n".join(sorted(model["vocab"], key=model["vocab"].get)) + "\n",
    }


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
