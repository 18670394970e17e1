"""Settings next to a ``tokenizer.json`` that change its ids when transformers loads the directory.

A directory is plain if transformers 4.57 and 5 both give exactly the ids of its ``tokenizer.json``, even
after Megatron's wrapper has added BOS, EOS, CLS and SEP once more. :func:`plain_eos_token` proves that, or
names the first setting that changes ids or may change them. Version 4 changes parts of the file; most classes
of version 5 keep vocabulary, merges and added tokens and rebuild the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokshard.text.tokenizer import canonical
from tokshard.text.tokenizer.files import token_text
from tokshard.text.tokenizer.huggingface import added_token_ids, template_ids
from tokshard.text.tokenizer.tiktoken_files import QWEN3_5_PATTERN, QWEN_PATTERN

SETTINGS_FILES: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
"""Files next to a tokenizer's definition that tell how transformers reads it."""

_CONFIG, _MAP, _ADDED, _MODEL_CONFIG = SETTINGS_FILES
_NAMED_TOKENS: Final = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
_DECODER: Final = "added_tokens_decoder"
_FLAGS: Final = ("add_bos_token", "add_eos_token", "add_prefix_space")
_ADDED_BY_MEGATRON: Final = ("bos_token", "eos_token", "cls_token", "sep_token")
_TOKEN_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_BACKEND: Final = "TokenizersBackend"
_SHOWN_CHARACTERS: Final = 80

# Settings that no class in _CLASSES uses, in tokenizer_config.json of published directories.
_UNUSED: Final = """
    backend chat_template clean_up_tokenization_spaces device_map errors extra_ids is_local language legacy
    local_files_only max_length max_len model_input_names model_max_length name_or_path pad_to_multiple_of
    pad_token_id pad_token_type_id padding padding_side processor_class response_schema return_tensors
    return_token_type_ids sp_model_kwargs spaces_between_special_tokens special_tokens_map_file stride
    tokenize_chinese_chars tokenizer_type tokenizer_version torch_dtype transformers_version trim_offsets
    truncation truncation_side truncation_strategy use_default_system_prompt use_fast verbose vocab_size
"""
# Settings that change ids unless they are absent, null, false or empty.
_SWITCHES: Final = """
    do_lower_case fast_tokenizer_files fix_mistral_regex from_slow init_inputs keep_accents merges_file
    remove_space split_special_tokens strip_accents tokenizer_file vocab_file
"""


class IdsChangedError(Exception):
    """A setting changes ids, or may change them; the message names it.

    Attributes:
        hint: An instruction for the user if transformers must not read the directory; None if it may.
    """

    def __init__(self, setting: str, *, hint: str | None = None) -> None:
        super().__init__(setting)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Class:
    """A tokenizer class of transformers.

    Attributes:
        tokens: Its special tokens where the files name none.
        adds_bos: The default of add_bos_token in version 4, if version 4 makes a post-processor of
            add_bos_token and add_eos_token; None if it keeps the post-processor of the file.
        parts: The parts that version 5 builds; None if it keeps the parts of the file.
        adds_again: Whether version 5 adds all special tokens once more, without flags.
    """

    tokens: Mapping[str, str | None]
    adds_bos: bool | None = None
    parts: Mapping[str, Any] | None = None
    adds_again: bool = False


def _named(**tokens: str | None) -> dict[str, str | None]:
    return {f"{name}_token": token for name, token in tokens.items()}


def _part(kind: str, **options: Any) -> dict[str, Any]:
    return {"type": kind, **options}


def _qwen(pattern: str) -> _Class:
    split = _part("Split", pattern={"Regex": pattern}, behavior="Isolated")
    pieces = _part("Sequence", pretokenizers=[split, {**_BYTE_LEVEL, "use_regex": False}])
    tokens = {**_GPT2.tokens, **_named(bos=None, pad=_TEXT_END)}
    return _Class(tokens, parts={**_NFC, "pre_tokenizer": pieces}, adds_again=True)


_TEXT_END: Final = "<|endoftext|>"
_BYTE_LEVEL: Final = _part("ByteLevel", add_prefix_space=False)
_NFC: Final = {"normalizer": _part("NFC")}
_SPACE: Final = {"String": " "}
_LLAMA_MODEL: Final = {"fuse_unk": True, "byte_fallback": True}
_GENERIC: Final = _Class({})
_GPT2: Final = _Class(
    _named(bos=_TEXT_END, eos=_TEXT_END, unk=_TEXT_END), parts={"pre_tokenizer": _BYTE_LEVEL}
)
_GPT_NEOX: Final = _Class(
    {**_GPT2.tokens, **_named(pad="<|padding|>")}, adds_bos=False, parts={**_NFC, **(_GPT2.parts or {})}
)
_LLAMA: Final = _Class(
    _named(bos="<s>", eos="</s>", unk="<unk>"),
    adds_bos=True,
    parts={"model": _LLAMA_MODEL, "pre_tokenizer": _part("Metaspace", prepend_scheme="first", split=False)},
)
_CLASSES: Final[Mapping[str, _Class]] = {
    "PreTrainedTokenizer": _GENERIC,
    _BACKEND: _GENERIC,  # the same in version 5; version 4 does not load it
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "BloomTokenizer": _Class({**_LLAMA.tokens, **_named(pad="<pad>")}),
    "GPTNeoXTokenizer": _GPT_NEOX,
    "CohereTokenizer": _Class(
        {
            **_named(bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", unk="<UNK>", pad="<PAD>"),
            **_named(cls="<CLS>", sep="<SEP>", mask="<MASK_TOKEN>"),
        },
        adds_bos=True,
        parts={
            **_NFC,
            "pre_tokenizer": _part(
                "Sequence", pretokenizers=[_part("Digits", individual_digits=True), _BYTE_LEVEL]
            ),
        },
        adds_again=True,
    ),
    "Qwen2Tokenizer": _qwen(QWEN_PATTERN),
    "Qwen3_5Tokenizer": _qwen(QWEN3_5_PATTERN),
    "LlamaTokenizer": _LLAMA,
    "GemmaTokenizer": _Class(
        _named(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
        adds_bos=True,
        parts={
            "model": {**_LLAMA_MODEL, "unk_token": "<unk>"},
            "normalizer": _part("Replace", pattern=_SPACE, content="\N{LOWER ONE EIGHTH BLOCK}"),
            "pre_tokenizer": _part("Split", pattern=_SPACE, behavior="MergedWithPrevious"),
        },
    ),
}
# Types of models of which version 5 keeps the parts of the file, whatever class is named.
_GENERIC_TYPES: Final = """
    arctic aria flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe gpt_bigcode granite granitemoe
    granitemoehybrid granitemoeshared internlm2 internlm3 jamba kimi_k25 kimi_linear llava llava_next
    mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral modernbert
    molmo nemotron nystromformer olmo2 olmo3 olmo_hybrid opencua persimmon phi3 phimoe pixtral smolvlm
    stablelm step3_vl vipllava voxtral
"""
# Types of models of which version 5 takes its own class, whatever class is named.
_CLASS_OF_TYPE: Final = {
    "qwen2": "Qwen2Tokenizer",
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp"), "Qwen3_5Tokenizer"
    ),
    "hyperclovax_vision_v2": "GPT2Tokenizer",
    "siglip2": "Siglip2Tokenizer",
}
# Types of models whose class is the same in both versions, for directories that name no class.
_CLASS_OF_UNNAMED: Final = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "olmo", "olmoe", "mamba", "mamba2", "mpt", "rwkv"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    "falcon": "PreTrainedTokenizer",
}


def plain_eos_token(definition: dict[str, Any], files: Mapping[str, dict[str, Any]]) -> str | None:
    """Return the token that ends documents in a plain directory, EOS or else SEP; None if it names neither.

    Args:
        definition: The parsed ``tokenizer.json``.
        files: The parsed files next to it, by the names in :data:`SETTINGS_FILES`.

    Raises:
        IdsChangedError: The directory is not plain.

    Example:
        >>> end = {"id": 1, "content": "<end>", "special": True, "normalized": False}
        >>> model = {"type": "BPE", "vocab": {"a": 0, "<end>": 1}, "merges": []}
        >>> settings = {"tokenizer_config.json": {"eos_token": "<end>"}}
        >>> plain_eos_token({"model": model, "added_tokens": [end]}, settings)
        '<end>'
    """
    config, model_config = files.get(_CONFIG) or {}, files.get(_MODEL_CONFIG) or {}
    _check_config(config, model_config)
    names = _classes(config, model_config, definition)
    for name in names:
        if name not in _CLASSES:
            raise IdsChangedError(f"tokenizer_class {name}")
    first, newest = (_CLASSES[name] for name in names)
    settings = config if _DECODER in config else _with_map(config, files.get(_MAP) or {})
    if settings.get("eos_token") is None:
        # Only version 5 has a default of SEP, and the versions may take different classes.
        name = "sep_token" if "eos_token" in settings else "eos_token"
        is_known = model_config.get("model_type") in (None, *_CLASS_OF_UNNAMED)
        is_same = first is newest and is_known and name == "eos_token"
        if not is_same and (first.tokens.get(name) or newest.tokens.get(name)):
            raise IdsChangedError("eos_token is missing")
    settings = {**first.tokens, **newest.tokens, **settings}
    if isinstance(definition.get("padding"), dict):
        settings.setdefault("pad_token", definition["padding"].get("pad_token"))
    tokens = list(_special_tokens(settings))
    added = _AddedTokens(definition)
    if _DECODER in config:
        added.check_decoder(config[_DECODER], is_whole=newest.parts is None)
        known = {token["content"] for token in config[_DECODER].values()}
    else:
        added.check_file(files.get(_ADDED) or {}, {token["content"] for _, token in tokens})
        known = set(added.ids)
    for setting, token in tokens:
        # Tokens whose flags are known by another file keep them.
        if setting not in _NAMED_TOKENS or token["content"] not in known:
            added.check(token, setting)
        if newest.adds_again or setting in _ADDED_BY_MEGATRON:
            again = f", which {names[1] if newest.adds_again else 'Megatron'} adds again"
            added.check(_token(token["content"], setting), setting, again)
    _check_pre_tokenizer(definition, settings, converts=first is _LLAMA)
    _check_post_processor(definition, settings, first, newest, added.ids)
    if newest.parts is not None:
        _check_built(definition, newest.parts, names[1])
        if newest is _LLAMA and settings.get("legacy"):
            raise IdsChangedError("legacy True")
    return token_text(settings.get("eos_token")) or token_text(settings.get("sep_token"))


def check_gpt2_class(files: Mapping[str, dict[str, Any]]) -> None:
    """Raise IdsChangedError unless a directory with vocab.json and merges.txt is of GPT-2's class."""
    config, model_config = files.get(_CONFIG) or {}, files.get(_MODEL_CONFIG) or {}
    name = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    kind = model_config.get("model_type")
    if name not in (None, "GPT2Tokenizer", "GPT2TokenizerFast") or (
        name is None and kind not in (None, "gpt2")
    ):
        raise IdsChangedError(f"vocab.json of {name or kind} without a tokenizer.json")
    if config.get("add_bos_token"):
        raise IdsChangedError("add_bos_token True")


def _check_config(config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
    switches = _SWITCHES.split()
    known = {*_UNUSED.split(), *switches, *_FLAGS, *_LISTS, "tokenizer_class", "auto_map", _DECODER}
    for name, value in config.items():
        if name in switches and (value or name == "tokenizer_file"):
            raise IdsChangedError(f"{name} {value!r}"[:_SHOWN_CHARACTERS])
        if name not in known and not name.endswith("_token"):
            raise IdsChangedError(f"{name}, a setting that tokshard does not know")
        if name in {"padding_side", "truncation_side"} and value not in ("left", "right"):
            raise IdsChangedError(f"{name} is neither left nor right")
        if name in _FLAGS and not isinstance(value, bool | None):
            raise IdsChangedError(f"{name} is neither true nor false")
    for settings in (config, model_config):
        code = settings.get("auto_map") or {}
        if not isinstance(code, dict) or "AutoTokenizer" in code:
            raise IdsChangedError(
                "auto_map names code of its own, which tokshard never runs",
                hint="save the tokenizer as a tokenizer.json in the training environment, in a new directory",
            )


def _classes(
    config: Mapping[str, Any], model_config: Mapping[str, Any], definition: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the names of the classes of version 4 and of version 5."""
    kind = model_config.get("model_type") or ""
    named = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if not isinstance(kind, str) or not isinstance(named, str | None):
        raise IdsChangedError("model_type or tokenizer_class is not a name")
    if named is None and kind and kind not in _CLASS_OF_UNNAMED:
        raise IdsChangedError(f"model_type {kind} without a tokenizer_class")
    # Version 4 does not load a directory without both.
    name = (named or _CLASS_OF_UNNAMED.get(kind, _BACKEND)).removesuffix("Fast")
    is_generic = kind in _GENERIC_TYPES.split() or (
        name == "LlamaTokenizer" and kind not in _CLASS_OF_TYPE and _has_byte_level(definition)
    )
    return name, _BACKEND if is_generic else _CLASS_OF_TYPE.get(kind, name)


def _has_byte_level(part: Any) -> bool:
    """Return whether a part of tokenizer.json other than the model has the type ByteLevel."""
    if isinstance(part, dict):
        return any(_has_byte_level(value) for key, value in part.items() if key != "model")
    return any(map(_has_byte_level, part)) if isinstance(part, list) else part == "ByteLevel"


def _with_map(config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of special_tokens_map.json, whose objects are special tokens."""

    def typed(value: Any) -> Any:
        return {"__type": "AddedToken", **value, "special": True} if isinstance(value, dict) else value

    settings = dict(config)
    for key, value in special_tokens_map.items():
        if key in _LISTS:
            known = config.get(key)
            if not isinstance(value, list) or not isinstance(known, list | None):
                raise IdsChangedError(f"{key} is not a list")
            settings[key] = [*(known or ()), *map(typed, value)]
        elif key.endswith("_token"):
            settings[key] = typed(value)
        else:
            raise IdsChangedError(f"{key}, a setting that tokshard does not know")
    return settings


def _special_tokens(settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the special tokens of settings, each with the name of its setting."""
    for name, value in settings.items():
        if name in _LISTS:
            values = list(value.values()) if isinstance(value, dict) and name != _LISTS[0] else value
            if not isinstance(values, list | None):
                raise IdsChangedError(f"{name} is not a list")
            for item in values or ():
                yield name, _token(item, name)
        elif name.endswith("_token") and name not in _FLAGS and value is not None:
            if name not in _NAMED_TOKENS and not isinstance(value, str):
                raise IdsChangedError(f"{name}, a setting that tokshard does not know")
            yield name, _token(value, name)


def _token(value: Any, setting: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"content": value, "normalized": False, "special": True}
    is_token = isinstance(value, dict) and value.get("__type") == "AddedToken"
    if not is_token or not isinstance(value.get("content"), str):
        raise IdsChangedError(
            f"{setting} is not a token",
            hint='write the text of the token, or an object with "__type": "AddedToken" and "content": '
            "transformers refuses other values",
        )
    return {key: flag for key, flag in value.items() if key != "__type"}


class _AddedTokens:
    """The added tokens of a ``tokenizer.json``, and checks that adding tokens again changes none of them."""

    def __init__(self, definition: dict[str, Any]) -> None:
        tokens = definition.get("added_tokens") or []
        self._flags = {token["content"]: _flags(token) for token in tokens}
        self.ids = added_token_ids(definition["model"], self._flags)
        # Without a normalizer, it makes no difference whether the only token is matched before or after it.
        self._compared = 3 if definition.get("normalizer") is None and len(tokens) == 1 else 4
        if [token.get("id", self.ids.get(token["content"])) for token in tokens] != list(self.ids.values()):
            raise IdsChangedError("the ids of the added tokens in tokenizer.json")

    def check(self, token: Any, setting: str, again: str = "") -> None:
        """Raise IdsChangedError unless the file has a token with the same flags.

        Args:
            token: Its text and flags.
            setting: The setting that adds it, for the message.
            again: A clause of the message: the program that adds the token once more.
        """
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or any(
            key not in _TOKEN_FLAGS or not isinstance(flag, bool)
            for key, flag in token.items()
            if key != "content"
        ):
            raise IdsChangedError(f"{setting} is not a token")
        if content not in self._flags:
            raise IdsChangedError(f"{setting} {content!r}, which is not an added token of tokenizer.json")
        if _flags(token)[: self._compared] != self._flags[content][: self._compared]:
            raise IdsChangedError(f"{setting} {content!r}{again} with other flags than in tokenizer.json")

    def check_decoder(self, decoder: Any, *, is_whole: bool) -> None:
        """Check added_tokens_decoder; if ``is_whole``, tokens of the file that it does not list are kept."""
        if not isinstance(decoder, dict):
            raise IdsChangedError(f"{_DECODER} is not an object")
        for index, token in decoder.items():
            self.check(token, _DECODER)
            if index != str(self.ids[token["content"]]):
                raise IdsChangedError(
                    f"{_DECODER} {token['content']!r} with another id than in tokenizer.json"
                )
        if not is_whole and len(decoder) != len(self.ids):
            raise IdsChangedError(f"{_DECODER} without all added tokens of tokenizer.json")

    def check_file(self, added: Mapping[str, Any], special: set[str]) -> None:
        """Check added_tokens.json; ``special``: the special tokens."""
        for content, index in added.items():
            self.check({"content": content, "special": content in special}, _ADDED)
            if index != self.ids[content]:
                raise IdsChangedError(f"{_ADDED} {content!r} with another id than in tokenizer.json")


def _flags(token: Mapping[str, Any]) -> list[bool]:
    normalized = token.get("normalized")
    strips = [bool(token.get(name)) for name in ("single_word", "lstrip", "rstrip")]
    return [*strips, not token.get("special") if normalized is None else bool(normalized)]


def _check_pre_tokenizer(definition: dict[str, Any], settings: Mapping[str, Any], *, converts: bool) -> None:
    prefix = settings.get("add_prefix_space")
    part = definition.get("pre_tokenizer")
    in_file = (
        isinstance(part, dict) and part.get("type") == "ByteLevel" and part.get("add_prefix_space", True)
    )
    if bool(prefix) != in_file or (converts and prefix is not None):
        raise IdsChangedError(f"add_prefix_space {prefix}")


def _check_post_processor(
    definition: dict[str, Any],
    settings: Mapping[str, Any],
    first: _Class,
    newest: _Class,
    ids: Mapping[str, int],
) -> None:
    template = template_ids(definition.get("post_processor"))
    if newest is _GPT_NEOX and template != ((), ()):
        raise IdsChangedError("tokenizer_class GPTNeoXTokenizer, which adds no tokens to texts")
    if first.adds_bos is None:
        return
    ends: list[tuple[int, ...]] = []
    for end, default in (("bos_token", first.adds_bos), ("eos_token", False)):
        is_added = settings.get(f"add_{end}", default)
        ends.append((ids.get(token_text(settings.get(end)) or "", -1),) if is_added else ())
    if template != tuple(ends):
        raise IdsChangedError("add_bos_token and add_eos_token differ from the post-processor")


def _check_built(definition: dict[str, Any], parts: Mapping[str, Any], name: str) -> None:
    """Raise IdsChangedError unless the parts that a class of version 5 builds are those of the file."""
    model = definition["model"]
    options = {key: model[key] for key in ("type", "vocab", "merges") if key in model}
    built = {**definition, "normalizer": None, **parts, "model": {**options, **parts.get("model", {})}}
    before, after = canonical.behavior(definition), canonical.behavior(built)
    for part in before:
        if before[part] != after[part]:
            raise IdsChangedError(f"tokenizer_class {name}, which has another {part.replace('_', '-')}")
