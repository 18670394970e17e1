"""The definition in a ``tokenizer.json``, as the library `tokenizers` reads it, or in GPT-2's two files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.files import parse_object, read_file
from tokshard.text.tokenizer.vocabulary import Vocabulary

_GPT2_EOD: Final = "<|endoftext|>"
_UTF8_BYTES: Final = [*range(0xC0), *range(0xC2, 0xF5)]

COMPONENT_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "BPE": {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
    "Unigram": {"unk_id": None, "byte_fallback": False},
    "WordPiece": {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "unk_token": "[UNK]"},
    "WordLevel": {"unk_token": "<unk>"},
    "ByteLevel": {"add_prefix_space": True, "use_regex": True},
    "Metaspace": {"replacement": "\N{LOWER ONE EIGHTH BLOCK}", "prepend_scheme": "always", "split": True},
    "Split": {"invert": False},
    "Digits": {"individual_digits": False},
    "Punctuation": {"behavior": "Isolated"},
    "BertNormalizer": {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "Strip": {"strip_left": True, "strip_right": True},
}
"""Values that the library uses for missing keys, by the type of the component."""


def huggingface_vocabulary(parsed: dict[str, Any], content: bytes, path: str) -> Vocabulary:
    """Return the vocabulary of a parsed ``tokenizer.json``; raise TokenizerError if it is none."""
    model_ids, model_size = _model_vocabulary(parsed, path)
    added = added_token_ids(parsed["model"], _added_contents(parsed, path))
    # Not the number of names: Unigram models count pieces that repeat.
    size = model_size + len(added.keys() - model_ids.keys())
    prefix, suffix = template_ids(parsed.get("post_processor")) or (None, None)
    model = parsed["model"]
    has_bytes = has_all_bytes(parsed, model_ids)
    return Vocabulary(
        "huggingface",
        content,
        {**model_ids, **added},
        added,
        size,
        prefix_ids=prefix,
        suffix_ids=suffix,
        unknown_id=None if has_bytes else declared_unknown_id(model, model_ids),
        # Other models fail where they need an unknown token and have none.
        drops_characters=not has_bytes and model_type(model) == "BPE" and model.get("unk_token") is None,
    )


def declared_unknown_id(model: dict[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return the id of the unknown token that a model names; None if it names none, or none of ``ids``."""
    if model_type(model) == "Unigram":
        return model["unk_id"] if type(model.get("unk_id")) is int else None
    unknown = model.get("unk_token", COMPONENT_DEFAULTS.get(model_type(model), {}).get("unk_token"))
    return ids.get(unknown) if isinstance(unknown, str) else None


def has_all_bytes(parsed: Mapping[str, Any], ids: Mapping[str, int]) -> bool:
    """Return whether a parsed ``tokenizer.json`` can write every text as bytes.

    ``ids``: the vocabulary of its model.
    """
    model = parsed["model"]
    is_byte_level = splits_into_bytes(parsed) or any(
        step.get("type") == "ByteLevel" for step in components(parsed.get("normalizer"), "normalizers")
    )
    # The others look up whole words, or need other names for the same characters.
    has_own_names = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if is_byte_level and model_type(model) in {"BPE", "Unigram"} and not has_own_names:
        alphabet = byte_alphabet()
        return all(alphabet[byte] in ids for byte in _UTF8_BYTES)
    return model.get("byte_fallback") is True and all(f"<0x{byte:02X}>" in ids for byte in _UTF8_BYTES)


def splits_into_bytes(parsed: Mapping[str, Any]) -> bool:
    """Return whether the pre-tokenizer of a parsed ``tokenizer.json`` writes text as bytes."""
    steps = components(parsed.get("pre_tokenizer"), "pretokenizers")
    return any(step.get("type") == "ByteLevel" for step in steps)


def template_ids(post_processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids that a post-processor adds before and after each text; None if it is not understood.

    Example:
        >>> template_ids({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]})
        ((1,), (2,))
        >>> template_ids(None)
        ((), ())
    """
    found: tuple[tuple[int, ...], tuple[int, ...]] | None
    ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for part in components(post_processor, "processors"):
        match part:
            case {"type": "ByteLevel"}:
                continue
            case {"type": "BertProcessing" | "RobertaProcessing", "sep": [_, int(sep)], "cls": [_, int(cls)]}:
                found = (cls,), (sep,)
            case {"type": "TemplateProcessing", "single": list(single), "special_tokens": dict(named)}:
                found = _ids_of_template(single, named)
            case _:
                return None
        if found is None or ids is not None:  # of two processors the library applies only one
            return None
        ids = found
    return ids or ((), ())


def components(part: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield the components of a part of a definition; ``key``: the key of the members of a Sequence."""
    if not isinstance(part, dict):
        return
    members = part.get(key) if part.get("type") == "Sequence" else None
    if not isinstance(members, list):
        yield part
        return
    for inner in members:
        yield from components(inner, key)


def _ids_of_template(
    single: list[Any], named: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    sides: tuple[list[int], list[int]] = ([], [])
    side = 0
    for piece in single:
        match piece:
            case {"Sequence": {"id": "A"}} if side == 0:
                side = 1
            case {"SpecialToken": {"id": str(name)}}:
                match named.get(name):
                    case {"ids": list(ids)} if set(map(type, ids)) <= {int}:
                        sides[side].extend(ids)
                    case _:
                        return None
            case _:
                return None
    return (tuple(sides[0]), tuple(sides[1])) if side else None


def _added_contents(parsed: dict[str, Any], path: str) -> list[str]:
    tokens = parsed.get("added_tokens") or []
    if isinstance(tokens, list) and all(isinstance(token, dict) for token in tokens):
        contents = [token.get("content") for token in tokens]
        if set(map(type, contents)) <= {str}:
            return contents
    raise TokenizerError(f"the field added_tokens of {path} is not a list of tokens")


def _model_vocabulary(parsed: dict[str, Any], path: str) -> tuple[dict[str, int], int]:
    model = parsed.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(
            f"{path} has no model: it is not a tokenizer.json",
            hint="pass --vocab-file VOCAB --merge-file MERGES, or a directory with vocab.json and merges.txt"
            if path.endswith("vocab.json")
            else "pass the tokenizer.json of the same model, or the directory that contains it",
        )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict) and set(map(type, vocabulary.values())) <= {int}:
        if vocabulary and not 0 <= min(vocabulary.values()) <= max(vocabulary.values()) < 2**32:
            raise TokenizerError(f"the vocabulary of {path} has ids that are not unsigned 32-bit numbers")
        return vocabulary, len(vocabulary)
    if isinstance(vocabulary, list) and set(map(type, vocabulary)) <= {list}:
        # Unigram: pieces with their scores, whose places are their ids
        with suppress(TypeError, ValueError):
            ids = {piece: index for index, (piece, _) in enumerate(vocabulary)}
            if set(map(type, ids)) <= {str}:
                return ids, len(vocabulary)
    raise TokenizerError(
        f"the field model.vocab of {path} is not a vocabulary",
        hint="fetch the file again: it is damaged, or not a tokenizer.json",
    )


def added_token_ids(model: Mapping[str, Any], contents: Iterable[str]) -> dict[str, int]:
    """Return the ids that ``tokenizers`` gives to tokens added to a model, whatever ids the file states.

    A token of the model's vocabulary keeps its id there. The others get the ids from the model's size on, in
    the order of the file.

    Example:
        >>> added_token_ids({"vocab": {"a": 0, "b": 1}}, ["<x>", "b", "<y>"])
        {'<x>': 2, 'b': 1, '<y>': 3}
    """
    vocabulary = model.get("vocab") or {}
    following = len(vocabulary)
    contents = dict.fromkeys(contents)
    if isinstance(vocabulary, list):  # Unigram: a table of all pieces would take longer than the rest
        vocabulary = {piece[0]: index for index, piece in enumerate(vocabulary) if piece[0] in contents}
    ids: dict[str, int] = {}
    for content in filter(None, contents):
        ids[content] = vocabulary.get(content, following)
        following += content not in vocabulary
    return ids


def model_type(model: dict[str, Any]) -> str:
    """Return the type of a model."""
    if model.get("type"):
        return str(model["type"])
    # The oldest files name no type; the library tries them in this order.
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def byte_alphabet() -> list[str]:
    """Return the 256 characters by which byte-level vocabularies write the bytes, in the bytes' order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


# GPT-2's vocab.json and merges.txt, and the tokenizer.json that they stand for


def gpt2_definition(vocabulary: str, merges: str) -> dict[str, Any]:
    """Return the ``tokenizer.json`` that GPT2TokenizerFast of transformers 4 makes of two files.

    Args:
        vocabulary: Path of the ``vocab.json``: a JSON object of tokens and ids.
        merges: Path of the ``merges.txt``: ``#version: 0.2``, then two tokens in each line.

    Raises:
        TokenizerError: A file cannot be read, or is damaged.
    """
    ids = parse_object(read_file(vocabulary), vocabulary)
    if set(map(type, ids.values())) - {int}:
        raise TokenizerError(
            f"{vocabulary} is not a vocabulary: it must have an id for each token",
            hint="pass the vocab.json of a GPT-2 tokenizer",
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    eod = {"id": ids.get(_GPT2_EOD, len(ids)), "content": _GPT2_EOD, "normalized": True, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**eod, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": _read_merges(merges),
        },
    }


def _read_merges(path: str) -> list[list[str]]:
    try:
        first, *lines = read_file(path).decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path} is not UTF-8 text", hint="pass the merges.txt of a tokenizer"
        ) from error
    # transformers 4 drops the first and the last line, whatever they contain.
    if not first.startswith("#version") or not lines or lines[-1]:
        raise TokenizerError(
            f"{path} must begin with a line '#version: 0.2' and end with a line break",
            hint="fetch the file again if it is cut off, or add what is missing",
        )
    merges: dict[tuple[str, ...], None] = {}
    for number, line in enumerate(lines[:-1], start=2):
        pair = tuple(line.split())
        if len(pair) != 2:
            raise TokenizerError(
                f"{path}:{number} must have two tokens, got {line[:40]!r}", hint="fetch the file again"
            )
        merges[pair] = None
    return [list(pair) for pair in merges]
