"""Directories of tokenizers: those of the families, with changes of the files beside the definition."""

import copy
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from support.directory_cases import ADDED, CONFIG, DEFINITION, MAP, MODEL_CONFIG, token
from support.tokenizer_definitions import random_texts
from support.tokenizer_families import FAMILIES, decoder, typed
from support.trained_models import ENGLISH

VOCABULARIES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")

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


def _decoder_of(files):
    config = files.setdefault(CONFIG, {})
    return config.setdefault("added_tokens_decoder", decoder(files[DEFINITION]))


def decoder_flags(**flags):
    """Return the change of the flags of the EOS token in added_tokens_decoder."""

    def change(files):
        eos = _eos_of(files)
        for known in _decoder_of(files).values():
            if known["content"] == eos:
                known.update(flags)

    return change


def decoder_new(*contents, first=0, **flags):
    """Return the change that adds tokens to added_tokens_decoder, after the last id and ``first`` more."""

    def change(files):
        known_tokens = _decoder_of(files)
        definition = files[DEFINITION]
        ids = [known["id"] for known in definition["added_tokens"]]
        size = max(len(definition["model"]["vocab"]), max(ids, default=-1) + 1)
        for place, content in enumerate(contents):
            known_tokens[str(size + first + place)] = token(content, **{"special": True, **flags})

    return change


def decoder_renamed(files):
    """Give the EOS token's id another content."""
    eos = _eos_of(files)
    for known in _decoder_of(files).values():
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
        files.setdefault(CONFIG, {})["eos_token"] = typed(eos, **flags)

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
    "tokenizer.json alone": without(CONFIG, MAP, ADDED, MODEL_CONFIG, *VOCABULARIES),
    "no config.json": without(MODEL_CONFIG),
    "no special_tokens_map": without(MAP),
    "no tokenizer_config": without(CONFIG),
    "no vocabulary files": without(*VOCABULARIES),
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
    "additional: new with flags": setting(additional_special_tokens=[typed("<|new|>", lstrip=True)]),
    "additional: existing piece": setting(additional_special_tokens=["The"]),
    "additional in map": mapping(additional_special_tokens=["<|new|>"]),
    "extra_special_tokens list": setting(extra_special_tokens=["<|new|>"]),
    "extra_special_tokens dict": setting(extra_special_tokens={"image_token": "<|new|>"}),
    "pad new": setting(pad_token="<|new|>"),
    "pad new with flags": setting(pad_token=typed("<|new|>", rstrip=True)),
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
        files[CONFIG]["added_tokens_decoder"] = decoder(definition)
    names = files[CONFIG].get("additional_special_tokens")
    if names:
        files[CONFIG]["additional_special_tokens"] = [name for name in names if name in known]
    return files


def directory(family, variant, *, count=40, base=None, name=None):
    """Return a directory of a family with one change, or with several, joined by `` + ``.

    ``base``: the files to change, by default those of the family; ``name``: the name to show for them.
    """
    files = copy.deepcopy(base or FAMILIES[family]())
    for one in variant.split(" + "):
        VARIANTS[one](files)
    texts = [*ENGLISH, *special_texts(files, variant), *random_texts(f"{family} {variant}", count)]
    return Directory(name or family, variant, files, texts)


def combinations(seed, count):
    """Return names of random combinations of two or three changes."""
    generator = random.Random(seed)
    names = list(VARIANTS)[1:]
    return [" + ".join(generator.sample(names, generator.choice((2, 2, 3)))) for _ in range(count)]
